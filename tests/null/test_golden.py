"""The gate against reference files: what it lets through, what it sees, what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench.golden import (
    TOLERANCE,
    Golden,
    Gradient,
    Result,
    compare,
    main,
    report,
    require_same_parameters,
    sample,
)
from models.whisper import WHISPER

Arrays = dict[str, np.ndarray]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def gradients(rng: np.random.Generator) -> Arrays:
    return {"w": rng.normal(0, 1, (40, 50)), "b": rng.normal(0, 0.1, 50)}


@pytest.fixture
def output(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 1, (1, 30, 41)).astype(np.float32)


def document(output: np.ndarray, gradients: Arrays) -> dict[str, Any]:
    """A reference file's content, written without the code under test."""
    last = output.size - 1
    return {
        "output_shape": list(output.shape),
        "output_sample_256": [float(output.ravel()[k * last // 255]) for k in range(256)],
        "loss": 1.5,
        "gradient_norms": {n: float(np.sqrt((g**2).sum())) for n, g in gradients.items()},
        "gradient_probes": {n: Gradient.of(n, g).probe for n, g in gradients.items()},
        "parameter_shapes": {n: list(g.shape) for n, g in gradients.items()},
    }


def read(folder: Path, content: object) -> Golden:
    path = folder / "reference.json"
    path.write_text(json.dumps(content))
    return Golden.read(path)


def result(output: np.ndarray, gradients: Arrays, loss: float = 1.5) -> Result:
    return Result(output, loss, {n: Gradient.of(n, g) for n, g in gradients.items()})


def wrong(got: Result, golden: Golden) -> list[str]:
    return [finding.what for finding in compare(got, golden) if not finding.good]


def test_equal_values_pass(
    tmp_path: Path, output: np.ndarray, gradients: Arrays, capsys: Capture
) -> None:
    golden = read(tmp_path, document(output, gradients))
    findings = compare(result(output, gradients), golden)
    assert len(findings) == 3 + 2 * len(gradients)
    assert max(finding.error for finding in findings) < 1e-12
    assert report(findings) == 0
    assert capsys.readouterr().out.endswith("0 of 7 quantities differ by more than 0.01\n")


def test_what_the_gate_sees(tmp_path: Path, output: np.ndarray, gradients: Arrays) -> None:
    golden = read(tmp_path, document(output, gradients))
    w = gradients["w"]
    transposed = w.T.reshape(w.shape)
    assert wrong(result(output, gradients | {"w": transposed}), golden) == ["probe of w"]
    assert wrong(result(output, gradients | {"w": -w}), golden) == ["probe of w"]
    assert wrong(result(output, gradients | {"w": np.roll(w, 1)}), golden) == ["probe of w"]
    # A small tensor hardly moves the total.
    seen = wrong(result(output, gradients | {"b": 1.02 * gradients["b"]}), golden)
    assert "norm of b" in seen and {*seen} <= {"norm of b", "probe of b"}
    assert wrong(result(output, gradients, loss=1.52), golden) == ["loss"]
    assert wrong(result(1.02 * output, gradients), golden) == ["output"]
    assert wrong(result(1.005 * output, gradients, loss=1.505), golden) == []


def test_values_that_are_not_finite_fail(
    tmp_path: Path, output: np.ndarray, gradients: Arrays, capsys: Capture
) -> None:
    golden = read(tmp_path, document(output, gradients))
    bad = gradients | {"b": np.full(50, np.nan)}
    findings = compare(result(output * np.nan, bad, loss=float("nan")), golden)
    assert [f.what for f in findings if f.good] == ["norm of w", "probe of w"]
    assert report(findings) == 1
    assert capsys.readouterr().out.count("WRONG") == 5


def test_the_report_names_what_is_wrong_and_the_worst(
    tmp_path: Path, output: np.ndarray, gradients: Arrays, capsys: Capture
) -> None:
    golden = read(tmp_path, document(output, gradients))
    findings = compare(result(output, gradients | {"w": -gradients["w"]}), golden)
    assert report(findings) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("probe of w  (worst)  WRONG")]
    assert len(lines) == 6
    report(findings, everything=True)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_gradients_below_the_floor_are_not_judged_by_themselves(
    tmp_path: Path, output: np.ndarray, gradients: Arrays
) -> None:
    tiny = 1e-12 * gradients["b"]
    golden = read(tmp_path, document(output, gradients | {"b": tiny}))
    assert wrong(result(output, gradients | {"b": -tiny}), golden) == []
    assert wrong(result(output, gradients | {"b": 1e-3 + tiny}), golden) == [
        "norm of b",
        "probe of b",
    ]


def test_the_sample_is_spread_over_the_output(output: np.ndarray) -> None:
    assert np.array_equal(sample(np.arange(511), 256), np.arange(0, 511, 2))
    assert sample(output, 1) == output.ravel()[0]
    assert 0 < TOLERANCE <= 0.01


def test_other_shapes_and_names_are_refused(
    tmp_path: Path, output: np.ndarray, gradients: Arrays
) -> None:
    golden = read(tmp_path, document(output, gradients))
    with pytest.raises(ValueError, match=re.escape("output is (30, 41), not (1, 30, 41)")):
        compare(result(output[0], gradients), golden)
    with pytest.raises(ValueError, match="only one side has gradients of b"):
        compare(result(output, {"w": gradients["w"]}), golden)
    network = WHISPER.training(WHISPER.reduced)
    shapes = {name: np.ones(layout.native) for name, layout in network.layouts.items()}
    require_same_parameters(network, read(tmp_path, document(output, shapes)))
    for name, other in (("model.encoder.conv1.weight", np.ones((24, 3, 5))), ("more", output)):
        golden = read(tmp_path, document(output, shapes | {name: other}))
        with pytest.raises(ValueError, match=f"parameter '{name}' is .* in the reference"):
            require_same_parameters(network, golden)


@pytest.mark.parametrize("content", [[], {"loss": 1}, {"gradient_norms": 3}, "text"])
def test_a_file_of_another_kind_is_refused(content: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reference\.json is no reference file"):
        read(tmp_path, content)


def test_errors_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert main(["whisper", "--golden", str(tmp_path)]) == 1
    (tmp_path / "Whisper-tiny.json").write_text("{")
    assert main(["whisper", "--golden", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("error: ") for line in lines)
    with pytest.raises(SystemExit, match="2"):
        main(["other", "--golden", str(tmp_path)])
