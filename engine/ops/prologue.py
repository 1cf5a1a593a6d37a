"""Products of few rows that compute the rows themselves as they read them; made by rewriting.

With few rows a launch costs more than what it does. So a product of at most GEMV_ROWS rows can
normalise them, or merge attention's slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from engine.graph import Node, TensorType
from engine.kernels.decode_attention import MERGING, MergedRow
from engine.kernels.matmul import matmul as matmul_kernels
from engine.kernels.operands import element
from engine.kernels.product import Access, RowNorm
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, definition, register, require
from engine.ops.cached_heads import lower_slices
from engine.ops.factors import ProductOp
from engine.specialize import GEMV_ROWS, choose_for_rows

PRODUCTS = ("matmul", "packed_matmul", "gated_matmul")
"""Ops whose rows may be computed."""
ROWS = ("rms_norm", "decode_attention")
"""Ops that may compute them; of the last one, that merges the slices."""


@register
class Prologue(Op):
    """The product `product` of the rows `rows`: both (op name, its attributes).

    Operands are those of the op of the rows, `given` of them, then those of the product but for
    its first, which is the op's result seen as a matrix of at most GEMV_ROWS rows.
    """

    name = "prologue"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (made, _), (product, own) = attrs["rows"], attrs["product"]
        known = made in ROWS and product in PRODUCTS and len(inputs) > attrs["given"]
        require(known, self.name, f"{product} cannot compute its rows by {made}", *inputs)
        rows, others = _rows(inputs, attrs), inputs[attrs["given"] :]
        require(rows.shape[0] <= GEMV_ROWS, self.name, f"has over {GEMV_ROWS} rows", rows)
        plain = not own.get("transpose_a", False) and own.get("transpose_b", True)
        require(plain, self.name, "the matrix must be [n, k]", *inputs)
        return definition(product).infer([rows, *others], own)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        given, (made, own), (product, rest) = attrs["given"], attrs["rows"], attrs["product"]
        rows = definition(made).reference(inputs[:given], own).reshape(-1, inputs[given].shape[1])
        return definition(product).reference([rows, *inputs[given:]], rest)

    def lower(self, node: Node, to: Lowering) -> None:
        (made, how), (name, own) = node.attrs["rows"], node.attrs["product"]
        given, others = node.inputs[: node.attrs["given"]], node.inputs[node.attrs["given"] :]
        rows = _rows([value.type for value in node.inputs], node.attrs)
        op = definition(name)
        assert isinstance(op, ProductOp)
        product = op.factors(rows, others, own, to)
        choice = choose_for_rows(rows.shape[0], product.shape.n, rows.shape[1], to.facts)
        access, (x, *further) = _reading(product.access, made, how, rows, given, to)
        (kernel,) = matmul_kernels(product.shape, choice, product.epilogue, access)
        to.dispatch(kernel, [x, product.matrix, *further, *product.others], node)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        (name, own), given = attrs["product"], attrs["given"]
        found = definition(name).halves([_rows(inputs, attrs), *inputs[given:]], own)
        return [given - 1 + number for number in found]

    def samples(self) -> Iterator[Sample]:
        norm = ("rms_norm", {"eps": 1e-2})
        for m, n, k in ((1, 2, 1), (3, 6, 67), (4, 70, 640)):
            yield _sample(((m, k), (k,)), norm, (n, k), PLAIN)
        for m, n, k in ((1, 34, 40), (2, 6, 67)):
            yield _sample(((m, k),), norm, (n, k), PLAIN)
            yield _sample(((m, k), (k,)), norm, (n, k), ("packed_matmul", {}), (3, k), (5, k))
            yield _sample(((m, k), (k,)), norm, (n, k), ("gated_matmul", {}), (n, k))
        steps: Any = (("add", {}, (0, 1)), ("add", {}, (2, 3)))
        epilogue = ("matmul", {**PLAIN[1], "epilogue": steps})
        yield _sample(((2, 20), (20,)), norm, (7, 20), epilogue, (7,), (2, 7))
        for keys in (70, 1100):
            how = {"heads": 4, "start": 8, "scale": 0.3}
            given = ((1, 40), (2, keys, 8), (2, keys, 8), (1,), (keys, 4), (keys, 4))
            sample = _sample(given, ("decode_attention", how), (9, 32), epilogue, (9,), (1, 9))
            yield replace(sample, integers={3: keys})


PLAIN = ("matmul", {"transpose_a": False, "transpose_b": True, "epilogue": ()})


def _rows(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """The type of the rows."""
    (made, own), given = attrs["rows"], attrs["given"]
    made_of = definition(made).infer(inputs[:given], own)
    k = inputs[given].shape[-1]
    require(made_of.size % k == 0, "prologue", f"rows of {k} do not fill", made_of)
    return TensorType((made_of.size // k, k))


def _reading(
    access: Access, made: str, how: Attrs, rows: TensorType, given: Sequence[Node], to: Lowering
) -> tuple[Access, list[Operand]]:
    """How a product's kernel reads its rows, and what it binds for them."""
    if made == "rms_norm":
        further = (("g", element(rows.shape[1])),) if len(given) > 1 else ()
        norm, name = RowNorm(how["eps"], weighted=len(given) > 1), f"normed_{access.name}"
        return replace(access, name=name, norm=norm, further=further), [*given]
    shape, operands = lower_slices(given, how, to)
    return replace(access, a=MergedRow(shape), further=MERGING), operands


def _sample(
    given: tuple[tuple[int, ...], ...],
    rows: tuple[str, dict[str, Any]],
    weight: tuple[int, int],
    product: tuple[str, dict[str, Any]],
    *others: tuple[int, ...],
) -> Sample:
    attrs = {"rows": rows, "product": product, "given": len(given)}
    return Sample((*given, weight, *others), attrs)
