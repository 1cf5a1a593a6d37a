"""Products that write their result in another order, or a part of it; made by rewriting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from engine.graph import Node, TensorType
from engine.kernels.epilogue import Kind
from engine.kernels.moved import Moved
from engine.kernels.operands import is_wide
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, definition, register, require
from engine.ops.epilogue import (
    FACTORS,
    apply_steps,
    check_epilogue,
    epilogue_of,
    operand_kind,
)
from engine.ops.factors import Following, ProductOp

PRODUCTS = ("matmul", "conv2d")
"""Ops whose result may be written so."""


@register
class MovedProduct(Op):
    """The result of `product` (op name, its attributes) from element `start` on, seen as `shape`,
    with its `axes` in another order, and then the steps `after`, as those of an epilogue.

    Operands are `given` ones of the product, whose epilogue's are like the product, not like the
    result; then those of the steps, which are like the result, or scalars.
    """

    name = "moved_product"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (product, own), given = attrs["product"], attrs["given"]
        known = product in PRODUCTS and len(inputs) >= given
        require(known, self.name, f"{product} cannot write so", *inputs)
        shape, axes, start = attrs["shape"], attrs["axes"], attrs["start"]
        made = definition(product).infer(inputs[:given], own)
        good = 0 <= start <= made.size - prod(shape) and sorted(axes) == list(range(len(shape)))
        good = good and is_wide(made.shape[-1]) and Moved.of(shape, axes, start).suits
        rule = f"shape {shape}, axes {axes} and start {start} do not fit"
        require(good, self.name, rule, made)
        result = TensorType(tuple(shape[axis] for axis in axes))
        others = inputs[given:]
        alike = all(operand_kind(t.shape, result.shape) in ("full", "scalar") for t in others)
        require(alike, self.name, f"what follows must be like {result}", *others)
        return check_epilogue(self.name, result, [made] * FACTORS + [*others], _epilogue(attrs))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        (product, own), given = attrs["product"], attrs["given"]
        made = definition(product).reference(inputs[:given], own).reshape(-1)
        kept = made[attrs["start"] :][: prod(attrs["shape"])]
        moved = kept.reshape(attrs["shape"]).transpose(attrs["axes"])
        return apply_steps([moved, *inputs[given:]], attrs["after"])

    def lower(self, node: Node, to: Lowering) -> None:
        (product, own), given = node.attrs["product"], node.attrs["given"]
        op = definition(product)
        assert isinstance(op, ProductOp)
        moved = Moved.of(node.attrs["shape"], node.attrs["axes"], node.attrs["start"])
        others = node.inputs[given:]
        epilogue = epilogue_of(others, node.shape, _epilogue(node.attrs))
        kinds: list[Kind] = ["moved" if kind == "full" else kind for kind in epilogue.operands]
        then = Following(moved, replace(epilogue, operands=tuple(kinds)), others)
        op.lower_followed(node.inputs[:given], own, to, node, then)

    def halves(self, inputs: Sequence[TensorType], attrs: Attrs) -> Sequence[int]:
        product, own = attrs["product"]
        return definition(product).halves(inputs[: attrs["given"]], own)

    def samples(self) -> Iterator[Sample]:
        yield _sample("matmul", ((3, 5), (8, 5)), PLAIN, (3, 2, 4), (1, 0, 2))
        others, like = ((24,), (35, 24), (1,)), (2, 5, 7, 3, 4)
        rows = ((35, 11), (24, 11), *others)
        yield _sample("matmul", rows, FULL, (29, 24), (0, 1), start=5 * 24)
        # Deep enough for split-K, as is the convolution.
        rows = ((35, 640), (24, 640), *others)
        yield _sample("matmul", rows, FULL, (5, 7, 2, 3, 4), (2, 0, 1, 3, 4), after=(like, (1,)))
        residual = {**PLAIN, "epilogue": (("gelu", {}, (0,)), ("mul", {}, (2, 1)))}
        batches, after = ((3, 6, 5), (3, 8, 5), (3, 6, 8)), ((2, 6, 3, 4), (1,))
        yield _sample("matmul", batches, residual, (3, 6, 2, 4), (2, 1, 0, 3), after=after)
        window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)}
        conv = {**window, "epilogue": FULL["epilogue"]}
        image = ((2, 3, 5, 60), (16, 540), (16,), (2, 3, 5, 16), (1,))
        yield _sample("conv2d", image, conv, (4, 5, 2, 8), (0, 2, 1, 3), start=80)


PLAIN = {"transpose_a": False, "transpose_b": True, "epilogue": ()}
FULL = {
    **PLAIN,
    "epilogue": (
        ("add", {}, (0, 1)),
        ("gelu", {}, (4,)),
        ("mul", {}, (5, 3)),
        ("add", {}, (2, 6)),
    ),
}
AFTER: Any = (("mul", {}, (0, 2)), ("sub", {}, (3, 1)), ("gelu", {}, (4,)))
Shapes = tuple[tuple[int, ...], ...]


def _sample(
    product: str,
    operands: Shapes,
    own: dict[str, Any],
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    *,
    start: int = 0,
    after: Shapes = (),
) -> Sample:
    attrs = {"product": (product, own), "shape": shape, "axes": axes, "start": start}
    attrs |= {"given": len(operands), "after": AFTER if after else ()}
    return Sample((*operands, *after), attrs)


def _epilogue(attrs: Attrs) -> Attrs:
    return {"epilogue": attrs["after"]}
