"""Chains of permute, slice and reshape as one strided read, composed by NumPy's view algebra."""

from __future__ import annotations

from math import prod

import numpy as np

from engine.rewrite.term import Term
from engine.rewrite.terms import Terms

MOVES = ("permute", "slice", "strided")


def compose(terms: Terms, *chain: Term) -> Term | None:
    """The outermost term of a chain, read straight from what the innermost one reads.

    `chain` runs from the outermost term to the innermost. None if a reshape between them would
    need a copy.
    """
    base = chain[-1].inputs[0]
    whole = np.empty(base.shape, np.int8)
    view = whole
    for term in reversed(chain):
        try:
            view = _apply(term, view)
        except ValueError:
            return None
    start = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return read(terms, base, view.shape, view.strides, start)


def read(
    terms: Terms, base: Term, shape: tuple[int, ...], strides: tuple[int, ...], start: int
) -> Term:
    """The simplest term for a strided read of `base`: a view, permute, slice, or strided read."""
    # Extents of 1 may have any stride.
    strides = tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
    if strides == _contiguous(shape) and start == 0 and prod(shape) == base.type.size:
        return base if shape == base.shape else terms.make("reshape", [base], shape=shape)
    axes = _permutation(base, shape, strides)
    if axes is not None and start == 0:
        return terms.make("permute", [base], axes=axes)
    for axis, (kept, extent) in enumerate(zip(shape, base.shape, strict=False)):
        if kept < extent and len(shape) == len(base.shape):
            step = prod(base.shape[axis + 1 :])
            first = start // step
            if start % step == 0 and first + kept <= extent:
                sliced = (*base.shape[:axis], kept, *base.shape[axis + 1 :])
                if sliced == shape and strides == _of_slice(base, shape):
                    stop = first + kept
                    return terms.make("slice", [base], axis=axis, start=first, stop=stop)
    return terms.make("strided", [base], shape=shape, strides=strides, start=start)


def _apply(term: Term, view: np.ndarray) -> np.ndarray:
    if term.op == "permute":
        return np.transpose(view, term.attrs["axes"])
    if term.op == "reshape":
        return view.reshape(term.shape, copy=False)
    if term.op == "strided":
        # Positions inside a chain count elements of the operand, which must not be a view itself.
        if not view.flags.c_contiguous:
            raise ValueError("a strided read of a strided read")
        flat = view.reshape(-1, copy=False)[term.attrs["start"] :]
        return np.lib.stride_tricks.as_strided(flat, term.shape, term.attrs["strides"])
    axis = term.attrs["axis"]
    return view[(slice(None),) * axis + (slice(term.attrs["start"], term.attrs["stop"]),)]


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) if n > 1 else 0 for axis, n in enumerate(shape))


def _of_slice(base: Term, shape: tuple[int, ...]) -> tuple[int, ...]:
    whole = [prod(base.shape[axis + 1 :]) for axis in range(len(base.shape))]
    return tuple(s if n > 1 else 0 for n, s in zip(shape, whole, strict=True))


def _permutation(
    base: Term, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Axes of `base` that have these strides, in order; None if it is not a permutation."""
    if sorted(shape) != sorted(base.shape):
        return None
    own = list(zip(base.shape, _contiguous(base.shape), strict=True))
    axes: list[int] = []
    for wanted in zip(shape, strides, strict=True):
        free = [a for a, pair in enumerate(own) if pair == wanted and a not in axes]
        if not free:
            return None
        axes.append(free[0])
    return tuple(axes)
