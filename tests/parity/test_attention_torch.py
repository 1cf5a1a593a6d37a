"""Attention and its gradients against PyTorch's scaled_dot_product_attention."""

import numpy as np
import pytest
from cases import assert_close
from device_runs import outputs, variant

from engine import ops
from engine.autodiff import gradients
from engine.gpu import Gpu
from engine.graph import Graph

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

BATCH = 2
# heads, kv_heads, queries, keys, width, causal
CASES = {
    "self": (3, 3, 37, 37, 32, False),
    "cross": (2, 2, 11, 35, 12, False),
    "causal": (2, 2, 41, 41, 20, True),
    "grouped": (6, 2, 33, 33, 16, True),
    "decoding": (4, 1, 3, 19, 3, True),
}


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, chosen: str, gpu: Gpu, rng: np.random.Generator) -> None:
    heads, kv_heads, queries, keys, width, causal = CASES[case]
    shapes = [(BATCH, heads, queries, width)] + 2 * [(BATCH, kv_heads, keys, width)]
    values = [rng.normal(0, 1, shape).astype(np.float32) for shape in (*shapes, shapes[0])]
    graph = Graph()
    # The batch is folded into the heads.
    nodes = [
        graph.input(name, (value.shape[0] * value.shape[1], *value.shape[2:]))
        for name, value in zip(("q", "k", "v", "g"), values, strict=True)
    ]
    y = graph.output("y", ops.attention(*nodes[:3], causal=causal))
    for name, grad in zip(("dq", "dk", "dv"), gradients(y, nodes[:3], nodes[3]), strict=True):
        graph.output(name, grad)
    feeds = {n.name: v.reshape(n.shape) for n, v in zip(nodes, values, strict=True)}
    got = outputs(gpu, graph, feeds, variant(gpu, chosen))

    q, k, v = (torch.from_numpy(x).double().requires_grad_() for x in values[:3])
    options = {"is_causal": causal}
    if causal and queries != keys:
        # PyTorch aligns its causal mask with the first key; here the last query sees all keys.
        options = {"attn_mask": torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)}
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, enable_gqa=heads != kv_heads, **options
    )
    want.backward(torch.from_numpy(values[3]).double())
    results = {"y": want.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    for name, wanted in results.items():
        assert_close(got[name], wanted.numpy().reshape(got[name].shape), 1e-5, name)
