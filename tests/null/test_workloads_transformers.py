"""SmolLM2, SmolVLA and Whisper without a device: published names and shapes, and gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from workload_runs import random_inputs, random_parameters, stored

from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import GraphError
from engine.graph import verify
from engine.interpret import interpret
from models.smollm2 import SMOLLM2
from models.smolvla import SMOLVLA
from models.whisper import WHISPER, WhisperConfig
from models.workload import LOSS, OUTPUT, Workload

Shapes = dict[str, tuple[int, ...]]

WORKLOADS = {w.name: w for w in (SMOLLM2, SMOLVLA, WHISPER)}
OUTPUTS = {
    "SmolLM2-135M": (1, 128, 49152),
    "SmolVLA": (1, 50, 32),
    "Whisper-tiny": (1, 1500, 384),
}
TOTALS = {"SmolLM2-135M": 134_515_008, "SmolVLA": 99_848_592, "Whisper-tiny": 8_208_384}

each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def gated_block(name: str, hidden: int, q: int, kv: int, source: int, mlp: int) -> Shapes:
    return {
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.self_attn.q_proj.weight": (hidden, q),
        f"{name}.self_attn.k_proj.weight": (source, kv),
        f"{name}.self_attn.v_proj.weight": (source, kv),
        f"{name}.self_attn.o_proj.weight": (q, hidden),
        f"{name}.post_attention_layernorm.weight": (hidden,),
        f"{name}.mlp.gate_proj.weight": (hidden, mlp),
        f"{name}.mlp.up_proj.weight": (hidden, mlp),
        f"{name}.mlp.down_proj.weight": (mlp, hidden),
    }


def biased(name: str, *shape: int) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}


def smollm2_shapes() -> Shapes:
    shapes: Shapes = {"model.embed_tokens.weight": (49152, 576), "model.norm.weight": (576,)}
    for layer in range(30):
        shapes |= gated_block(f"model.layers.{layer}", 576, 576, 192, 576, 1536)
    return shapes


def smolvla_shapes() -> Shapes:
    shapes = biased("model.action_in_proj", 32, 720) | biased("model.action_out_proj", 720, 32)
    shapes |= biased("model.action_time_mlp_in", 1440, 720)
    shapes |= biased("model.action_time_mlp_out", 720, 720)
    for layer in range(16):
        name = f"model.vlm_with_expert.lm_expert.layers.{layer}"
        shapes |= gated_block(name, 720, 960, 320, 320 if layer % 2 else 720, 2048)
    return shapes


def whisper_shapes() -> Shapes:
    shapes: Shapes = {
        "conv1.weight": (384, 80, 3),
        "conv1.fused_bias": (384,),
        "conv2.weight": (384, 384, 3),
        "conv2.fused_bias": (384,),
        "embed_positions.weight": (1500, 384),
        **biased("layer_norm", 384),
    }
    for layer in range(4):
        name = f"layers.{layer}"
        shapes |= biased(f"{name}.self_attn_layer_norm", 384)
        for projection in ("q_proj", "v_proj", "out_proj"):
            shapes |= biased(f"{name}.self_attn.{projection}", 384, 384)
        shapes[f"{name}.self_attn.k_proj.weight"] = (384, 384)
        shapes |= biased(f"{name}.final_layer_norm", 384)
        shapes |= biased(f"{name}.fc1", 384, 1536) | biased(f"{name}.fc2", 1536, 384)
    return {f"model.encoder.{name}": shape for name, shape in shapes.items()}


SHAPES = {
    "SmolLM2-135M": smollm2_shapes,
    "SmolVLA": smolvla_shapes,
    "Whisper-tiny": whisper_shapes,
}


@each
def test_published_names_and_shapes(workload: Workload[Any]) -> None:
    training, inference = workload.training(workload.full), workload.inference(workload.full)
    for network in (training, inference):
        verify(network.graph)
        shapes = {name: layout.native for name, layout in network.layouts.items()}
        assert shapes == SHAPES[workload.name]()
        for node in network.graph.parameters():
            assert node.shape == network.layouts[node.name].engine
    assert sum(prod(layout.native) for layout in training.layouts.values()) == TOTALS[workload.name]
    assert inference.graph.outputs[OUTPUT].shape == OUTPUTS[workload.name]
    frozen = {"model.encoder.embed_positions.weight"} if workload is WHISPER else set()
    assert training.graph.gradients.keys() == training.layouts.keys() - frozen
    for name, node in training.graph.gradients.items():
        assert node.shape == training.layouts[name].engine


@each
def test_one_definition_serves_every_shape(workload: Workload[Any]) -> None:
    graphs = [workload.inference(workload.full), workload.inference(workload.latency)]
    graphs.append(workload.inference(workload.sized(8)))
    layouts = [network.layouts for network in graphs]
    assert layouts[0] == layouts[1]
    assert layouts[0].keys() == layouts[2].keys()
    if workload is not WHISPER:
        assert graphs[1].graph.outputs[OUTPUT].shape == (1, 1, *OUTPUTS[workload.name][2:])
        assert graphs[2].graph.outputs[OUTPUT].shape == (1, 8, *OUTPUTS[workload.name][2:])


@each
def test_inputs_are_what_the_graphs_declare(workload: Workload[Any]) -> None:
    for config in (workload.full, workload.reduced):
        graph = workload.training(config).graph
        declared = {n.name: (n.shape, n.type.dtype) for n in graph.nodes if n.op == "input"}
        kinds = {"f": "f32", "u": "u32"}
        values = workload.inputs(config)
        assert declared == {k: (v.shape, kinds[v.dtype.kind]) for k, v in values.items()}


def test_inputs_at_full_size() -> None:
    tokens = SMOLLM2.inputs(SMOLLM2.full)
    assert [*tokens["ids"][[0, 127]], *tokens["labels"][[0, 127]]] == [0, 127, 1, 128]
    actions = SMOLVLA.inputs(SMOLVLA.full)
    assert np.allclose(actions["noisy_actions"][1, :2], np.sin([0.32, 0.33]), atol=1e-7)
    assert np.allclose(actions["timestep"][0, 1000], np.sin(5.0), atol=1e-6)
    assert np.allclose(actions["vlm_kv"][2, 1], np.cos(6.41), atol=1e-6)
    row = SMOLVLA.inputs(SMOLVLA.latency)["noisy_actions"]
    assert np.array_equal(row, actions["noisy_actions"][:1])
    mel = WHISPER.inputs(WHISPER.full)["mel"]
    assert np.allclose(mel[0, 79, 2999], np.sin(239.999), atol=2e-5)


@each
def test_gradients_against_central_differences(
    workload: Workload[Any], rng: np.random.Generator
) -> None:
    network = workload.training(workload.reduced)
    graph, loss = network.graph, network.graph.outputs[LOSS]
    feeds = stored(network, random_parameters(network, rng)) | random_inputs(workload, 37, rng)
    feeds = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in feeds.items()}
    gradients = interpret(graph, feeds, [*graph.gradients.values()])
    for name, gradient in zip(graph.gradients, gradients, strict=True):
        direction = rng.choice((-1.0, 1.0), gradient.shape)
        step = 1e-5 / np.sqrt(gradient.size)
        up, down = (
            interpret(graph, {**feeds, name: feeds[name] + s * step * direction}, [loss])[0].item()
            for s in (1, -1)
        )
        numeric, along = (up - down) / (2 * step), (gradient * direction).sum()
        assert np.linalg.norm(gradient) > 1e-6, f"{name} hardly matters"
        assert abs(numeric - along) <= 1e-5 * np.linalg.norm(gradient), name


@each
def test_every_program_has_a_plan(workload: Workload[Any]) -> None:
    """At full size: no tensor is too large for the smallest device, and gradients stay apart."""
    for network in (workload.inference(workload.latency), workload.training(workload.full)):
        plan = compile_graph(network.graph)
        check_plan(plan)
        places = [plan.placements[plan.tensors[name]] for name in plan.names("gradient")]
        assert len(set(places)) == len(network.graph.gradients)


def test_whisper_refuses_odd_frames() -> None:
    with pytest.raises(GraphError, match="reshape"):
        WHISPER.inference(WhisperConfig(frames=2999))
