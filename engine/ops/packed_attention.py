"""Attention on matrices of tokens, [images * tokens, heads * width]: heads stay where products put
them, side by side in the columns, and nothing is transposed. Made by rewriting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.graph import Node, TensorType
from engine.kernels import attention as kernels
from engine.kernels.attention import AttentionShape
from engine.kernels.heads import Place
from engine.kernels.operands import element
from engine.lower import Lowering, Operand
from engine.op import Array, Attrs, Op, Sample, definition, register, require
from engine.ops.attention import MAX_WIDTH
from engine.ops.attention_gradients import lower_gradients
from engine.ops.extra import extra
from engine.ops.heads import join_heads
from engine.ops.stream import lower_stream, sum_lanes

NAMES = ("q", "k", "v")


def _counts(attrs: Attrs) -> tuple[int, int, int]:
    """Heads of q, k and v."""
    return attrs["heads"], attrs["kv_heads"], attrs["kv_heads"]


def _parts(attrs: Attrs) -> list[tuple[int, int, int]]:
    """(operand, first column, heads) of q, k and v."""
    both = zip(attrs["places"], _counts(attrs), strict=True)
    return [(operand, column, heads) for (operand, column), heads in both]


def _tokens(inputs: Sequence[TensorType], attrs: Attrs, name: str) -> int:
    """Tokens per image of q, k or v."""
    return inputs[attrs["places"][NAMES.index(name)][0]].shape[0] // attrs["images"]


def _operands(inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """The operands that q, k and v lie in; what follows them is left out."""
    return list(inputs[: 1 + max(operand for operand, _ in attrs["places"])])


def _check(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> None:
    """Whether the parts fill the operands and fit together."""
    good = all(t.dtype == "f32" and len(t.shape) == 2 for t in inputs)
    require(good, op, "operands must be f32 matrices", *inputs)
    heads, kv_heads, width, images = (attrs[k] for k in ("heads", "kv_heads", "width", "images"))
    sizes = min(heads, kv_heads, width, images) >= 1 and heads % kv_heads == 0
    require(sizes and width <= MAX_WIDTH, op, f"heads or width {width} do not fit", *inputs)
    for number, operand in enumerate(inputs):
        own = sorted((c, c + h * width) for o, c, h in _parts(attrs) if o == number)
        edges = [0, *(edge for part in own for edge in part), operand.shape[1]]
        fills = all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))
        require(fills, op, f"columns of q, k and v do not fill operand {number}", *inputs)
        require(operand.shape[0] % images == 0, op, f"{images} images do not divide it", operand)
    queries, keys, values = (_tokens(inputs, attrs, name) for name in NAMES)
    require(keys == values, op, "k and v must have equally many tokens", *inputs)
    seen = not attrs["causal"] or keys >= queries
    require(seen, op, "causal attention needs at least as many keys as queries", *inputs)


def _split(inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
    """q, k and v as [images * heads, tokens, width]."""
    width = attrs["width"]
    found = []
    for operand, column, heads in _parts(attrs):
        part = inputs[operand][:, column : column + heads * width]
        found.append(_by_head(part, attrs["images"], heads, width))
    return found


def _by_head(x: Array, images: int, heads: int, width: int) -> Array:
    return x.reshape(images, -1, heads, width).swapaxes(1, 2).reshape(images * heads, -1, width)


def _by_token(x: Array, images: int) -> Array:
    tokens, width = x.shape[1:]
    return x.reshape(images, -1, tokens, width).swapaxes(1, 2).reshape(images * tokens, -1)


def _alone(attrs: Attrs, part: int) -> bool:
    """Whether q, k or v has an operand for itself, which its gradient then is like."""
    operands = [operand for operand, _ in attrs["places"]]
    return operands.count(operands[part]) == 1


def _grad_type(inputs: Sequence[TensorType], attrs: Attrs, part: int) -> TensorType:
    operand, _, heads = _parts(attrs)[part]
    if _alone(attrs, part):
        return inputs[operand]
    tokens = _tokens(inputs, attrs, NAMES[part])
    return TensorType((attrs["images"] * heads, tokens, attrs["width"]))


def _plain(attrs: Attrs) -> Attrs:
    """The attributes of attention on tensors by head."""
    return {"causal": attrs["causal"], "scale": attrs["scale"]}


def _shape(inputs: Sequence[TensorType], attrs: Attrs) -> AttentionShape:
    images, heads, kv_heads, width = (attrs[k] for k in ("images", "heads", "kv_heads", "width"))
    queries, keys = _tokens(inputs, attrs, "q"), _tokens(inputs, attrs, "k")
    places = [
        (name, Place(count, tokens, inputs[operand].shape[1], column))
        for name, tokens, (operand, column, count) in zip(
            NAMES, (queries, keys, keys), _parts(attrs), strict=True
        )
    ]
    result = Place(heads, queries, heads * width, 0)
    alone = [(f"d{name}", p) for k, (name, p) in enumerate(places) if _alone(attrs, k)]
    places += [("y", result), ("g", result), *alone]
    return AttentionShape(
        images * heads,
        images * kv_heads,
        queries,
        keys,
        width,
        bool(attrs["causal"]),
        attrs["scale"],
        places=tuple(places),
        turned=attrs.get("turned", ()),
    )


def _read(node: Node) -> list[Operand]:
    """The operands of the kernels for q, k and v."""
    return [node.inputs[operand] for operand, _ in node.attrs["places"]]


@register
class PackedAttention(Op):
    """Attention y [images * queries, heads * width] of q, k and v, each some columns of an operand.

    Operands: one to three matrices [images * tokens, columns] which the parts fill. `places`: for
    each of q, k and v the operand's number and its first column. Further result 0: the log-sum-exp
    of the scores [images * heads, queries].
    """

    name = "packed_attention"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        good = len(inputs) == len(_operands(inputs, attrs))
        require(good, self.name, "takes the operands that q, k and v lie in", *inputs)
        _check(self.name, inputs, attrs)
        tokens = attrs["images"] * _tokens(inputs, attrs, "q")
        return TensorType((tokens, attrs["heads"] * attrs["width"]))

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        heads = attrs["images"] * attrs["heads"]
        return (TensorType((heads, _tokens(inputs, attrs, "q"))),)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        split = _split(inputs, attrs)
        y, lse = definition("attention").references(split, _plain(attrs))
        return _by_token(y, attrs["images"]), lse

    def gradient(self, node: Node, upstream: Node) -> Sequence[Node | None]:
        operands = [*node.inputs, node, extra(node, 0), upstream]
        grad_q = node.graph.add("packed_attention_grad", operands, **node.attrs)
        grads = [grad_q, extra(grad_q, 0), extra(grad_q, 1)]
        found: list[Node | None] = []
        for number in range(len(node.inputs)):
            own = sorted((c, k) for k, (o, c, _) in enumerate(_parts(node.attrs)) if o == number)
            parts = [grads[k] for _, k in own]
            found.append(parts[0] if len(own) == 1 else join_heads(parts, node.attrs["images"]))
        return found

    def lower(self, node: Node, to: Lowering) -> None:
        shape = _shape([value.type for value in node.inputs], node.attrs)
        lse = to.extra(node, 0)
        writes = [node] if lse is None else [node, lse]
        angles = node.inputs[len(_operands(node.inputs, node.attrs)) :]
        reads = [*_read(node), *angles]
        lower_stream(to, kernels.attention(shape, lse=lse is not None), reads, *writes)

    def samples(self) -> Iterator[Sample]:
        for shapes, attrs in CASES:
            yield Sample(shapes, attrs)


@register
class TurnedAttention(PackedAttention):
    """Packed attention whose kernels turn q, k or both, named by `turned`, as they read them.

    Operands: those of packed attention, then cos and sin [tokens, width / 2]; the width is 8 n.
    Made after gradients were taken, so it has none.
    """

    name = "turned_attention"
    gradient = Op.gradient

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        operands = _operands(inputs, attrs)
        angles = inputs[len(operands) :]
        good = len(angles) == 2 and 0 < len(attrs["turned"]) and {*attrs["turned"]} <= {"q", "k"}
        require(good, self.name, "takes operands of q, k and v, cos and sin", *inputs)
        result = super().infer(operands, attrs)
        for name in attrs["turned"]:
            kind = TensorType((_tokens(operands, attrs, name), attrs["width"] // 2))
            fits = attrs["width"] % 8 == 0 and all(angle == kind for angle in angles)
            require(fits, self.name, f"{name} needs a width of 8 n and angles {kind}", *angles)
        return result

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        *operands, cosine, sine = inputs
        parts = _split(operands, attrs)
        for part, name in enumerate(NAMES):
            if name in attrs["turned"]:
                turning = [parts[part], cosine, sine]
                parts[part] = definition("rope").reference(turning, {"inverse": False})
        y, lse = definition("attention").references(parts, _plain(attrs))
        return _by_token(y, attrs["images"]), lse

    def samples(self) -> Iterator[Sample]:
        for turned, width in ((("q",), 8), (("k",), 24), (("q", "k"), 24)):
            places = ((0, 0), (0, 2 * width), (0, 3 * width))
            shapes, attrs = _case(((37, 4 * width),), places, (2, 1), width, causal=True)
            angles = (37, width // 2)
            yield Sample((*shapes, angles, angles), {**attrs, "turned": turned})


@register
class PackedAttentionGrad(Op):
    """Dq from the operands of packed_attention, its results y and lse, and upstream g.

    Further results are dk and dv, summed over the query heads of a key head. Each is like the
    operand of q, k or v if nothing else lies in it, and else [images * heads, tokens, width].
    """

    name = "packed_attention_grad"

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        operands = _operands(inputs, attrs)
        require(len(inputs) == len(operands) + 3, self.name, "takes also y, lse and g", *inputs)
        _check(self.name, operands, attrs)
        y, lse, g = inputs[len(operands) :]
        made = definition("packed_attention")
        fits = y == g == made.infer(operands, attrs) and (lse,) == made.extras(operands, attrs)
        require(fits, self.name, "y, lse and g must fit the operands", *inputs)
        return _grad_type(operands, attrs, 0)

    def extras(self, inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        operands = _operands(inputs, attrs)
        return (_grad_type(operands, attrs, 1), _grad_type(operands, attrs, 2))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        return self.references(inputs, attrs)[0]

    def references(self, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        operands = _operands(inputs, attrs)
        y, lse, g = inputs[len(operands) :]
        sizes = attrs["images"], attrs["heads"], attrs["width"]
        known = [*_split(operands, attrs), _by_head(y, *sizes), lse, _by_head(g, *sizes)]
        grads = definition("attention_grad").references(known, _plain(attrs))
        return tuple(
            _by_token(grad, attrs["images"]) if _alone(attrs, k) else grad
            for k, grad in enumerate(grads)
        )

    def lower(self, node: Node, to: Lowering) -> None:
        operands = _operands(node.inputs, node.attrs)
        y, lse, g = node.inputs[len(operands) :]
        s = _shape([value.type for value in operands], node.attrs)
        delta = to.scratch((s.heads, s.queries))
        rest = to.take_unfinished(g, element(s.width), 3)
        given, written = (rest.reads, [g, delta]) if rest else ([g], [delta])
        splits = rest.splits if rest else None
        lanes = sum_lanes(s.width, to.facts)
        place = dict(s.places)["g"]
        row_sums = kernels.delta(s.heads * s.queries, s.width, lanes, place, splits)
        to.dispatch(row_sums, [*given, y], *written)
        lower_gradients(to, s, [*_read(node), g, lse, delta], node)

    def samples(self) -> Iterator[Sample]:
        for shapes, attrs in CASES:
            heads, images = attrs["images"] * attrs["heads"], attrs["images"]
            operand = shapes[attrs["places"][0][0]]
            y = (operand[0], attrs["heads"] * attrs["width"])
            yield Sample((*shapes, y, (heads, operand[0] // images), y), attrs)


def _case(
    shapes: tuple[tuple[int, ...], ...],
    places: tuple[tuple[int, int], ...],
    heads: tuple[int, int],
    width: int,
    images: int = 1,
    *,
    causal: bool = False,
) -> tuple[tuple[tuple[int, ...], ...], dict[str, Any]]:
    sizes = {"heads": heads[0], "kv_heads": heads[1], "width": width, "images": images}
    return shapes, {**sizes, "places": places, "causal": causal, "scale": width**-0.5}


CASES = (
    _case(((5, 36),), ((0, 0), (0, 12), (0, 24)), (3, 3), 4),
    _case(((37, 32),), ((0, 8), (0, 0), (0, 24)), (2, 1), 8, causal=True),
    _case(((7, 12), (11, 12)), ((0, 0), (1, 6), (1, 0)), (4, 2), 3),
    _case(((6, 8), (10, 8), (10, 8)), ((0, 0), (1, 0), (2, 0)), (2, 2), 4, 2),
)
"""One operand, grouped heads in any order, keys of another operand, three operands and images."""
