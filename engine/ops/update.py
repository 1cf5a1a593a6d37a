"""Optimiser updates: effects that change parameters in place, one launch per parameter pack.

Parameters, gradients and moments are packed alike (engine.memory), so one elementwise kernel
over the whole pack updates every parameter. Padding between tensors stays zero: its gradient,
moments and step are zero.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from engine.graph import Node, TensorType
from engine.kernels import update as kernels
from engine.kernels.wgsl import f32
from engine.lower import Lowering
from engine.memory import ALIGNMENT, aligned, pack_runs
from engine.op import Array, Attrs, Op, register, require

HYPER = 4
"""Scalars fed by the host before each step; their meaning is the update rule's."""

Run = tuple[int, ...]
"""Buffers that lie one after another in a pack."""


def blocks(types: Sequence[TensorType]) -> int:
    """Entries of a table that has one per ALIGNMENT bytes of a pack."""
    return sum(aligned(t.nbytes) for t in types) // ALIGNMENT


class Update(Op):
    """Inputs: hyper [4], a table of rate multipliers if `multiplied`, and then for each tensor
    kind (parameter, gradient, moments..., gradient sums if `accumulate` > 1) all nodes.

    With `accumulate` > 1 each run adds to the sums, and runs that the host has marked as an
    update's last use their mean. `clip` > 0 is the largest global norm of what is used.
    The result is a formal scalar; what counts is the effect.
    """

    effect = True
    moments: tuple[str, ...]

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(inputs[0].shape == (HYPER,), self.name, f"hyper must be [{HYPER}]", inputs[0])
        kinds, leading = self._kinds(attrs), 1 + attrs["multiplied"]
        count, rest = divmod(len(inputs) - leading, kinds)
        require(rest == 0 and count > 0, self.name, f"needs {kinds} equal lists", inputs[0])
        own = inputs[leading:]
        for k in range(count):
            shapes = {own[kind * count + k].shape for kind in range(kinds)}
            require(len(shapes) == 1, self.name, "parameter and gradient differ", own[k])
        if attrs["multiplied"]:
            fits = inputs[1].shape == (blocks(own[:count]),)
            require(fits, self.name, "the table does not fit the parameters", inputs[1])
        require(attrs["accumulate"] >= 1 and attrs["clip"] >= 0, self.name, "bad attributes")
        return TensorType((1,))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        raise AssertionError("effects have no value; tests compare whole training steps")

    @abstractmethod
    def rule(self, attrs: Attrs) -> str:
        """WGSL that changes w[i] (and m[i], v[i]), given `gradient` and `multiplier`."""

    def lower(self, node: Node, to: Lowering) -> None:
        attrs, hyper = node.attrs, node.inputs[0]
        table = [node.inputs[1]] if attrs["multiplied"] else []
        own = node.inputs[1 + len(table) :]
        count = len(own) // self._kinds(attrs)
        parameters = own[:count]
        limit = min(to.facts.max_binding_bytes, to.facts.max_buffer_bytes)
        runs = pack_runs([p.type.nbytes for p in parameters], limit)
        sizes = [blocks([p.type for p in parameters[first:last]]) * 16 for first, last in runs]
        weights, gradients, *state = (
            [tuple(to.buffer(v) for v in own[k + first : k + last]) for first, last in runs]
            for k in range(0, len(own), count)
        )
        if attrs["accumulate"] > 1:
            sums = state.pop()
            for vectors, added, total in zip(sizes, gradients, sums, strict=True):
                to.dispatch(kernels.accumulate("accumulate", vectors), [hyper, added], total)
            gradients = sums
        norm = (
            [_global_norm(gradients, sizes, 1 / attrs["accumulate"], to)] if attrs["clip"] else []
        )
        for k, (first, _) in enumerate(runs):
            use = kernels.GradientUse(
                scale=1 / attrs["accumulate"],
                clip=attrs["clip"],
                only_last=attrs["accumulate"] > 1,
                table=blocks([p.type for p in parameters[:first]]) if table else None,
            )
            kernel = kernels.update(self.name, sizes[k], self.moments, self.rule(attrs), use)
            moments = [of_kind[k] for of_kind in state]
            to.dispatch(kernel, [hyper, *norm, *table, gradients[k]], weights[k], *moments)

    def _kinds(self, attrs: Attrs) -> int:
        return 2 + len(self.moments) + (attrs["accumulate"] > 1)


def _global_norm(runs: Sequence[Run], sizes: Sequence[int], scale: float, to: Lowering) -> int:
    """Scale * norm over all packs, in a scratch buffer [1]."""
    part: list[int] = []
    for vectors, run in zip(sizes, runs, strict=True):
        total = to.scratch((kernels.PARTIALS,))
        kernel = kernels.sum_squares("sum_squares", vectors, chained=bool(part))
        to.dispatch(kernel, [run, *part], total)
        part = [total]
    norm = to.scratch((1,))
    to.dispatch(kernels.root_of_sum("global_norm", scale), part, norm)
    return norm


@register
class SgdUpdate(Update):
    """m = momentum * m + g; w -= rate * m, or rate * (g + momentum * m) after Nesterov.

    hyper = [rate, 0, 0, marks].
    """

    name = "sgd_update"
    moments = ("m",)

    def rule(self, attrs: Attrs) -> str:
        momentum = f32(attrs["momentum"])
        move = f"gradient + {momentum} * step" if attrs["nesterov"] else "step"
        return f"""
    let step = {momentum} * m[i] + gradient;
    m[i] = step;
    w[i] -= hyper[0] * multiplier * ({move});"""


@register
class AdamUpdate(Update):
    """Adam (Kingma and Ba 2015) with L2 regularisation `l2` in the gradient, or with decoupled
    weight decay (AdamW); the host folds the bias corrections in.

    hyper = [rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t), rate * decoupled weight decay, marks]:
    w -= multiplier * (hyper0 * m / (sqrt(v) * hyper1 + eps) + hyper2 * w).
    """

    name = "adam_update"
    moments = ("m", "v")

    def rule(self, attrs: Attrs) -> str:
        b1, b2, eps, l2 = (attrs[key] for key in ("beta1", "beta2", "eps", "l2"))
        return f"""
    let old = w[i];
    let slope = {f"gradient + {f32(l2)} * old" if l2 else "gradient"};
    let first = {f32(b1)} * m[i] + {f32(1 - b1)} * slope;
    let second = {f32(b2)} * v[i] + {f32(1 - b2)} * slope * slope;
    m[i] = first;
    v[i] = second;
    let step = hyper[0] * first / (sqrt(second) * hyper[1] + {f32(eps)}) + hyper[2] * old;
    w[i] = old - multiplier * step;"""
