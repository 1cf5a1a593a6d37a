"""Compute pipelines of one device: equal programs share one, new ones compile side by side.

A driver may take tens of milliseconds for each, and does not mind threads; the caller has other
things to make meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import GpuError
from engine.implementations.implementation import Implementation, Pending

if TYPE_CHECKING:
    import wgpu


@dataclass(frozen=True)
class Program:
    """A compute shader with the number of its bindings and its overridable constants.

    Bindings are group 0: `reads` read-only storage buffers, then `writes` writable ones.
    """

    source: str
    reads: int
    writes: int
    overrides: frozenset[tuple[str, int]] = frozenset()
    label: str = field(default="", compare=False)


class Pipelines:
    """Creates pipelines and keeps them; pipelines with equal bindings have the same layout."""

    def __init__(
        self,
        implementation: Implementation,
        device: wgpu.GPUDevice,
        module: Callable[[wgpu.GPUDevice, str, str], Any],
    ) -> None:
        """`module` makes a shader module of WGSL and a label."""
        self._implementation, self._device, self._module = implementation, device, module
        self._layouts: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._made: dict[Program, Pending] = {}

    def begin(self, programs: Collection[Program]) -> None:
        """Begin to compile what is not there yet."""
        missing = [program for program in dict.fromkeys(programs) if program not in self._made]
        if not missing:
            return
        for program in missing:
            self.layout(program)
        # What takes longest must not begin last.
        missing.sort(key=lambda program: len(program.source), reverse=True)
        makes = [partial(self._arguments, program) for program in missing]
        pending = self._implementation.compile(self._device, makes)
        self._made |= zip(missing, pending, strict=True)

    def raw(self, program: Program) -> Any:
        """The library's handle of a program that was begun, when it is compiled.

        Raises GpuError with the compiler's message when the program is invalid.
        """
        try:
            return self._made[program].result()._internal
        except (self._implementation.api.GPUError, RuntimeError) as error:
            label = program.label or "?"
            raise GpuError(f"kernel {label} does not compile: {error}") from error

    def layout(self, program: Program) -> wgpu.GPUBindGroupLayout:
        """The layout of a program's bind groups."""
        key = (program.reads, program.writes)
        if key not in self._layouts:
            kinds = ["read-only-storage"] * program.reads + ["storage"] * program.writes
            entries = [
                {"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            groups = self._device.create_bind_group_layout(entries=entries)
            whole = self._device.create_pipeline_layout(bind_group_layouts=[groups])
            self._layouts[key] = groups, whole
        return self._layouts[key][0]

    def _arguments(self, program: Program) -> dict[str, Any]:
        _, layout = self._layouts[program.reads, program.writes]
        module = self._module(self._device, program.source, program.label)
        constants = dict(program.overrides)
        return {
            "layout": layout,
            "compute": {"module": module, "entry_point": "main", "constants": constants},
            "label": program.label,
        }
