"""Where the time of each workload goes, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.bench.families import by_family, floor_us, worst
from app.bench.record import Ceilings, KernelCost, Phase, RunRecord
from app.report.page import Table
from app.report.text import number
from models.zoo import WORKLOADS

HEADLINES = {
    Phase.INFERENCE: "inference",
    Phase.MINIMAL: "minimal latency",
    Phase.TRAINING: "forward + loss + backward",
}


def profiles(records: Iterable[RunRecord]) -> Iterator[Table]:
    """Per workload: time by family, and the kernels that lose most against the ceilings."""
    for record in records:
        if record.ceilings is None:
            continue
        families, losers = [], []
        for phase in record.phases:
            costs = phase.kernels or ()
            whole = sum(cost.us for cost in costs)
            families += [_cost(phase.phase, c, whole, record.ceilings) for c in by_family(costs)]
            most = worst(costs, record.ceilings)
            losers += [_cost(phase.phase, c, whole, record.ceilings) for c in most]
        name, ceilings = WORKLOADS[record.workload].name, record.ceilings
        source = "measured" if ceilings.measured else "as given"
        note = (
            f"Ceilings, {source}: {ceilings.gflops:.0f} GFLOP/s, {ceilings.gbs:.0f} GB/s. "
            "Lost: time beyond what the ceilings allow."
        )
        columns = (">launches", ">us", ">share", ">GFLOP/s", ">of ceiling", ">GB/s")
        last = (">of ceiling", ">lost us")
        yield Table(f"{name}: time by family", ("phase", "family", *columns, *last), families, note)
        yield Table(f"{name}: worst kernels", ("phase", "kernel", *columns, *last), losers, note)


def _cost(phase: Phase, cost: KernelCost, whole: float, ceilings: Ceilings) -> tuple[str, ...]:
    seconds = max(cost.us, 1e-3) / 1e6
    gflops, gbs = cost.flops / seconds / 1e9, cost.nbytes / seconds / 1e9
    return (
        HEADLINES[phase],
        cost.label,
        str(cost.launches),
        number(cost.us),
        _percent(cost.us / whole if whole else 0.0),
        number(gflops),
        _percent(gflops / ceilings.gflops),
        number(gbs),
        _percent(gbs / ceilings.gbs),
        number(max(0.0, cost.us - floor_us(cost, ceilings))),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
