"""One token against a cache, straight from the product that makes its queries, keys and values.

Heads lie side by side in some columns of a row; the kernels that store or use them turn them by
their position. Made by rewriting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.graph import Node, TensorType
from engine.kernels import decode_attention as kernels
from engine.kernels.attention import AttentionShape
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, definition, register, require


def _write_kernel(heads: int, capacity: int, width: int, start: int, angles: int | None) -> Kernel:
    """One invocation per pair (j, j + half) of a head, or per element if nothing is turned."""
    each = width if angles is None else width // 2
    lines = [
        f"let j = i % {each}u;",
        f"let row = position[0]; if (row >= {capacity}u) {{ return; }}",
        f"let own = {start}u + i / {each}u * {width}u + j;",
        f"let place = (i / {each}u * {capacity}u + row) * {width}u + j;",
    ]
    reads = [("x", "f32"), ("position", "u32")]
    if angles is None:
        lines.append("y[place] = x[own];")
    else:
        reads += [("cosine", "f32"), ("sine", "f32")]
        lines += [
            f"let angle = min(row, {angles - 1}u) * {each}u + j;",
            "let c = cosine[angle]; let s = sine[angle];",
            f"let low = x[own]; let high = x[own + {each}u];",
            "y[place] = low * c - high * s;",
            f"y[place + {each}u] = high * c + low * s;",
        ]
    count = heads * each
    source = bindings(reads, [("y", "f32")]) + linear_main(count, 64, "\n".join(lines))
    return Kernel("write_heads", source, linear_grid(count, 64), 6 * count)


def _heads(x: Array, heads: int, width: int, start: int, angles: Sequence[Array]) -> Array:
    """Columns of a row as [heads, 1, width], turned by angles and a position if there are any."""
    split = x[:, start : start + heads * width].reshape(heads, 1, width)
    return definition("rope").reference([split, *angles], {"inverse": False}) if angles else split


def _check(
    op: str, x: TensorType, heads: int, width: int, start: int, angles: Sequence[TensorType]
) -> None:
    fits = x.dtype == "f32" and len(x.shape) == 2 and x.shape[0] == 1
    fits = fits and 0 <= start <= x.shape[1] - heads * width
    require(fits, op, f"x must be one f32 row that holds {heads} heads from column {start}", x)
    good = not angles or (len(angles) == 2 and angles[0] == angles[1])
    good = good and all(len(t.shape) == 2 and 2 * t.shape[1] == width for t in angles)
    require(good, op, "cos and sin must be [positions, width / 2]", x, *angles)


@register
class WriteHeads(Op):
    """y [heads, capacity, width] with y[:, position] = the heads in a row x [1, columns].

    They begin at column `start`; cos and sin [positions, width / 2], if given, turn them. Operands:
    y, x, position u32 [1] and perhaps the angles. A row beyond the capacity is dropped.
    """

    name = "write_heads"
    in_place = True

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) in (3, 5), self.name, "takes y, x, position and angles", *inputs)
        y, x, position, *angles = inputs
        good = y.dtype == "f32" and len(y.shape) == 3 and position == TensorType((1,), "u32")
        require(good, self.name, "y must be f32 [heads, capacity, width]", *inputs)
        _check(self.name, x, y.shape[0], y.shape[2], attrs["start"], angles)
        return y

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        y, x, position, *angles = inputs
        heads, capacity, width = y.shape
        turning = [*angles, position] if angles else []
        result, row = y.copy(), int(position[0])
        if row < capacity:
            result[:, row] = _heads(x, heads, width, attrs["start"], turning)[:, 0]
        return result

    def lower(self, node: Node, to: Lowering) -> None:
        heads, capacity, width = node.shape
        _, x, position, *angles = node.inputs
        rows = angles[0].shape[0] if angles else None
        kernel = _write_kernel(heads, capacity, width, node.attrs["start"], rows)
        to.dispatch(kernel, [x, position, *angles], node)

    def samples(self) -> Iterator[Sample]:
        bounds = {2: 5}
        yield Sample(((1, 4, 3), (1, 3), (1,)), {"start": 0}, integers=bounds)
        for start in (0, 7):
            shapes = ((2, 5, 6), (1, 20), (1,), (4, 3), (4, 3))
            yield Sample(shapes, {"start": start}, integers=bounds)


@register
class DecodeAttention(Op):
    """y [1, heads * width] = softmax(scale q k^T) v per head, of the q that lie in a row x.

    Operands: x [1, columns], whose heads begin at column `start`; k and v [kv_heads, keys, width];
    position u32 [1], up to which keys are seen; cos and sin [positions, width / 2], by which q is
    turned. The width is 8 n, `start` 4 n; see `engine.kernels.decode_attention.suits`.
    """

    name = "decode_attention"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(len(inputs) == 6, self.name, "takes x, k, v, position, cos and sin", *inputs)
        x, k, v, position, *angles = inputs
        good = k == v and k.dtype == "f32" and len(k.shape) == 3
        require(good, self.name, "k and v must be alike: f32 [kv_heads, keys, width]", k, v)
        scalar = position == TensorType((1,), "u32")
        require(scalar, self.name, "the position must be u32 [1]", position)
        heads, width = attrs["heads"], k.shape[2]
        fits = heads % k.shape[0] == 0 and width % 8 == 0 and attrs["start"] % 4 == 0
        require(fits, self.name, f"{heads} heads from column {attrs['start']} do not fit", *inputs)
        _check(self.name, x, heads, width, attrs["start"], angles)
        return TensorType((1, heads * width))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        x, k, v, position, *angles = inputs
        q = _heads(x, attrs["heads"], k.shape[2], attrs["start"], [*angles, position])
        own = {"scale": attrs["scale"]}
        return definition("cached_attention").reference([q, k, v, position], own).reshape(1, -1)

    def lower(self, node: Node, to: Lowering) -> None:
        shape, operands = lower_slices(node.inputs, node.attrs, to)
        to.dispatch(kernels.merged_attention(shape), operands, node)

    def samples(self) -> Iterator[Sample]:
        for columns, start, heads, kv, rows in (
            (16, 0, 2, (1, 5, 8), 3),
            (120, 8, 6, (2, 150, 16), 150),
            (64 * 9 + 4, 4, 9, (3, 70, 64), 70),
        ):
            angles = (rows, kv[2] // 2)
            attrs = {"heads": heads, "start": start, "scale": kv[2] ** -0.5}
            shapes = ((1, columns), kv, kv, (1,), angles, angles)
            yield Sample(shapes, attrs, integers={3: kv[1]})


def shape_of(heads: int, keys: Sequence[int], scale: float) -> AttentionShape:
    """Attention of one query over cached keys of shape [kv_heads, keys, width]."""
    kv_heads, count, width = keys
    return AttentionShape(heads, kv_heads, 1, count, width, True, scale, cached=True)


def lower_slices(
    inputs: Sequence[Node], attrs: Attrs, to: Lowering
) -> tuple[AttentionShape, list[Operand]]:
    """Append the launch of decode_attention's slices; its shape and what merging them reads."""
    x, k, v, position, *angles = inputs
    shape = shape_of(attrs["heads"], k.shape, attrs["scale"])
    part = to.scratch((shape.heads, kernels.slices(shape), shape.width))
    moments = to.scratch((shape.heads, kernels.slices(shape), 2))
    made = kernels.partial_attention(shape, attrs["start"], angles[0].shape[0])
    to.dispatch(made, [x, k, v, position, *angles], part, moments)
    return shape, [part, moments, position]
