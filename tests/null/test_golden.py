"""Reference files: what is read from them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench.golden import Golden, Gradient, require_same_parameters, sample
from models.whisper import WHISPER

Arrays = dict[str, np.ndarray]


def document(output: np.ndarray, gradients: Arrays) -> dict[str, Any]:
    """A reference file's content, written without the code under test."""
    last = output.size - 1
    return {
        "output_shape": list(output.shape),
        "output_l2": float(np.sqrt((output.astype(np.float64) ** 2).sum())),
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


def test_what_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    gradients = {"w": rng.normal(0, 1, (40, 50)), "b": rng.normal(0, 0.1, 50)}
    output = rng.normal(0, 1, (1, 30, 41)).astype(np.float32)
    golden = read(tmp_path, document(output, gradients))
    assert golden.output_shape == (1, 30, 41) and golden.shapes == {"w": (40, 50), "b": (50,)}
    assert golden.output_l2 == pytest.approx(np.linalg.norm(output), rel=1e-6)
    assert golden.loss == 1.5 and golden.gradients.keys() == {"w", "b"}
    assert golden.gradients["b"] == pytest.approx(Gradient.of("b", gradients["b"]))
    assert np.array_equal(golden.sample, sample(output, 256))


def test_the_probe_sees_order_and_sign(rng: np.random.Generator) -> None:
    w = rng.normal(0, 1, (40, 50))
    right = Gradient.of("w", w)
    for wrong in (w.T.reshape(w.shape), -w, np.roll(w, 1)):
        got = Gradient.of("w", wrong)
        assert got.norm == pytest.approx(right.norm)
        assert abs(got.probe - right.probe) > 0.1
    assert Gradient.of("v", w).probe != right.probe


def test_the_sample_is_spread_over_the_output() -> None:
    assert np.array_equal(sample(np.arange(511), 256), np.arange(0, 511, 2))
    assert sample(np.arange(7), 1) == 0
    assert np.array_equal(sample(np.arange(7), 256), np.arange(7))


def test_other_parameters_are_refused(tmp_path: Path) -> None:
    network = WHISPER.training(WHISPER.reduced)
    output = np.ones(3, np.float32)
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
