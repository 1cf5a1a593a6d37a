"""The gates: what they let through, what they see, and what the published ones do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from app.bench.gates import (
    LIMITS,
    Finding,
    judge_output,
    judge_training,
    paper_output,
    paper_training,
    relative_l2,
    worst,
)
from app.bench.golden import Golden, Gradient, sample

STRICT = LIMITS["strict"]
Arrays = Mapping[str, np.ndarray]


@pytest.fixture
def gradients(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"w": rng.normal(0, 1, (40, 50)), "b": rng.normal(0, 0.001, 50)}


@pytest.fixture
def output(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 1, (1, 30, 41)).astype(np.float32)


def figures(gradients: Arrays) -> dict[str, Gradient]:
    return {name: Gradient.of(name, value) for name, value in gradients.items()}


def file_of(output: np.ndarray) -> Golden:
    norm = float(np.linalg.norm(output.astype(np.float64)))
    return Golden(output.shape, norm, sample(output).astype(np.float64), 1.5, {}, {})


def wrong(got: Arrays, want: Arrays, loss: float = 1.5) -> list[str]:
    found = judge_training(loss, figures(got), 1.5, figures(want), STRICT)
    return [finding.what for finding in found if not finding.good]


def test_equal_values_pass(output: np.ndarray, gradients: dict[str, np.ndarray]) -> None:
    for want in (output, file_of(output)):
        found = judge_output(output, want, STRICT)
        assert found and all(finding.error < 1e-12 for finding in found)
    found = judge_training(1.5, figures(gradients), 1.5, figures(gradients), STRICT)
    assert len(found) == 2 + 2 * len(gradients)
    assert all(finding.error < 1e-12 for finding in found)


def test_the_output_is_judged_in_full(output: np.ndarray) -> None:
    assert not judge_output(1.001 * output, output, STRICT)[0].good
    assert judge_output(1.00001 * output, output, STRICT)[0].good
    one = output.copy()
    one[0, 3, 5] += 1
    assert not judge_output(one, output, STRICT)[0].good
    # A file has a sample, and the norm of the rest.
    found = judge_output(1.001 * output, file_of(output), STRICT)
    assert [(f.what, f.good) for f in found] == [("output sample", False), ("output norm", False)]


def test_what_the_gradients_tell(gradients: dict[str, np.ndarray]) -> None:
    w, b = gradients["w"], gradients["b"]
    assert wrong(gradients | {"w": w.T.reshape(w.shape)}, gradients) == ["probe of w"]
    assert wrong(gradients | {"w": -w}, gradients) == ["probe of w"]
    # A small tensor hardly moves the total.
    assert "norm of b" in wrong(gradients | {"b": 1.02 * b}, gradients)
    assert "gradient norm" not in wrong(gradients | {"b": 1.02 * b}, gradients)
    assert wrong(gradients | {"b": 1.005 * b}, gradients) == []
    assert wrong(gradients | {"w": 1.002 * w}, gradients) == ["gradient norm"]
    assert wrong(gradients, gradients, loss=1.502) == ["loss"]


def test_gradients_below_the_floor_are_not_judged_by_themselves(
    gradients: dict[str, np.ndarray],
) -> None:
    tiny = 1e-9 * gradients["b"]
    want = gradients | {"b": tiny}
    assert wrong(gradients | {"b": -tiny}, want) == []
    assert wrong(gradients | {"b": 1e-5 + tiny}, want) == ["norm of b", "probe of b"]


def test_values_that_are_not_finite_fail(
    output: np.ndarray, gradients: dict[str, np.ndarray]
) -> None:
    assert not judge_output(output * np.nan, output, STRICT)[0].good
    assert not any(f.good for f in judge_output(output * np.inf, file_of(output), STRICT))
    bad = gradients | {"b": np.full(50, np.nan)}
    found = wrong(bad, gradients, loss=float("nan"))
    assert found == ["loss", "gradient norm", "norm of b", "probe of b"]


def test_zeros_agree_with_zeros_only() -> None:
    zeros = np.zeros(4)
    assert relative_l2(zeros, zeros) == 0
    assert np.isnan(relative_l2(zeros + 1e-9, zeros))


def test_other_shapes_and_names_are_refused(
    output: np.ndarray, gradients: dict[str, np.ndarray]
) -> None:
    for want in (output, file_of(output)):
        with pytest.raises(ValueError, match=re.escape("output is (30, 41), not (1, 30, 41)")):
            judge_output(output[0], want, STRICT)
    with pytest.raises(ValueError, match="only one side has gradients of b"):
        wrong({"w": gradients["w"]}, gradients)


def test_the_published_gates_are_looser(
    output: np.ndarray, gradients: dict[str, np.ndarray]
) -> None:
    want = figures(gradients)
    broken = figures(gradients | {"b": -3 * gradients["b"], "w": -gradients["w"]})
    assert all(finding.good for finding in paper_training(1.51, broken, 1.5, want))
    assert not all(finding.good for finding in judge_training(1.51, broken, 1.5, want, STRICT))
    assert paper_output(1.005 * output, output)[0].good
    assert not paper_output(1.02 * output, file_of(output))[0].good
    off = figures({name: 1.1 * value for name, value in gradients.items()})
    found = {f.what: f.good for f in paper_training(1.6, off, 1.5, want)}
    assert found == {"loss": False, "gradient norm": False, "vector of norms": False}


def test_gate_and_up_projections_count_as_one_there() -> None:
    def pair(gate: float, up: float) -> dict[str, Gradient]:
        return {"mlp.gate_proj.weight": Gradient(gate, 0), "mlp.up_proj.weight": Gradient(up, 0)}

    (_, _, vector) = paper_training(1, pair(3, 4), 1, pair(4, 3))
    assert vector.error == pytest.approx(0)


def test_the_worst_is_nearest_to_its_limit() -> None:
    near, far = Finding("near", 0.009, 0.01), Finding("far", 0.1, 1.0)
    assert worst([far, near]) is near
    lost = replace(far, error=float("nan"))
    assert worst([near, lost]) is lost and not lost.good
    assert str(near) == "near is off by 9.0e-03, allowed 0.01"


def test_the_accelerated_contract_allows_more_everywhere() -> None:
    strict, other = vars(STRICT), vars(LIMITS["accelerated"])
    assert strict == {"output": 1e-4, "loss": 1e-3, "total": 1e-3, "tensor": 0.01}
    assert all(other[key] > strict[key] for key in strict)
