"""Optimiser updates: effects that change parameters in place, one launch per parameter pack.

Parameters, gradients and moments are packed alike (engine.memory), so one elementwise kernel
over the whole pack updates every parameter. Padding between tensors stays zero: its gradient,
moments and step are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.graph import Node, TensorType
from engine.kernels.wgsl import Kernel, bindings, f32, linear_grid, linear_main
from engine.lower import Lowering
from engine.memory import aligned, pack_runs
from engine.op import Array, Attrs, Op, register, require

HYPER = 4
"""Scalars fed by the host before each step; their meaning is the update rule's."""


class Update(Op):
    """Inputs: hyper [4], then for each tensor kind (parameter, gradient, moments...) all nodes.

    The result is a formal scalar; what counts is the effect.
    """

    effect = True
    kinds: int
    """How many equally long lists of nodes follow the hyper-parameters."""

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(inputs[0].shape == (HYPER,), self.name, f"hyper must be [{HYPER}]", inputs[0])
        count, rest = divmod(len(inputs) - 1, self.kinds)
        require(rest == 0 and count > 0, self.name, f"needs {self.kinds} equal lists", inputs[0])
        for k in range(count):
            shapes = {inputs[1 + kind * count + k].shape for kind in range(self.kinds)}
            require(len(shapes) == 1, self.name, "parameter and gradient differ", inputs[1 + k])
        return TensorType((1,))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        raise AssertionError("effects have no value; tests compare whole training steps")

    def body(self, attrs: Attrs) -> str:
        """WGSL that updates w[i] (and m[i], v[i]) from g[i] and hyper."""
        raise NotImplementedError

    def lower(self, node: Node, to: Lowering) -> None:
        hyper, *rest = node.inputs
        count = len(rest) // self.kinds
        lists = [rest[kind * count : (kind + 1) * count] for kind in range(self.kinds)]
        parameters, gradients, *moments = lists
        limit = min(to.facts.max_binding_bytes, to.facts.max_buffer_bytes)
        for first, last in pack_runs([p.type.nbytes for p in parameters], limit):
            size = sum(aligned(p.type.nbytes) for p in parameters[first:last]) // 16
            run = [
                tuple(to.buffer(value) for value in values[first:last])
                for values in (gradients, parameters, *moments)
            ]
            to.dispatch(self._kernel(size, node.attrs), [hyper, run[0]], *run[1:])

    def _kernel(self, vectors: int, attrs: Attrs) -> Kernel:
        kind = "vec4<f32>"
        names = ["w", "m", "v"][: self.kinds - 1]
        text = bindings([("hyper", "f32"), ("g", kind)], [(name, kind) for name in names])
        source = text + linear_main(vectors, 64, self.body(attrs))
        return Kernel(self.name, source, linear_grid(vectors, 64), 12 * vectors)


@register
class SgdUpdate(Update):
    """m = momentum * m + g; w -= rate * m. hyper = [rate, 0, 0, 0]."""

    name = "sgd_update"
    kinds = 3

    def body(self, attrs: Attrs) -> str:
        return f"""
    let step = {f32(attrs["momentum"])} * m[i] + g[i];
    m[i] = step;
    w[i] -= hyper[0] * step;"""


@register
class AdamUpdate(Update):
    """Adam (Kingma and Ba 2015), decoupled weight decay; the host folds the bias corrections in.

    hyper = [rate / (1 - beta1^t), 1 / sqrt(1 - beta2^t), rate * weight_decay, 0]:
    w -= hyper0 * m / (sqrt(v) * hyper1 + eps) + hyper2 * w.
    """

    name = "adam_update"
    kinds = 4

    def body(self, attrs: Attrs) -> str:
        b1, b2, eps = attrs["beta1"], attrs["beta2"], attrs["eps"]
        return f"""
    let first = {f32(b1)} * m[i] + {f32(1 - b1)} * g[i];
    let second = {f32(b2)} * v[i] + {f32(1 - b2)} * g[i] * g[i];
    m[i] = first;
    v[i] = second;
    let old = w[i];
    w[i] = old - hyper[0] * first / (sqrt(second) * hyper[1] + {f32(eps)}) - hyper[2] * old;"""
