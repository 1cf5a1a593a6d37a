"""Bind groups made through raw library calls: a session has a thousand of them, and the wrapped
call takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.implementations.implementation import Implementation

if TYPE_CHECKING:
    import wgpu


@dataclass(frozen=True)
class BufferRange:
    """Bytes `offset` .. `offset + size` of a GPU buffer."""

    buffer: wgpu.GPUBuffer
    offset: int
    size: int

    def binding(self) -> dict[str, Any]:
        """The range as a bind group's resource."""
        return {"buffer": self.buffer, "offset": self.offset, "size": self.size}


class BindGroups:
    """Makes bind groups of buffers. One thread at a time: the descriptor is used again."""

    def __init__(self, implementation: Implementation, device: wgpu.GPUDevice) -> None:
        self._device, self._ffi = device, implementation.ffi
        self._create = implementation.checked.wgpuDeviceCreateBindGroup
        self._owner = implementation.bind_group_class
        self._descriptor = self._ffi.new("WGPUBindGroupDescriptor *")
        self._resize(8)

    def make(
        self, layout: wgpu.GPUBindGroupLayout, ranges: Sequence[BufferRange]
    ) -> wgpu.GPUBindGroup:
        """The group that binds the ranges in order from 0. Raises the library's GPUError if
        they do not fit the layout.
        """
        if len(ranges) > len(self._entries):
            self._resize(len(ranges))
        for entry, where in zip(self._entries, ranges, strict=False):
            entry.buffer, entry.offset, entry.size = (
                where.buffer._internal,
                where.offset,
                where.size,
            )
        self._descriptor.layout = layout._internal
        self._descriptor.entryCount = len(ranges)
        raw = self._create(self._device._internal, self._descriptor)
        return self._owner("", raw, self._device)

    def _resize(self, count: int) -> None:
        array = self._ffi.new("WGPUBindGroupEntry[]", count)
        for number, entry in enumerate(array):
            entry.binding = number
        self._entries = list(array)
        self._array = self._descriptor.entries = array
