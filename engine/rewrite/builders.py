"""What local rules build: pure functions of what a pattern matched; None where nothing applies."""

from __future__ import annotations

import numpy as np

from engine.graph import EXTRA
from engine.kernels.operands import is_wide
from engine.op import Op, definition
from engine.rewrite.fusion import absorb
from engine.rewrite.moves import compose
from engine.rewrite.term import Term
from engine.rewrite.terms import Terms


def moved_twice(terms: Terms, outer: Term, *inner: Term) -> Term | None:
    """Permute, slice or strided read of another one, perhaps through a reshape: one read."""
    return compose(terms, outer, *inner)


def viewed_twice(terms: Terms, outer: Term, inner: Term) -> Term:
    """A reshape of a reshape."""
    x = inner.inputs[0]
    return x if x.shape == outer.shape else terms.make("reshape", [x], shape=outer.shape)


def expanded_scalar(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """A view of a repeated scalar is that scalar repeated."""
    x = inner.inputs[0]
    if x.type.size > 1:
        return None
    scalar = terms.make("reshape", [x], shape=(1,) * len(outer.shape))
    return terms.make("expand", [scalar], shape=outer.shape)


def nothing_moved(terms: Terms, term: Term) -> Term | None:
    """A move that changes nothing, or only the shape."""
    x = term.inputs[0]
    if term.op == "stop_gradient":
        return x
    if term.op in ("permute", "slice", "strided"):
        simple = compose(terms, term)
        return simple if simple is x or (simple is not None and simple.is_view) else None
    if term.op == "pad" and not term.attrs["before"] and not term.attrs["after"]:
        return x
    return x if term.op in ("reshape", "expand") and term.shape == x.shape else None


def copied(terms: Terms, term: Term) -> Term:
    """A copy that needs no storage of its own."""
    return term.inputs[0]


def affine_twice(terms: Terms, outer: Term, inner: Term) -> Term:
    """Scale and shift of a scale and shift; covers the negative of a negative."""
    scale = outer.attrs["scale"] * inner.attrs["scale"]
    shift = outer.attrs["scale"] * inner.attrs["shift"] + outer.attrs["shift"]
    return terms.make("affine", inner.inputs, scale=scale, shift=shift)


def affine_of_nothing(terms: Terms, term: Term) -> Term | None:
    """1 x + 0."""
    return term.inputs[0] if (term.attrs["scale"], term.attrs["shift"]) == (1.0, 0.0) else None


def sum_scaled(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """A scaled sum."""
    if outer.attrs["shift"] != 0.0:
        return None
    return terms.make("sum", inner.inputs, scale=inner.attrs["scale"] * outer.attrs["scale"])


def negative_added(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """Adding or subtracting a negative."""
    place = outer.inputs.index(inner)
    if (inner.attrs["scale"], inner.attrs["shift"]) != (-1.0, 0.0):
        return None
    if outer.op == "sub" and place == 0:
        return None
    other = outer.inputs[1 - place]
    return terms.make("add" if outer.op == "sub" else "sub", [other, inner.inputs[0]])


def expanded_operand(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """Broadcasting is done by the op that needs it."""
    inputs = [inner.inputs[0] if value is inner else value for value in outer.inputs]
    if np.broadcast_shapes(*(value.shape for value in inputs)) != outer.shape:
        return None
    return terms.make(outer.op, inputs, **outer.attrs)


def silu(terms: Terms, product: Term, gate: Term) -> Term | None:
    """A value times its own sigmoid."""
    x = product.inputs[1 - product.inputs.index(gate)]
    return terms.make("silu", [x]) if gate.inputs[0] is x else None


def gated_product(terms: Terms, gated: Term, product: Term) -> Term | None:
    """A gated activation by the product that makes gate and value."""
    weights = product.inputs[1:]
    if len(weights) != 2 or weights[0].shape != weights[1].shape or weights[0].shape[0] % 2:
        return None
    return terms.make("gated_matmul", product.inputs)


def group_norm_silu(terms: Terms, outer: Term, inner: Term) -> Term | None:
    """SiLU of a group normalisation."""
    if inner.attrs["silu"]:
        return None
    return terms.make("group_norm", inner.inputs, **{**inner.attrs, "silu": True})


def activated_norm(terms: Terms, outer: Term, norm: Term) -> Term | None:
    """A function of each element of a normalisation that nothing else reads."""
    if norm.pins or len(norm.users) > 1 or norm.attrs.get("silu"):
        return None
    made, then = (norm.op, norm.attrs), (outer.op, outer.attrs)
    return terms.make("activated_norm", norm.inputs, norm=made, activation=then)


def norm_gradient_added(terms: Terms, added: Term, grad: Term, *seen: Term) -> Term | None:
    """The gradient of a normalisation and what reached its operand beside it, as one."""
    norm = seen[0] if seen else grad
    other = added.inputs[1 - added.inputs.index(grad)]
    if norm.attrs.get("plus") or other.shape != added.shape or grad.shape != added.shape:
        return None
    # It stays before the gradients of weight and bias, which may wait.
    terms.position = norm.position
    plus = other if not seen else terms.make("reshape", [other], shape=norm.shape)
    attrs = {**norm.attrs, "plus": True}
    result = terms.make(norm.op, [*norm.inputs, plus], **attrs)
    return terms.make("reshape", [result], shape=added.shape) if seen else result


def transposed_operand(terms: Terms, product: Term, moved: Term) -> Term | None:
    """A product of a matrix whose last two axes were exchanged."""
    axes = tuple(moved.attrs["axes"])
    if axes != (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2):
        return None
    inputs, attrs = list(product.inputs), dict(product.attrs)
    for place, flag in enumerate(("transpose_a", "transpose_b")):
        if inputs[place] is moved:
            inputs[place] = moved.inputs[0]
            attrs[flag] = not attrs[flag]
    return terms.make("matmul", inputs, **attrs)


def transposed_result(terms: Terms, moved: Term, product: Term) -> Term | None:
    """The transpose of a product is the product of the transposes."""
    axes = tuple(moved.attrs["axes"])
    if axes != (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2) or len(product.inputs) > 2:
        return None
    attrs = dict(product.attrs)
    ta, tb = attrs["transpose_a"], attrs["transpose_b"]
    attrs |= {"transpose_a": not tb, "transpose_b": not ta}
    return terms.make("matmul", [product.inputs[1], product.inputs[0]], **attrs)


def product_of_windows(terms: Terms, product: Term, windows: Term) -> Term | None:
    """A product that reads windows of an image where they lie, if nothing else reads them: a
    convolution.
    """
    attrs, (x,) = product.attrs, windows.inputs
    plain = attrs["transpose_b"] and not attrs["transpose_a"] and len(product.inputs) == 2
    if not plain or windows.pins or len(windows.users) > 1 or product.inputs[1] is windows:
        return None
    (n, h, w, c), kernel, stride = x.shape, windows.attrs["kernel"], windows.attrs["stride"]
    padding = windows.attrs["padding"]
    if kernel[1] == stride[1] and w % stride[1] == 0 and padding[1] == 0:
        # Windows side by side: what they cover of a line are channels that lie together.
        w, c, kernel, stride = w // kernel[1], c * kernel[1], (kernel[0], 1), (stride[0], 1)
    # Others would be read one element at a time.
    if not is_wide(c):
        return None
    image = terms.make("reshape", [x], shape=(n, h, w, c))
    made = {"kernel": kernel, "stride": stride, "padding": padding, "epilogue": ()}
    result = terms.make("conv2d", [image, product.inputs[1]], **made)
    return terms.make("reshape", [result], shape=product.shape)


def folded(terms: Terms, term: Term) -> Term | None:
    """An op on constants, where the result is not larger than they are."""
    if any(value.op not in ("constant", "reshape") for value in term.inputs):
        return None
    roots = [value.storage for value in term.inputs]
    if not roots or any(root.op != "constant" for root in roots):
        return None
    made = definition(term.op)
    # A launch with further results serves them too; a view costs nothing as it is.
    if made.view or made.effect or term.op == EXTRA or type(made).extras is not Op.extras:
        return None
    if term.type.dtype != "f32" or term.type.size > max(value.type.size for value in term.inputs):
        return None
    pairs = zip(roots, term.inputs, strict=True)
    values = [root.attrs["value"].reshape(value.shape) for root, value in pairs]
    operands = [v.astype(np.float64) if v.dtype == np.float32 else v for v in values]
    return terms.constant(made.reference(operands, term.attrs))


def absorbed(terms: Terms, user: Term, value: Term, *producer: Term) -> Term | None:
    """A producer computed by the kernel that uses it, perhaps seen through a reshape."""
    return absorb(terms, user, value, *producer)
