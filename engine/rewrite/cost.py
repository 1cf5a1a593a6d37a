"""What a term costs: an estimate that guides rewriting.

It is the roofline of engine.chunks: a launch plus traffic or arithmetic. Only matrix products count
arithmetic; everything else is bound by traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.chunks import CPU_COSTS, GPU_COSTS
from engine.graph import EXTRA, SOURCES
from engine.op import Attrs, definition
from engine.ops.shape import Move
from engine.specialize import DeviceFacts

if TYPE_CHECKING:
    from engine.rewrite.term import Term

MATRIX_PRODUCTS = ("matmul", "packed_matmul", "packed_matmul_input_grad", "gated_matmul")


def term_cost(term: Term, facts: DeviceFacts) -> float:
    """Estimated nanoseconds of one term; sources and views are free."""
    if term.op in SOURCES or term.op == EXTRA or definition(term.op).view:
        return 0.0
    model = CPU_COSTS if facts.is_cpu else GPU_COSTS
    traffic = term.type.nbytes
    for value in dict.fromkeys(term.inputs):
        # A slice reads what it keeps.
        moves = isinstance(definition(term.op), Move)
        traffic += min(value.type.nbytes, term.type.nbytes) if moves else value.type.nbytes
    op, attrs = term.attrs["product"] if term.op == "moved_product" else (term.op, term.attrs)
    flops = 2 * term.type.size * _inner(term, attrs) if op in MATRIX_PRODUCTS else 0
    return model.launch_ns + max(flops / model.flops_per_ns, traffic / model.bytes_per_ns)


def _inner(term: Term, attrs: Attrs) -> int:
    return term.inputs[0].shape[-2 if attrs.get("transpose_a") else -1]
