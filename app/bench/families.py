"""Where a plan's time goes: launches of the same kernel together, and kernels by family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from app.bench.record import Ceilings, KernelCost
from engine.kernels.merged import SEPARATOR
from engine.plan import Plan

FAMILIES = (
    ("convolution", r"conv2d_n"),
    ("convolution, input gradient", r"conv2d_input_grad"),
    ("convolution, weight gradient", r"conv2d_weight_grad"),
    ("matrix product", r"(normed_)?(gated_)?matmul_(nn|nt|tn|tt)"),
    ("attention gradient", r"attention_(delta|grad)"),
    ("attention", r"attention"),
    ("normalisation gradient", r"(rms|layer|group)_norm_grad|norm_affine_grad"),
    ("normalisation", r"(rms|layer|group)_norm"),
    ("reduction", r"(sum|mean|max|matmul_sum_splits|weight_sum|weighted_mean)$"),
    ("loss", r"row_losses|cross_entropy"),
    ("embedding", r"gather|scatter_add|links"),
    ("pooling", r"(max|avg)_(un)?pool|global_avg"),
    ("data movement", r"(permute|strided|slice|concat|join_heads|expand|upsample\w*|pad|copy)$"),
)
"""By the beginning of a kernel's label; whatever else there is works element by element."""
POINTWISE = "element by element"


def family(label: str) -> str:
    """The family of a kernel; of several in one launch the first of these in the table, which has
    the longest of them first.
    """
    kernels = label.split(SEPARATOR)
    found = (name for name, start in FAMILIES if any(re.match(start, one) for one in kernels))
    return next(found, POINTWISE)


def kernel_costs(plan: Plan, costs_ns: Sequence[float]) -> list[KernelCost]:
    """Launches of equal kernels added up, dearest first; `costs_ns` by dispatch."""
    rows: dict[tuple[str, str], list[float]] = {}
    for dispatch, nanoseconds in zip(plan.dispatches, costs_ns, strict=True):
        kernel = dispatch.kernel
        row = rows.setdefault((kernel.label, kernel.source), [0, 0, 0, 0])
        row[0] += 1
        row[1] += nanoseconds / 1e3
        row[2] += kernel.flops
        row[3] += plan.binding_bytes(dispatch)
    found = [
        KernelCost(label, family(label), int(launches), us, int(flops), int(nbytes))
        for (label, _), (launches, us, flops, nbytes) in rows.items()
    ]
    return sorted(found, key=lambda cost: -cost.us)


def by_family(costs: Iterable[KernelCost]) -> list[KernelCost]:
    """The same added up by family, dearest first; labels are the families."""
    rows: dict[str, KernelCost] = {}
    for cost in costs:
        old = rows.get(cost.family, KernelCost(cost.family, cost.family, 0, 0.0, 0, 0))
        rows[cost.family] = KernelCost(
            cost.family,
            cost.family,
            old.launches + cost.launches,
            old.us + cost.us,
            old.flops + cost.flops,
            old.nbytes + cost.nbytes,
        )
    return sorted(rows.values(), key=lambda cost: -cost.us)


def floor_us(cost: KernelCost, ceilings: Ceilings) -> float:
    """Least microseconds that arithmetic or memory traffic leave to a kernel."""
    return max(cost.flops / (1e3 * ceilings.gflops), cost.nbytes / (1e3 * ceilings.gbs))


def worst(costs: Iterable[KernelCost], ceilings: Ceilings, count: int = 3) -> list[KernelCost]:
    """Kernels that lose most time against the ceilings."""
    return sorted(costs, key=lambda cost: floor_us(cost, ceilings) - cost.us)[:count]
