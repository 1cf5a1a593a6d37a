"""Sessions of different programs that have parameters and states in common."""

import numpy as np
import pytest

from engine import ops
from engine.compile import compile_graph
from engine.errors import PlanError
from engine.gpu import Gpu
from engine.graph import Graph
from engine.session import Session
from models.nn import constant

pytestmark = pytest.mark.gpu


def program(rows: int, capacity: int = 9, further: bool = False) -> Graph:
    """Writes scaled rows into a memory, and gives all of it."""
    graph = Graph()
    at, x = graph.input("at", (1,), "u32"), graph.input("x", (rows, 3))
    if further:
        x = ops.mul(x, graph.parameter("further", (3,), constant(1.0)))
    scaled = ops.mul(x, graph.parameter("scale", (3,), constant(1.0)))
    memory = graph.state("memory.rows", (capacity, 3))
    graph.output("all", ops.affine(ops.write_rows(memory, scaled, at), 2.0, 0.0))
    return graph


def test_one_program_reads_what_another_wrote(gpu: Gpu, rng: np.random.Generator) -> None:
    plans = [compile_graph(program(rows), gpu.facts) for rows in (4, 1)]
    many = Session(gpu, plans[0])
    single = Session(gpu, plans[1], sharing=many)
    many.write("scale", np.array([1, 2, 3]))
    want = np.zeros((9, 3))
    for session, rows, at in ((many, 4, 1), (single, 1, 3), (single, 1, 9), (many, 4, 7)):
        x = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
        session.write("x", x)
        session.write("at", np.array([at], np.uint32))
        session.run()
        kept = max(0, min(rows, 9 - at))
        want[at : at + kept] = 2 * x[:kept] * [1, 2, 3]
        assert np.allclose(session.read("all"), want, rtol=1e-6)
    Session(gpu, plans[1]).run()  # one that shares nothing, and leaves the others alone
    single.write("at", np.array([9], np.uint32))
    single.run()
    assert np.allclose(single.read("all"), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (program(1, capacity=8), "lay out 'memory.rows' differently"),
        (program(1, further=True), "must have the same parameter tensors"),
    ],
    ids=["shape", "names"],
)
def test_programs_that_do_not_fit(other: Graph, named: str, gpu: Gpu) -> None:
    owner = Session(gpu, compile_graph(program(4), gpu.facts))
    with pytest.raises(PlanError, match=named):
        Session(gpu, compile_graph(other, gpu.facts), sharing=owner)
