"""No kernel's index leaves its array: on Dawn nothing would stop it."""

from dataclasses import replace

import numpy as np
import pytest
from bounds import watching
from cases import Feeds, operands
from device_runs import outputs, variant

from engine.bind_groups import BufferRange
from engine.gpu import Gpu, Launch
from engine.graph import Graph
from engine.kernels.wgsl import bindings, entry_point
from engine.op import definition
from engine.pipelines import Program

pytestmark = pytest.mark.gpu


OPS = (
    *("gather", "scatter_add", "write_rows", "cached_attention", "cross_entropy"),
    *("matmul", "conv2d", "conv2d_input_grad", "attention_grad", "max_pool2d", "upsample_bilinear"),
)
"""Indices from data, and shapes that no tile divides."""


def test_no_kernel_leaves_its_arrays(gpu: Gpu, rng: np.random.Generator) -> None:
    """The last sample of some ops, by a GPU's kernels."""
    facts = variant(gpu, "gpu")
    facts = replace(facts, max_storage_buffers=facts.max_storage_buffers - 1)
    with watching(gpu) as watched:
        for op in OPS:
            graph, feeds = Graph(), Feeds()
            sample = list(definition(op).samples())[-1]
            graph.output(op, graph.add(op, operands(graph, op, sample, feeds, rng), **sample.attrs))
            outputs(gpu, graph, feeds, facts, optimize=False)
        assert len(watched.programs) >= len(OPS)
        assert watched.left() == []


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
