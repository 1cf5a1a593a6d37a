"""Measured costs of a plan's launches."""

import numpy as np
import pytest
from timed_devices import device_with

from engine import ops
from engine.chunks import cut
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.graph import Graph
from engine.profile import measured_costs, scaled
from engine.session import Session

pytestmark = pytest.mark.gpu

HEAVY = 512


def uneven(gpu: Gpu) -> Session:
    """Small softmaxes around one product that outweighs them by far."""
    graph = Graph()
    small, large = graph.input("small", (8, 8)), graph.input("large", (HEAVY, HEAVY))
    before = small
    for _ in range(4):
        before = ops.softmax(before)
    graph.output("before", before)
    graph.output("product", ops.matmul(large, large))
    after = graph.input("other", (16, 16))
    for _ in range(4):
        after = ops.softmax(after)
    graph.output("after", after)
    session = Session(gpu, compile_graph(graph, gpu.facts))
    session.write("large", np.full((HEAVY, HEAVY), 0.5, np.float32))
    return session


def check(gpu: Gpu) -> None:
    session = uneven(gpu)
    costs = measured_costs(session, repeats=3)
    assert costs is not None and len(costs) == len(session.plan.dispatches)
    assert min(costs) >= 0 and all(np.isfinite(costs))
    labels = [d.kernel.label for d in session.plan.dispatches]
    heaviest = labels[int(np.argmax(costs))]
    # A CPU device is shared with everything else on the machine: a pause falls where it likes.
    assert gpu.facts.is_cpu or str(HEAVY) in heaviest, heaviest
    assert all(last > first for first, last in cut(costs, 3))
    assert session.read("product")[0, 0] == HEAVY / 4


def test_the_heavy_kernel_is_the_heaviest_between_stamps_in_one_pass(gpu: Gpu) -> None:
    if not gpu.stamps_inside_passes:
        pytest.skip("this adapter has no timestamps inside passes")
    check(gpu)


def test_the_heavy_kernel_is_the_heaviest_in_passes_of_their_own(gpu: Gpu) -> None:
    check(device_with(gpu, ["timestamp-query"]))


def test_without_timestamps_nothing_is_measured(gpu: Gpu) -> None:
    session = uneven(device_with(gpu, []))
    assert measured_costs(session) is None
    assert not session.read("product").any(), "nor run"


@pytest.mark.parametrize("features", [["timestamp-query"], None])
def test_plans_longer_than_the_queries_are_measured_in_pieces(
    gpu: Gpu, features: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.profile.MOST_QUERIES", 4)
    session = uneven(device_with(gpu, features) if features else gpu)
    assert len(session.commands) >= 7
    costs = measured_costs(session, repeats=1)
    assert costs is not None and len(costs) == len(session.commands)
    heaviest = session.plan.dispatches[int(np.argmax(costs))].kernel.label
    assert gpu.facts.is_cpu or str(HEAVY) in heaviest, heaviest


def test_costs_sum_to_the_whole_run() -> None:
    assert scaled([1.0, 3.0, 0.0], 8.0) == [2.0, 6.0, 0.0]
    assert scaled([0.0, 0.0], 6.0) == [3.0, 3.0]


def test_no_repeats_are_refused(gpu: Gpu) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        measured_costs(uneven(gpu), repeats=0)
