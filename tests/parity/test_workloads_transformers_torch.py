"""SmolLM2, SmolVLA and Whisper at reduced size against PyTorch: output, loss, every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import assert_close, relative_l2
from device_runs import start
from workload_runs import Values, random_inputs, random_parameters, stored

from app.bench.golden import Golden, Gradient, Result, compare
from engine.gpu import Gpu
from models.smollm2 import SMOLLM2, SmolLm2Config
from models.smolvla import SMOLVLA, SmolVlaConfig
from models.whisper import WHISPER, WhisperConfig
from models.workload import LOSS, OUTPUT, Workload

torch = pytest.importorskip("torch")
functional = torch.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

VOCABULARY = SMOLLM2.reduced.vocabulary

Tensors = dict[str, Any]


def attend(q: Any, k: Any, v: Any, width: int, causal: bool) -> Any:
    """Operands and result [tokens, heads * width]."""
    split = [x.unflatten(1, (-1, width)).movedim(1, 0) for x in (q, k, v)]
    mixed = functional.scaled_dot_product_attention(*split, is_causal=causal, enable_gqa=True)
    return mixed.movedim(0, 1).flatten(1)


def rms(p: Tensors, name: str, x: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], p[f"{name}.weight"], 1e-5)


def affine(p: Tensors, name: str, x: Any) -> Any:
    bias = p.get(f"{name}.bias")
    return x @ p[f"{name}.weight"] + (0 if bias is None else bias)


def gated(p: Tensors, name: str, x: Any) -> Any:
    gate, up = (x @ p[f"{name}.{part}_proj.weight"] for part in ("gate", "up"))
    return (functional.silu(gate) * up) @ p[f"{name}.down_proj.weight"]


def turned(x: Any, width: int, theta: float) -> Any:
    """Rotary positions: element i of a head and element i + width / 2 are a complex number."""
    low, high = x.unflatten(1, (-1, width)).chunk(2, dim=-1)
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * frequency
    z = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([z.real, z.imag], dim=-1).flatten(1)


def smollm2(p: Tensors, x: Tensors, config: SmolLm2Config) -> tuple[Any, Any]:
    table = p["model.embed_tokens.weight"]
    y = functional.embedding(x["ids"], table)
    for layer in range(config.layers):
        name = f"model.layers.{layer}"
        h = rms(p, f"{name}.input_layernorm", y)
        q, k, v, o = (f"{name}.self_attn.{part}_proj" for part in "qkvo")
        q, k = (turned(affine(p, part, h), config.head, config.theta) for part in (q, k))
        y = y + affine(p, o, attend(q, k, affine(p, v, h), config.head, True))
        y = y + gated(p, f"{name}.mlp", rms(p, f"{name}.post_attention_layernorm", y))
    logits = rms(p, "model.norm", y) @ table.T
    return logits[None], functional.cross_entropy(logits, x["labels"])


def smolvla(
    p: Tensors, x: Tensors, config: SmolVlaConfig, *, normalized: bool = True, causal: bool = True
) -> tuple[Any, Any]:
    """Without `normalized`, self-attention's keys and values come from the residual stream."""
    time = functional.silu(affine(p, "model.action_time_mlp_in", x["timestep"]))
    time = affine(p, "model.action_time_mlp_out", time)
    y = affine(p, "model.action_in_proj", x["noisy_actions"]) + time
    for layer in range(config.layers):
        name = f"model.vlm_with_expert.lm_expert.layers.{layer}"
        h = rms(p, f"{name}.input_layernorm", y)
        crossed = layer % 2 == 1
        source = x["vlm_kv"] if crossed else h if normalized else y
        q, k, v, o = (f"{name}.self_attn.{part}_proj" for part in "qkvo")
        mixed = attend(
            affine(p, q, h),
            affine(p, k, source),
            affine(p, v, source),
            config.head,
            causal and not crossed,
        )
        y = y + affine(p, o, mixed)
        y = y + gated(p, f"{name}.mlp", rms(p, f"{name}.post_attention_layernorm", y))
    actions = affine(p, "model.action_out_proj", y)
    return actions[None], (actions**2).mean()


