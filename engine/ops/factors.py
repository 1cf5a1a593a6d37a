"""What the ops that multiply by a matrix have in common: how they are lowered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.graph import Node, TensorType
from engine.kernels.epilogue import PLAIN, Epilogue
from engine.kernels.matmul import MatmulShape
from engine.kernels.matmul import matmul as matmul_kernels
from engine.kernels.moved import Moved
from engine.kernels.product import DENSE, Access
from engine.lower import Lowering, Operand
from engine.op import Attrs, Op
from engine.ops.epilogue import emit_product
from engine.specialize import MatmulChoice, choose_matmul


@dataclass(frozen=True)
class Factors:
    """A product but for its rows: the matrix, and what becomes of each element.

    `others`: the epilogue's operands.
    """

    shape: MatmulShape
    matrix: Operand
    epilogue: Epilogue = PLAIN
    others: Sequence[Operand] = ()
    access: Access = DENSE


@dataclass(frozen=True)
class Following:
    """What becomes of a product's result: `moved` so, then `epilogue`, whose `operands` are like
    the moved result.
    """

    moved: Moved | None = None
    epilogue: Epilogue = PLAIN
    operands: Sequence[Operand] = ()


NOTHING = Following()


class ProductOp(Op, ABC):
    """An op that multiplies its first operand, the rows, by a matrix."""

    @abstractmethod
    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        """The product of rows of a type and the op's other operands."""

    def choose(self, shape: MatmulShape, to: Lowering) -> MatmulChoice:
        """The kernel for its product."""
        return choose_matmul(*shape.extents, to.facts, shape.layout)

    def lower(self, node: Node, to: Lowering) -> None:
        """See Op."""
        self.lower_followed(node.inputs, node.attrs, to, node, NOTHING)

    def lower_followed(
        self, inputs: Sequence[Node], attrs: Attrs, to: Lowering, result: Node, then: Following
    ) -> None:
        """Append the dispatches that compute the op of `inputs`, and what comes `then`, into
        `result`: one launch, or two with split-K.
        """
        rows, *others = inputs
        product = self.factors(rows.type, others, attrs, to)
        shape, epilogue = product.shape, product.epilogue.followed_by(then.epilogue)
        choice = self.choose(shape, to)
        access = replace(product.access, moved=then.moved)
        made = matmul_kernels(shape, choice, epilogue, access)
        operands = [rows, product.matrix, *product.others, *then.operands]
        emit_product(to, made, shape, choice, operands, result, epilogue, then.moved)
