"""Further results of ops that produce more than one tensor; see `engine.op.Op.extras`."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import GraphError
from engine.graph import EXTRA, SOURCES, Node, TensorType
from engine.kernels.layout import strided_copy
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, definition, register, require


@register
class Extra(Op):
    """Further result `index`, of type `dtype`[`shape`], of the op that computes the operand.

    Its buffer is the one that the producer's lowering writes; nothing is launched.
    """

    name = EXTRA

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 1, self.name, "takes the node whose op has the result", *inputs)
        require(attrs["index"] >= 0, self.name, "index must not be negative", *inputs)
        return TensorType(tuple(attrs["shape"]), attrs["dtype"])

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        raise AssertionError("the interpreter takes further results from their producer")

    def lower(self, node: Node, to: Lowering) -> None:
        written = to.extra(node.inputs[0], node.attrs["index"])
        assert written is not None
        if written != to.buffer(node):
            to.dispatch(strided_copy("copy", (node.type.size,), (1,), 0), [written], node)


def extra(node: Node, index: int) -> Node:
    """Further result `index` of a node's op; GraphError if the op has none such."""
    types: tuple[TensorType, ...] = ()
    if node.op not in SOURCES:
        operands = [value.type for value in node.inputs]
        types = definition(node.op).extras(operands, node.attrs)
    if not 0 <= index < len(types):
        raise GraphError(f"{node.op} has {len(types)} further results, there is no {index}")
    kind = types[index]
    return node.graph.add(EXTRA, [node], index=index, shape=kind.shape, dtype=kind.dtype)