def whisper(p: Tensors, x: Tensors, config: WhisperConfig) -> tuple[Any, Any]:
    p = {name.removeprefix("model.encoder."): value for name, value in p.items()}

    def norm(name: str, y: Any) -> Any:
        weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
        return functional.layer_norm(y, y.shape[-1:], weight, bias, 1e-5)

    y = x["mel"]
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = p[f"{name}.weight"], p[f"{name}.fused_bias"]
        y = functional.gelu(functional.conv1d(y, weight, bias, stride, padding=1))
    y = y[0].T + p["embed_positions.weight"].detach()
    for layer in range(config.layers):
        name = f"layers.{layer}"
        h = norm(f"{name}.self_attn_layer_norm", y)
        q, k, v = (affine(p, f"{name}.self_attn.{part}_proj", h) for part in "qkv")
        mixed = attend(q, k, v, config.hidden // config.heads, False)
        y = y + affine(p, f"{name}.self_attn.out_proj", mixed)
        h = functional.gelu(affine(p, f"{name}.fc1", norm(f"{name}.final_layer_norm", y)))
        y = y + affine(p, f"{name}.fc2", h)
    y = norm("layer_norm", y)
    return y[None], y.square().mean()


REFERENCES: dict[str, tuple[Workload[Any], Callable[..., tuple[Any, Any]]]] = {
    "smollm2": (SMOLLM2, smollm2),
    "smolvla": (SMOLVLA, smolvla),
    "whisper": (WHISPER, whisper),
}


def computed(
    reference: Callable[..., tuple[Any, Any]],
    workload: Workload[Any],
    parameters: Values,
    inputs: Values,
    **options: bool,
) -> tuple[np.ndarray, float, Values]:
    """Output, loss and gradients in float64."""
    p = {k: torch.from_numpy(v.astype(np.float64)).requires_grad_() for k, v in parameters.items()}
    kinds = {"f": np.float64, "u": np.int64}
    x = {k: torch.from_numpy(v.astype(kinds[v.dtype.kind])) for k, v in inputs.items()}
    output, loss = reference(p, x, workload.reduced, **options)
    loss.backward()
    gradients = {name: v.grad.numpy() for name, v in p.items() if v.grad is not None}
    return output.detach().numpy(), loss.item(), gradients


@pytest.mark.parametrize("model", REFERENCES)
def test_output_loss_and_gradients(model: str, gpu: Gpu, rng: np.random.Generator) -> None:
    workload, reference = REFERENCES[model]
    network = workload.training(workload.reduced)
    parameters = random_parameters(network, rng)
    inputs = random_inputs(workload, VOCABULARY, rng)
    output, loss, gradients = computed(reference, workload, parameters, inputs)

    feeds = stored(network, parameters) | inputs
    session = start(gpu, workload.inference(workload.reduced).graph, feeds, gpu.facts)
    session.run()
    assert relative_l2(session.read(OUTPUT), output) < 1e-5

    session = start(gpu, network.graph, feeds, gpu.facts)
    session.run()
    assert_close(session.read(LOSS), np.array([loss]), 1e-5, "loss")
    assert gradients.keys() == network.graph.gradients.keys()
    for name, want in gradients.items():
        got = network.layouts[name].to_native(session.read(f"gradient:{name}"))
        assert relative_l2(got, want) < 1e-4, name


def result(output: np.ndarray, loss: float, gradients: Values) -> Result:
    summaries = {name: Gradient.of(name, value) for name, value in gradients.items()}
    return Result(output, loss, summaries)


@pytest.mark.parametrize("option", ["normalized", "causal"])
def test_the_gate_tells_wrong_attention(option: str) -> None:
    """With hashed weights, as the gate uses them."""
    network, inputs = SMOLVLA.training(SMOLVLA.reduced), SMOLVLA.inputs(SMOLVLA.reduced)
    stored_values = SMOLVLA.parameters(network)
    native = {name: network.layouts[name].to_native(v) for name, v in stored_values.items()}
    right = result(*computed(smolvla, SMOLVLA, native, inputs))
    shapes = {name: value.shape for name, value in native.items()}
    output = right.output
    golden = Golden(output.shape, output.ravel(), right.loss, right.gradients, shapes)
    assert all(finding.good for finding in compare(right, golden))
    wrong = result(*computed(smolvla, SMOLVLA, native, inputs, **{option: False}))
    failed = [finding.what for finding in compare(wrong, golden) if not finding.good]
    assert len(failed) > 20
