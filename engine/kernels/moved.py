"""Where a product writes its result: with its axes in another order, or only some of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from engine.kernels.operands import is_wide
from engine.kernels.wgsl import strided_index, strides_of


@dataclass(frozen=True)
class Moved:
    """Elements from `start` on, seen as `shape`, row-major, and the new order of its axes.

    WGSL counts vec4s: `suits` says whether four neighbours stay neighbours.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    start: int = 0

    @staticmethod
    def of(shape: Sequence[int], axes: Sequence[int], start: int = 0) -> Moved:
        """With axes that stay neighbours seen as one, and without those of one element."""
        runs: list[list[int]] = []
        for axis in (axis for axis in axes if shape[axis] > 1):
            between = shape[runs[-1][-1] + 1 : axis] if runs else ()
            if runs and runs[-1][-1] < axis and prod(between) == 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        merged = sorted(runs)
        extents = tuple(prod(shape[axis] for axis in run) for run in merged)
        return Moved(extents, tuple(merged.index(run) for run in runs), start)

    @property
    def suits(self) -> bool:
        """Whether a product whose rows are vec4s can be written so."""
        last = len(self.shape) - 1
        kept = bool(self.axes) and self.axes[last] == last and is_wide(self.shape[last])
        return kept and self.start % 4 == 0

    @property
    def size(self) -> int:
        """Vec4s of the result."""
        return prod(self._quads)

    def locate(self, elements: int) -> list[str]:
        """WGSL statements that set `place` in the result for element `i` of the product, which has
        this many, or return if it has no place.
        """
        strides = strides_of([self._quads[axis] for axis in self.axes])
        own = [strides[self.axes.index(axis)] for axis in range(len(self.axes))]
        return [
            f"let kept = i - {self.start // 4}u;",
            *([f"if (kept >= {self.size}u) {{ return; }}"] if self.size < elements else []),
            f"let place = {strided_index('kept', self._quads, own, 0)};",
        ]

    def source(self, index: str) -> str:
        """WGSL for the number in the product of the result's element at `index`."""
        strides = strides_of(self._quads)
        moved = [self._quads[axis] for axis in self.axes]
        own = [strides[axis] for axis in self.axes]
        return strided_index(index, moved, own, self.start // 4)

    @property
    def _quads(self) -> list[int]:
        return [*self.shape[:-1], self.shape[-1] // 4]
