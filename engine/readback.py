"""Bytes brought from the device to the host without stalling a submit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import GpuError
from engine.gpu import BufferRange, Gpu

if TYPE_CHECKING:
    import wgpu

MAP_POLLS = 10_000
"""A map of an idle buffer is resolved by the first poll; more than this means a lost device."""


class Readback:
    """A staging buffer that brings bytes to the host without ever stalling a submit.

    Use: `record` into an encoder, submit it, `arm` with the serial, and `take` from time to
    time: None until the device is done, then the bytes, once.
    """

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        self.buffer = gpu.device.create_buffer(
            size=max(16, -(-nbytes // 4) * 4), usage="MAP_READ | COPY_DST"
        )
        self._serial: int | None = None
        self._mapped = False
        self._status = 0
        self._callback = gpu._ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped
        )

    @property
    def idle(self) -> bool:
        """Whether the buffer is free to be recorded into."""
        return self._serial is None and not self._mapped

    def record(self, encoder: wgpu.GPUCommandEncoder, source: BufferRange) -> None:
        """Copy a storage range (at most `nbytes`) into the staging buffer, which must be idle."""
        if not self.idle:
            raise GpuError("a readback was recorded again before its bytes were taken")
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, self.buffer, 0, source.size)

    def arm(self, serial: int) -> None:
        """Name the submission that carries the copy."""
        self._serial = serial

    @property
    def arrived(self) -> bool:
        """Whether the device has passed the copy, as of the last poll."""
        return self._serial is not None and self.gpu.completed >= self._serial

    def discard(self) -> None:
        """Give up a copy that has arrived: the buffer is free again."""
        self._serial = None

    def take(self) -> np.ndarray | None:
        """The bytes as uint8, or None while the copy has not completed."""
        data = self.map()
        if data is None:
            return None
        data = data.copy()
        self.unmap()
        return data

    def map(self) -> np.ndarray | None:
        """The bytes where the library keeps them, or None while the copy has not completed.

        A view for reading, valid until `unmap`; the buffer is not idle before that. The map
        promise is made only when the device has already passed the copy, and is resolved by the
        next poll: it is never pending across a submit.
        """
        if self._mapped or not self.arrived:
            return None
        lib, ffi, raw = self.gpu._lib, self.gpu._ffi, self.buffer._internal
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = self._callback
        self._status = 0
        lib.wgpuBufferMapAsync(raw, lib.WGPUMapMode_Read, 0, self.buffer.size, info[0])
        for _ in range(MAP_POLLS):
            if self._status != 0:
                break
            self.gpu.poll()
        self._serial = None
        if self._status != lib.WGPUMapAsyncStatus_Success:
            raise GpuError("a finished readback could not be mapped; was the device lost?")
        self._mapped = True
        pointer = lib.wgpuBufferGetConstMappedRange(raw, 0, self.buffer.size)
        return np.frombuffer(ffi.buffer(pointer, self.nbytes), np.uint8)

    def unmap(self) -> None:
        """Give the bytes back; harmless when they are not mapped."""
        if self._mapped:
            self.gpu._lib.wgpuBufferUnmap(self.buffer._internal)
            self._mapped = False

    def _on_mapped(self, status: int, message: Any, first: Any, second: Any) -> None:
        self._status = int(status)
