"""Losses, each a scalar of shape [1]: cross-entropy as an op, the others as compositions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import loss as kernels
from engine.kernels.loss import Labelled
from engine.kernels.operands import in_elements
from engine.lower import Lowering
from engine.op import Array, Attrs, Op, Sample, register, require
from engine.ops.pointwise import mul, square, sub, unary
from engine.ops.reduce import reduce_mean, reduce_sum
from engine.ops.softmax import log_softmax
from engine.specialize import row_lanes

SHAPES = ((1, 2), (5, 7), (13, 64), (3, 1031), (150, 5))


def _check(op: Op, logits: TensorType, labels: TensorType, rest: Sequence[TensorType]) -> None:
    inputs = (logits, labels, *rest)
    matrix = logits.dtype == "f32" and len(logits.shape) == 2
    require(matrix, op.name, "logits must be f32 [rows, classes]", *inputs)
    good = labels == TensorType(logits.shape[:1], "u32")
    require(good, op.name, f"labels must be u32 [{logits.shape[0]}]", *inputs)
    fits = all(t == TensorType(logits.shape[1:]) for t in rest)
    require(fits, op.name, f"weights must be f32 [{logits.shape[1]}]", *inputs)


def _labelled(logits: Node, weights: Sequence[Node], attrs: Attrs) -> Labelled:
    rows, classes = logits.shape
    return Labelled(rows, classes, attrs["ignore"], bool(weights))


def _weights(logits: Array, labels: Array, rest: Sequence[Array], attrs: Attrs) -> Array:
    """The weight of each row: 0 unless its label counts."""
    classes = logits.shape[1]
    counts = (labels < classes) & (labels.astype(np.int64) != attrs["ignore"])
    return counts * (rest[0] if rest else np.ones(classes))[np.minimum(labels, classes - 1)]


@register
class CrossEntropy(Op):
    """Weighted mean over rows of -log softmax(logits)[label].

    Operands: logits f32 [rows, classes], labels u32 [rows], perhaps weights f32 [classes], which
    are not negative. Rows whose label is `ignore` (-1: none) or no class do not count; without any
    that count the loss is 0. No gradient flows to the weights.
    """

    name = "cross_entropy"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) in (2, 3), self.name, "takes logits, labels, maybe weights", *inputs)
        _check(self, inputs[0], inputs[1], inputs[2:])
        require(-1 <= attrs["ignore"] < 1 << 32, self.name, "ignore must be -1 or a u32", *inputs)
        return TensorType((1,))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        logits, labels, *rest = inputs
        weights = _weights(logits, labels, rest, attrs)
        shifted = logits - logits.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        picked = logs[np.arange(len(labels)), np.minimum(labels, logits.shape[1] - 1)]
        total = weights.sum()
        return np.array([-(weights * picked).sum() / total if total > 0 else 0.0])

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        logits, labels, *rest = node.inputs
        operands = [logits, labels, upstream, *rest]
        gradient = node.graph.add("cross_entropy_grad", operands, **node.attrs)
        return [gradient, *[None] * (len(node.inputs) - 1)]

    def lower(self, node: Node, to: Lowering) -> None:
        s = _labelled(node.inputs[0], node.inputs[2:], node.attrs)
        parts = to.scratch((s.rows, 2))
        lanes = row_lanes(in_elements(s.classes), to.facts)
        to.dispatch(kernels.row_losses(s, lanes), node.inputs, parts)
        to.dispatch(kernels.weighted_mean(s.rows, row_lanes(s.rows, to.facts)), [parts], node)

    def samples(self) -> Iterator[Sample]:
        for rows, classes in SHAPES:
            logits, labels, weights = (rows, classes), (rows,), (classes,)
            integers = {1: classes + (rows > 1)}
            yield Sample((logits, labels), {"ignore": -1}, -2, 2, integers)
            if rows > 1:
                yield Sample((logits, labels, weights), {"ignore": 1}, 0.1, 3, integers)


@register
class CrossEntropyGrad(Op):
    """Gradient with respect to the logits, from logits, labels, upstream [1], maybe weights."""

    name = "cross_entropy_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) in (3, 4), self.name, "takes 3 or 4 operands", *inputs)
        _check(self, inputs[0], inputs[1], inputs[3:])
        require(inputs[2] == TensorType((1,)), self.name, "upstream must be [1]", *inputs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        logits, labels, upstream, *rest = inputs
        weights = _weights(logits, labels, rest, attrs)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        difference = e / e.sum(axis=1, keepdims=True)
        difference -= labels[:, None] == np.arange(logits.shape[1])
        total = weights.sum()
        return difference * weights[:, None] / (total if total > 0 else 1.0) * upstream

    def lower(self, node: Node, to: Lowering) -> None:
        logits, labels, upstream, *rest = node.inputs
        s = _labelled(logits, rest, node.attrs)
        total = to.scratch((1,))
        kernel = kernels.weight_sum(s, row_lanes(s.rows, to.facts))
        to.dispatch(kernel, [labels, *rest], total)
        kernel = kernels.cross_entropy_grad(s, row_lanes(in_elements(s.classes), to.facts))
        to.dispatch(kernel, [logits, labels, *rest, upstream, total], node)

    def samples(self) -> Iterator[Sample]:
        for rows, classes in SHAPES:
            shapes = ((rows, classes), (rows,), (1,), (classes,))
            integers = {1: classes + 1}
            yield Sample(shapes[:3], {"ignore": 1}, -4, 4, integers)
            yield Sample(shapes, {"ignore": -1}, 0.1, 3, integers)


def cross_entropy(
    logits: Node, labels: Node, weights: Node | None = None, *, ignore_index: int | None = None
) -> Node:
    """Mean cross-entropy of logits [rows, classes] with u32 labels [rows], as PyTorch defines it.

    With `weights` [classes] the mean is weighted. Rows whose label is `ignore_index`, or is not a
    class, do not count.
    """
    operands = [logits, labels, *([weights] if weights is not None else [])]
    ignore = -1 if ignore_index is None else ignore_index
    return logits.graph.add("cross_entropy", operands, ignore=ignore)


def soft_cross_entropy(logits: Node, targets: Node) -> Node:
    """Mean over rows of -sum(targets * log softmax(logits)); both [rows, classes]."""
    terms = mul(log_softmax(logits), targets)
    return reduce_sum(terms, range(len(terms.shape)), scale=-1.0 / logits.shape[0])


def mse(x: Node, target: Node) -> Node:
    """Mean squared difference."""
    return mean_square(sub(x, target))


def l1(x: Node, target: Node) -> Node:
    """Mean absolute difference."""
    difference = sub(x, target)
    return reduce_mean(unary("abs", difference), range(len(difference.shape)))


def mean_square(x: Node) -> Node:
    """Mean of x^2 over all elements."""
    return reduce_mean(square(x), range(len(x.shape)))
