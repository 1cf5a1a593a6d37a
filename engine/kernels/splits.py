"""The second half of a product that was split along k: partial products summed, then its epilogue.

A launch of its own, unless the kernel that first reads the result does it on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.epilogue import Epilogue
from engine.kernels.moved import Moved
from engine.kernels.operands import element, in_elements
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main, with_erf


@dataclass(frozen=True)
class Splits:
    """A result [rows, columns], `moved` so, from partial products [count, rows, columns]."""

    count: int
    rows: int
    columns: int
    epilogue: Epilogue
    moved: Moved | None = None

    @property
    def size(self) -> int:
        """Elements of the buffers per partial product."""
        return self.rows * in_elements(self.columns)

    @property
    def flops(self) -> int:
        """Additions."""
        return self.rows * self.columns * self.count

    def reads(self, prefix: str = "") -> list[tuple[str, str]]:
        """Bindings (name, element type): the partial products and the epilogue's operands."""
        names = [("splits", element(self.columns)), *self.epilogue.reads(self.columns)]
        return [(f"{prefix}{name}", kind) for name, kind in names]

    def function(self, prefix: str = "") -> str:
        """WGSL `product_at(i)`, element number i of the result; the source needs `with_erf`."""
        kind, kept = self.epilogue.result(self.columns)
        own, lines = "i", []
        if self.moved:
            own = "own"
            lines.append(f"let own = {self.moved.source('i')};")
        parts = (f"{prefix}splits[{own} + {z * self.size}u]" for z in range(self.count))
        lines.append(f"let value = {' + '.join(parts)};")
        lines += [*self.epilogue.at_index(own, self.columns, prefix), f"return {kept};"]
        body = "\n    ".join(lines)
        return f"\nfn {prefix}product_at(i: u32) -> {kind} {{\n    {body}\n}}\n"

    def kernel(self) -> Kernel:
        """The launch of its own."""
        source = bindings(self.reads(), [("y", self.epilogue.result(self.columns)[0])])
        count = self.moved.size if self.moved else self.size
        source += self.function() + linear_main(count, 64, "    y[i] = product_at(i);")
        return Kernel("matmul_sum_splits", with_erf(source), linear_grid(count, 64), self.flops)


@dataclass(frozen=True)
class Given:
    """An operand of a kernel, and what is left of the product that gives it, if the kernel does
    that: then `splits` are read in the operand's place, and the operand is written.
    """

    name: str
    element: str
    splits: Splits | None = None

    def reads(self) -> list[tuple[str, str]]:
        """What is bound in the operand's place."""
        return self.splits.reads(self._prefix) if self.splits else [(self.name, self.element)]

    def writes(self) -> list[tuple[str, str]]:
        """What is written before the kernel's results."""
        return [(self.name, self.element)] if self.splits else []

    def function(self) -> str:
        """WGSL that `finish` and `at` call."""
        return self.splits.function(self._prefix) if self.splits else ""

    @property
    def _prefix(self) -> str:
        """Tells its names from those of other operands."""
        return f"{self.name}_"

    def finish(self, index: str) -> str:
        """WGSL statement that writes an element, which this invocation may read afterwards."""
        if self.splits is None:
            return ""
        return f"{self.name}[{index}] = {self._prefix}product_at({index});"

    def at(self, index: str) -> str:
        """WGSL for an element that another invocation may be about to write."""
        name = f"{self._prefix}product_at({index})"
        return name if self.splits else f"{self.name}[{index}]"

    @property
    def flops(self) -> int:
        """Arithmetic that this adds to the kernel's."""
        return self.splits.flops if self.splits else 0
