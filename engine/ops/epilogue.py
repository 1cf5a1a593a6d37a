"""What products may do to their elements before storing them, as attribute `epilogue`.

It is a tuple of steps (op name, attrs, argument indices) like those of `fused`, made by rewriting
only: index 0 is the product, then come the node's operands after the product's two, then the
steps' results. Each operand has the result's shape, is a row along its last axis, or a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from engine.graph import Node, TensorType
from engine.kernels.epilogue import PLAIN, Epilogue, Kind
from engine.kernels.moved import Moved
from engine.kernels.product import MatmulShape
from engine.kernels.splits import Splits
from engine.kernels.wgsl import Kernel, Step
from engine.lower import Lowering, Operand, Unfinished
from engine.op import Array, Attrs, definition, require
from engine.ops.pointwise import add, emitter
from engine.specialize import MatmulChoice

FACTORS = 2
"""Operands of the product itself."""


def operand_kind(operand: Sequence[int], result: Sequence[int]) -> Kind | None:
    """How an operand of the given shape takes part in a result of the given shape, if it can."""
    if tuple(operand) == tuple(result):
        return "full"
    if prod(operand) == 1:
        return "scalar"
    return "row" if prod(operand) == operand[-1] == result[-1] else None


def check_epilogue(
    op: str, result: TensorType, inputs: Sequence[TensorType], attrs: Attrs
) -> TensorType:
    """The result type; GraphError where operands or steps do not fit the product."""
    for operand in inputs[FACTORS:]:
        fits = operand_kind(operand.shape, result.shape) is not None and operand.dtype == "f32"
        rule = f"an epilogue operand must be like the result {result}, a row of it or a scalar"
        require(fits, op, rule, operand)
    types = [result, *inputs[FACTORS:]]
    for name, own, arguments in attrs["epilogue"]:
        types.append(definition(name).infer([types[a] for a in arguments], own))
    good = not attrs["epilogue"] or types[-1] == result
    require(good, op, f"the epilogue must keep {result}", types[-1])
    return result


def apply_epilogue(product: Array, inputs: Sequence[Array], attrs: Attrs) -> Array:
    """The result in NumPy from the bare product."""
    return apply_steps([product, *inputs[FACTORS:]], attrs["epilogue"])


def apply_steps(values: Sequence[Array], steps: Sequence[Any]) -> Array:
    """The last step's result, or the first value if there are none."""
    known = list(values)
    for name, own, arguments in steps:
        known.append(definition(name).reference([known[a] for a in arguments], own))
    return known[-1] if steps else known[0]


def epilogue_of(operands: Sequence[Node], result: Sequence[int], attrs: Attrs) -> Epilogue:
    """The kernels' form of the epilogue of a product whose result has the given shape."""
    kinds = [operand_kind(value.shape, result) for value in operands]
    steps = tuple(Step(emitter(op, own), tuple(args)) for op, own, args in attrs["epilogue"])
    return Epilogue(tuple(kind for kind in kinds if kind), steps)


def through_epilogue(node: Node, upstream: Node) -> tuple[Node, list[Node | None]]:
    """Gradients of the bare product and of the epilogue's operands."""
    if not node.attrs["epilogue"]:
        return upstream, []
    bare = node.graph.add(node.op, node.inputs[:FACTORS], **{**node.attrs, "epilogue": ()})
    values = [bare, *node.inputs[FACTORS:]]
    first = len(values)
    for op, own, arguments in node.attrs["epilogue"]:
        values.append(node.graph.add(op, [values[a] for a in arguments], **own))
    found: dict[int, Node] = {len(values) - 1: upstream}
    for place in range(len(values) - 1, first - 1, -1):
        if place not in found:
            continue
        op, _, arguments = node.attrs["epilogue"][place - first]
        parts = definition(op).gradient(values[place], found[place])
        for argument, part in zip(arguments, parts, strict=True):
            if part is not None:
                found[argument] = add(found[argument], part) if argument in found else part
    return found[0], [found.get(place) for place in range(1, first)]


def emit_product(
    to: Lowering,
    made: Sequence[Kernel],
    shape: MatmulShape,
    choice: MatmulChoice,
    operands: Sequence[Operand],
    result: Operand,
    epilogue: Epilogue = PLAIN,
    moved: Moved | None = None,
) -> None:
    """Append the launches of a product; with split-K the epilogue's operands go to the second."""
    if len(made) == 1:
        to.dispatch(made[0], operands, result)
        return
    parts = to.scratch((choice.split_k, shape.m, shape.n))
    to.dispatch(made[0], operands[:FACTORS], parts)
    splits = Splits(choice.split_k, shape.m, shape.n, epilogue, moved)
    to.finish_later(Unfinished(made[1], (parts, *operands[FACTORS:]), splits), result)
