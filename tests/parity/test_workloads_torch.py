"""The five networks at reduced size: output, loss and every gradient against PyTorch in float64.

Parameters and inputs are random; the benchmark's gates see hashed ones in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from cases import assert_close, relative_l2
from device_runs import start
from workload_values import draw_inputs, draw_parameters

from engine.gpu import Gpu
from models.workload import LOSS, OUTPUT
from models.zoo import WORKLOADS

torch = pytest.importorskip("torch")

from app.bench.torch_models import TORCH_MODELS  # noqa: E402
from app.bench.torch_models.torch_model import Part  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Computed:
    output: np.ndarray
    loss: float
    gradients: Values


def computed(name: str, parameters: Values, inputs: Values, trained: list[str]) -> Computed:
    """What PyTorch makes of native parameters and inputs, in float64."""
    model, config = TORCH_MODELS[name], WORKLOADS[name].reduced
    p = {k: torch.from_numpy(v.astype(np.float64)) for k, v in parameters.items()}
    for parameter in trained:
        p[parameter].requires_grad_()
    kinds = {"f": np.float64, "u": np.int64}
    given = {**inputs, **model.constants(config)}
    x = {k: torch.from_numpy(v.astype(kinds[v.dtype.kind])) for k, v in given.items()}
    output = model.forward(Part(p), x, config)
    loss = model.loss(output, x)
    loss.backward()
    gradients = {parameter: p[parameter].grad.numpy() for parameter in trained}
    return Computed(output.detach().numpy(), loss.item(), gradients)


def repeated(name: str, inputs: Values, rng: np.random.Generator) -> Values:
    """With random tokens, of which some repeat: their gradients meet in one row."""
    if name != "smollm2":
        return inputs
    bound = WORKLOADS[name].reduced.vocabulary
    tokens = {k: rng.integers(bound // 4, size=v.shape, dtype=np.uint32) for k, v in inputs.items()}
    assert all(len(set(value)) < len(value) for value in tokens.values())
    return tokens


@pytest.mark.parametrize("name", WORKLOADS)
def test_output_loss_and_gradients(name: str, gpu: Gpu, rng: np.random.Generator) -> None:
    workload = WORKLOADS[name]
    inference, training = (
        make(workload.reduced) for make in (workload.inference, workload.training)
    )
    native = draw_parameters(training, rng)
    inputs = repeated(name, draw_inputs(workload, workload.reduced, rng), rng)
    want = computed(name, native, inputs, list(training.graph.gradients))
    feeds = inputs | {k: training.layouts[k].to_engine(v) for k, v in native.items()}

    session = start(gpu, inference.graph, feeds, gpu.facts)
    session.run()
    assert relative_l2(session.read(OUTPUT), want.output) < 1e-5
    session = start(gpu, training.graph, feeds, gpu.facts)
    session.run()
    assert_close(session.read(LOSS), np.array([want.loss]), 1e-5, "loss")
    for parameter, wanted in want.gradients.items():
        got = training.layouts[parameter].to_native(session.read(f"gradient:{parameter}"))
        error = relative_l2(got, wanted)
        assert error < 1e-4, f"gradient of {parameter} deviates by {error:.1e}"


def test_frozen_parameters_have_no_gradient() -> None:
    network = WORKLOADS["whisper"].training(WORKLOADS["whisper"].reduced)
    frozen = network.layouts.keys() - network.graph.gradients.keys()
    assert frozen == {"model.encoder.embed_positions.weight"}
