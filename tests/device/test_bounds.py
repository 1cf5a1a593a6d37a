"""No kernel's index leaves its array, or reads what no invocation wrote: nothing would stop it."""

from dataclasses import replace

import numpy as np
import pytest
from bounds import watching
from cases import Feeds, operands, values_of_ops
from device_runs import outputs, variant

from engine.bind_groups import BufferRange
from engine.gpu import Gpu, Launch
from engine.graph import Graph
from engine.kernels.wgsl import bindings, entry_point
from engine.op import definition
from engine.pipelines import Program

pytestmark = pytest.mark.gpu


OPS = [op for op in values_of_ops() if not definition(op).view]


@pytest.mark.parametrize("op", OPS)
def test_no_kernel_leaves_its_arrays_or_needs_clear_memory(
    op: str, gpu: Gpu, rng: np.random.Generator
) -> None:
    """The last sample, by a GPU's kernels."""
    facts = variant(gpu, "gpu")
    facts = replace(facts, max_storage_buffers=facts.max_storage_buffers - 1)
    graph, feeds = Graph(), Feeds()
    sample = list(definition(op).samples())[-1]
    graph.output(op, graph.add(op, operands(graph, op, sample, feeds, rng), **sample.attrs))
    usual = outputs(gpu, graph, feeds, facts, optimize=False)
    with watching(gpu) as watched:
        found = outputs(gpu, graph, feeds, facts, optimize=False)
        assert watched.programs and watched.left() == []
    assert found[op].tobytes() == usual[op].tobytes()


SHARED = """
struct Rows { rows: array<array<f32, 5>, 4> }
var<workgroup> line: array<f32, 4>;
var<workgroup> blocks: array<Rows, 2>;
"""


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ("x[t]", "x[t + 1u]"),
        ("line[3u - t]", "line[2u - t]"),
        ("blocks[1].rows[3u - t][t]", "blocks[1].rows[t + 1u][t]"),
        ("blocks[t / 2u].rows[0][t + 1u]", "blocks[t / 2u].rows[0][t + 2u]"),
    ],
)
def test_what_leaves_is_found(within: str, beyond: str, gpu: Gpu) -> None:
    four = BufferRange(gpu.storage_buffer(16), 0, 16)
    result = BufferRange(gpu.storage_buffer(16), 0, 16)
    for read, expected in ((within, []), (beyond, ["it"])):
        source = bindings([("x", "f32")], [("y", "f32")]) + SHARED
        source += entry_point(4, f"y[t] = {read};")
        launch = Launch(Program(source, 1, 1, label="it"), [four], [result], (1, 1, 1))
        with watching(gpu) as watched:
            encoder = gpu.device.create_command_encoder()
            gpu.replay(encoder, gpu.commands([launch]))
            gpu.submit(encoder)
            assert watched.left() == expected
