"""What a matrix product does to its elements before storing them: a pointwise program.

Its operands have the product's shape, or are rows that repeat along all other axes, or scalars.
Where the result is moved as it is written, they may also have the result's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.kernels.operands import Dense, Guard, element, is_wide
from engine.kernels.wgsl import Step

Kind = Literal["full", "row", "scalar", "moved"]


@dataclass(frozen=True)
class Epilogue:
    """Value 0 of the program is the product; then come the operands, then the steps' results.

    `gated`: the product's columns are two gates and the two values that they let through, in turn,
    and silu(gate) * value is kept of them.
    """

    operands: tuple[Kind, ...] = ()
    steps: tuple[Step, ...] = ()
    gated: bool = False

    def followed_by(self, after: Epilogue) -> Epilogue:
        """Both, one after the other; operands in this order."""
        operands = (*self.operands, *after.operands)
        own, values = 1 + len(self.operands), 1 + len(operands)
        steps = _renumbered(self.steps, range(own), values)
        product = values + len(steps) - 1 if steps else 0
        steps += _renumbered(after.steps, [product, *range(own, values)], values + len(steps))
        return replace(self, operands=operands, steps=steps)

    def result(self, columns: int) -> tuple[str, str]:
        """Element type of a result whose product has rows of `columns`, and what is kept of `out`.

        A gated result has as many elements as the product, each half as wide.
        """
        if not self.gated:
            return element(columns), "out"
        gate = "out.xy / (vec2<f32>(1.0) + exp(min(-out.xy, vec2<f32>(80.0))))"
        return "vec2<f32>", f"{gate} * out.zw"

    def reads(self, columns: int) -> list[tuple[str, str]]:
        """Bindings (name, element type) for a product of rows of `columns`."""
        return [
            (f"e{k}", "f32" if kind == "scalar" else element(columns))
            for k, kind in enumerate(self.operands)
        ]

    def loaders(self, columns: int, guard: Guard) -> str:
        """WGSL functions that `at_column` calls."""
        rows = [k for k, kind in enumerate(self.operands) if kind == "row"]
        return "".join(Dense(1, columns).load(f"e{k}", "", guard) for k in rows)

    def at_column(self, columns: int) -> list[str]:
        """WGSL statements giving `out` from `value`, four elements of the row that begins `at`; if
        they are moved, they belong at `place`.
        """
        loads = []
        for k, kind in enumerate(self.operands):
            if kind == "row":
                loads.append(f"load_e{k}(0u, 0u, column)")
            elif kind == "scalar":
                loads.append(f"vec4<f32>(e{k}[0])")
            elif kind == "moved":
                loads.append(f"e{k}[place]")
            elif is_wide(columns):
                loads.append(f"e{k}[at + column]")
            else:
                lanes = (f"min(column * 4u + {lane}u, {columns - 1}u)" for lane in range(4))
                loads.append(f"vec4<f32>({', '.join(f'e{k}[at + {c}]' for c in lanes)})")
        return self._program("vec4<f32>", loads)

    def at_index(self, own: str, columns: int, prefix: str = "") -> list[str]:
        """WGSL statements giving `out` from `value`, element (or vec4) number `own` of the product,
        `i` of the result.

        `prefix`: what the names of the bindings begin with.
        """
        kind = element(columns)
        row = columns // 4 if is_wide(columns) else columns
        loads = {
            "full": f"{{e}}[{own}]",
            "row": f"{{e}}[{own} % {row}u]",
            "moved": "{e}[i]",
            "scalar": f"{kind}({{e}}[0])",
        }
        operands = enumerate(self.operands)
        return self._program(kind, [loads[o].format(e=f"{prefix}e{k}") for k, o in operands])

    def _program(self, kind: str, loads: Sequence[str]) -> list[str]:
        values = ["value", *loads]
        for step in self.steps:
            values.append(step.emit(kind, *(f"v{a}" for a in step.arguments)))
        lines = [f"let v{number} = {value};" for number, value in enumerate(values)]
        return [*lines, f"let out = v{len(values) - 1};"]


def _renumbered(steps: Sequence[Step], values: Sequence[int], base: int) -> tuple[Step, ...]:
    """Steps with value k found at `values[k]` and step j's result at `base + j`."""
    index = [*values, *range(base, base + len(steps))]
    return tuple(Step(step.emit, tuple(index[a] for a in step.arguments)) for step in steps)


PLAIN = Epilogue()
