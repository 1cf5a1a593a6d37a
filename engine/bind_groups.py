"""Bind groups made through raw library calls: a session has a thousand of them, and the wrapped
call takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    def __init__(self, device: wgpu.GPUDevice) -> None:
        from wgpu.backends.wgpu_native._api import libf
        from wgpu.backends.wgpu_native._ffi import ffi

        self._device, self._ffi = device, ffi
        # The one that raises errors of validation.
        self._create = libf.wgpuDeviceCreateBindGroup
        self._descriptor = ffi.new("WGPUBindGroupDescriptor *")
        self._resize(8)

    def make(
        self, layout: wgpu.GPUBindGroupLayout, ranges: Sequence[BufferRange]
    ) -> wgpu.GPUBindGroup:
        """The group that binds the ranges in order from 0. Raises wgpu.GPUError if they do not
        fit the layout.
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
        return wgpu.GPUBindGroup("", raw, self._device)

    def _resize(self, count: int) -> None:
        array = self._ffi.new("WGPUBindGroupEntry[]", count)
        for number, entry in enumerate(array):
            entry.binding = number
        self._entries = list(array)
        self._array = self._descriptor.entries = array
