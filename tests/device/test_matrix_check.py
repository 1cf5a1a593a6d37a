"""Matrix units that compute wrong values are found out, and not used."""

import numpy as np
import pytest

import app.contracts as contracts
import engine.matrix_check as matrix_check
from engine.gpu import Gpu


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_check, "TOKENS", 40)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wrong", [None, np.nan, 1.05])
def test_results_that_differ_are_noticed(
    gpu: Gpu, wrong: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = matrix_check._results

    def spoilt(gpu: Gpu, contract: contracts.Contract) -> list[np.ndarray]:
        found = results(gpu, contract)
        assert all(np.linalg.norm(value) > 0 for value in found)
        if wrong is not None and contract == "accelerated":
            found[2] = found[2] * np.float32(wrong)
        return found

    monkeypatch.setattr(matrix_check, "_results", spoilt)
    assert matrix_check.units_are_right(gpu) == (wrong is None)


@pytest.mark.parametrize("right", [True, False])
def test_a_device_with_wrong_units_stays_strict(
    gpu: Gpu, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "contract", "accelerated")
    monkeypatch.setattr(contracts.Gpu, "open", lambda choice, matrix_units: gpu)
    monkeypatch.setattr(contracts, "units_are_right", lambda gpu: right)
    said: list[str] = []
    assert contracts.open_for("auto", "accelerated", said.append) is gpu
    assert gpu.contract == ("accelerated" if right else "strict")
    assert [("wrong results" in line) for line in said] == ([] if right else [True])
