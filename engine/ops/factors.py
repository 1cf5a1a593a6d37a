"""What the ops that multiply by a matrix have in common: how they are lowered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from engine.graph import Node, TensorType
from engine.kernels.epilogue import PLAIN, Epilogue
from engine.kernels.matmul import MatmulShape
from engine.kernels.matmul import matmul as matmul_kernels
from engine.kernels.product import DENSE, Access
from engine.lower import Lowering, Operand
from engine.op import Attrs, Op
from engine.ops.epilogue import emit_product
from engine.specialize import choose_matmul


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


class ProductOp(Op, ABC):
    """An op that multiplies its first operand, the rows, by a matrix."""

    @abstractmethod
    def factors(
        self, rows: TensorType, others: Sequence[Node], attrs: Attrs, to: Lowering
    ) -> Factors:
        """The product of rows of a type and the op's other operands."""

    def lower(self, node: Node, to: Lowering) -> None:
        """See Op: one launch, or two with split-K."""
        rows, *others = node.inputs
        product = self.factors(rows.type, others, node.attrs, to)
        choice = choose_matmul(*product.shape.extents, to.facts, product.shape.layout)
        made = matmul_kernels(product.shape, choice, product.epilogue, product.access)
        operands = [rows, product.matrix, *product.others]
        emit_product(to, made, product.shape, choice, operands, node, product.epilogue)
