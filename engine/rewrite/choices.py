"""What a rule must know of the kernels that a device will be given."""

from __future__ import annotations

from engine.ops.prologue import PRODUCTS
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms
from engine.specialize import choose_matmul


def in_one_launch(terms: Terms, value: Term) -> bool:
    """Whether nothing is left for a reader of the value to finish: it is no product, or one that
    the device does not split along k.
    """
    if value.op not in PRODUCTS:
        return True
    if len(value.shape) != 2:
        return False
    transposed = value.attrs.get("transpose_a", False)
    layout = "tn"[not transposed] + "nt"[value.attrs.get("transpose_b", True)]
    k = value.inputs[0].shape[0 if transposed else 1]
    columns = value.shape[1] * (2 if value.op == "gated_matmul" else 1)
    return choose_matmul(1, value.shape[0], columns, k, terms.facts, layout).split_k == 1
