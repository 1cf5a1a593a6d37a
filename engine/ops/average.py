"""Moving averages of parameters: an effect, one launch per parameter pack.

Averages are state, packed as the parameters are, so that one elementwise kernel moves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.graph import Node, TensorType
from engine.kernels import update as kernels
from engine.lower import Lowering
from engine.memory import pack_runs
from engine.op import Array, Attrs, Op, register, require
from engine.ops.update import blocks


@register
class Average(Op):
    """a += rate * (w - a). Inputs: rate [1], all parameters w, all averages a.

    The result is a formal scalar; what counts is the effect.
    """

    name = "average"
    effect = True

    def infer(self, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        require(inputs[0].shape == (1,), self.name, "rate must be [1]", inputs[0])
        count, rest = divmod(len(inputs) - 1, 2)
        require(rest == 0 and count > 0, self.name, "needs 2 equal lists", inputs[0])
        for w, a in zip(inputs[1 : 1 + count], inputs[1 + count :], strict=True):
            require(w == a, self.name, "parameter and average differ", w, a)
        return TensorType((1,))

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> Array:
        raise AssertionError("effects have no value; tests compare whole training steps")

    def lower(self, node: Node, to: Lowering) -> None:
        rate, *own = node.inputs
        count = len(own) // 2
        limit = min(to.facts.max_binding_bytes, to.facts.max_buffer_bytes)
        for first, last in pack_runs([w.type.nbytes for w in own[:count]], limit):
            vectors = 16 * blocks([w.type for w in own[first:last]])
            run, averages = (
                tuple(to.buffer(value) for value in own[k + first : k + last]) for k in (0, count)
            )
            to.dispatch(kernels.average(self.name, vectors), [rate, run], averages)
