"""Matrices of tokens whose columns hold heads side by side: heads joined, and turned by positions.

Made by rewriting and by the gradient of `engine.ops.packed_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from engine.graph import Node, TensorType
from engine.kernels import heads as kernels
from engine.kernels.heads import Tokens, Turn
from engine.kernels.splits import Splits
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, register, require

T = TypeVar("T")


def _turned(x: Array, cosine: Array, sine: Array, attrs: Attrs) -> Array:
    """X [images * tokens, columns] with the heads in its first `turned` columns rotated."""
    tokens, half = cosine.shape
    columns = attrs["turned"]
    sine = -sine if attrs["inverse"] else sine
    heads = x[:, :columns].reshape(-1, tokens, columns // (2 * half), 2, half)
    low, high = heads[..., 0, :], heads[..., 1, :]
    c, s = cosine[:, None], sine[:, None]
    rotated = np.stack([low * c - high * s, high * c + low * s], axis=-2)
    return np.concatenate([rotated.reshape(len(x), columns), x[:, columns:]], axis=1)


def _check_angles(op: str, x: TensorType, angles: Sequence[TensorType], attrs: Attrs) -> None:
    cosine, sine = (t.shape for t in angles)
    good = cosine == sine and len(cosine) == 2 and x.shape[0] % cosine[0] == 0
    require(good, op, "cos and sin must be [tokens, width / 2]", x, *angles)
    fits = 0 < attrs["turned"] <= x.shape[1] and attrs["turned"] % (2 * cosine[1]) == 0
    require(fits, op, f"the first {attrs['turned']} columns are not whole heads", x, *angles)


@register
class RopeColumns(Op):
    """`rope` of the heads in the first `turned` columns of x [images * tokens, columns].

    Angles as cos and sin [tokens, width / 2]; other columns stay. `inverse` rotates backwards.
    """

    name = "rope_columns"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 3, self.name, "takes x, cos and sin", *inputs)
        good = all(t.dtype == "f32" and len(t.shape) == 2 for t in inputs)
        require(good, self.name, "operands must be f32 matrices", *inputs)
        width = 2 * inputs[1].shape[1]
        require(inputs[0].shape[1] % width == 0, self.name, "x must hold whole heads", *inputs)
        _check_angles(self.name, inputs[0], inputs[1:], attrs)
        return inputs[0]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, cosine, sine = inputs
        return _turned(x, cosine, sine, attrs)

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        back = {**node.attrs, "inverse": not node.attrs["inverse"]}
        return [node.graph.add(self.name, [upstream, *node.inputs[1:]], **back), None, None]

    def lower(self, node: Node, to: Lowering) -> None:
        tokens, half = node.inputs[1].shape
        shape = Tokens(node.shape[0], tokens, node.shape[1], 2 * half)
        turn = Turn(node.attrs["turned"], node.attrs["inverse"])
        x, *angles = node.inputs
        rest = to.take_unfinished(x, shape.kind, 4)
        kernel = kernels.turned(shape, turn, rest.splits if rest else None)
        given, written = (rest.reads, [x, node]) if rest else ([x], [node])
        to.dispatch(kernel, [*given, *angles], *written)

    def samples(self) -> Iterator[Sample]:
        for x, angles, turned, inverse in (
            ((1, 2), (1, 1), 2, False),
            ((5, 18), (5, 3), 12, True),
            ((6, 48), (3, 8), 32, False),
        ):
            yield Sample((x, angles, angles), {"turned": turned, "inverse": inverse})


@register
class JoinHeads(Op):
    """[images * tokens, heads * width] from parts [images * heads_k, tokens, width], side by side.

    With `turned` > 0, cos and sin [tokens, width / 2] follow the parts: see `rope_columns`.
    """

    name = "join_heads"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        parts = self._parts(inputs, attrs)
        good = 1 <= len(parts) <= 5 and all(t.dtype == "f32" for t in inputs)
        require(good, self.name, "takes 1 to 5 f32 parts", *inputs)
        same = all(len(t.shape) == 3 and t.shape[1:] == parts[0].shape[1:] for t in parts)
        same = same and all(t.shape[0] % attrs["images"] == 0 for t in parts)
        rule = f"parts must be [{attrs['images']} * heads, tokens, width]"
        require(same, self.name, rule, *inputs)
        _, tokens, width = parts[0].shape
        heads = sum(t.shape[0] for t in parts) // attrs["images"]
        result = TensorType((attrs["images"] * tokens, heads * width))
        if attrs["turned"]:
            angles = inputs[len(parts) :]
            _check_angles(self.name, result, angles, attrs)
            fits = angles[0].shape == (tokens, width // 2) and width % 2 == 0
            require(fits, self.name, "cos and sin must be [tokens, width / 2]", *angles)
        return result

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        parts, images = self._parts(inputs, attrs), attrs["images"]
        tokens, width = parts[0].shape[1:]
        split = [x.reshape(images, -1, tokens, width).swapaxes(1, 2) for x in parts]
        joined = np.concatenate(split, axis=2).reshape(images * tokens, -1)
        if not attrs["turned"]:
            return joined
        cosine, sine = inputs[len(parts) :]
        return _turned(joined, cosine, sine, attrs)

    def lower(self, node: Node, to: Lowering) -> None:
        parts = self._parts(node.inputs, node.attrs)
        _, tokens, width = parts[0].shape
        shape = Tokens(node.shape[0], tokens, node.shape[1], width)
        heads = [part.shape[0] // node.attrs["images"] for part in parts]
        columns = node.attrs["turned"]
        turn = Turn(columns, node.attrs["inverse"]) if columns else None
        reads: list[Operand] = []
        finished: list[Operand] = []
        splits: list[Splits | None] = []
        bound = len(node.inputs) + 1
        for part in parts:
            rest = to.take_unfinished(part, shape.kind, bound)
            splits.append(rest.splits if rest else None)
            reads += rest.reads if rest else [part]
            finished += [part] if rest else []
            bound += len(rest.reads) if rest else 0
        angles = node.inputs[len(parts) :]
        to.dispatch(kernels.joined(shape, heads, turn, splits), [*reads, *angles], *finished, node)

    @staticmethod
    def _parts(inputs: Sequence[T], attrs: Attrs) -> Sequence[T]:
        """The operands without the angles."""
        return inputs[:-2] if attrs["turned"] else inputs

    def samples(self) -> Iterator[Sample]:
        plain = {"turned": 0, "inverse": False}
        yield Sample(((3, 5, 7),), {**plain, "images": 1})
        yield Sample(((4, 5, 8), (2, 5, 8), (2, 5, 8)), {**plain, "images": 2})
        turned = {"images": 1, "turned": 18, "inverse": True}
        yield Sample(((2, 5, 6), (1, 5, 6), (1, 5, 6), (5, 3), (5, 3)), turned)
        turned = {"images": 2, "turned": 32, "inverse": False}
        yield Sample(((4, 3, 16), (2, 3, 16), (3, 8), (3, 8)), turned)


def join_heads(parts: Sequence[Node], images: int) -> Node:
    """Parts [images * heads_k, tokens, width] side by side in [images * tokens, heads * width]."""
    return parts[0].graph.add("join_heads", parts, images=images, turned=0, inverse=False)
