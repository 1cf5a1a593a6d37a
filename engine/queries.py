"""Timestamp queries: a set of them, and the way their values take to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import GpuError
from engine.gpu import BufferRange, Gpu
from engine.readback import Readback

if TYPE_CHECKING:
    import wgpu

MOST_QUERIES = 4096
"""A query set may hold no more (WebGPU: maximum query count)."""
RESOLVE_QUERIES = 32
"""Queries of 256 bytes, the alignment of a resolve's destination."""


def timestamps_available(gpu: Gpu) -> bool:
    """Whether the device can time passes."""
    return "timestamp-query" in gpu.device.features


class TimestampQueries:
    """A query set and the buffer it resolves to; all its objects are created here.

    A query may be resolved only after a submission, or a pass earlier in the same encoder, has
    written it: devices may wait for ever for one that was not.
    """

    def __init__(self, gpu: Gpu, count: int) -> None:
        """`count` queries, at most MOST_QUERIES. Raises GpuError on a device that has none."""
        if not timestamps_available(gpu):
            raise GpuError(f"{gpu.name} has no timestamp queries: work without GPU times")
        self.gpu, self.count = gpu, count
        self.set = gpu.device.create_query_set(type="timestamp", count=count)
        self._resolved = gpu.device.create_buffer(size=8 * count, usage="QUERY_RESOLVE | COPY_SRC")
        self._period_ns = gpu.timestamp_period_ns

    def writes(self, begin: int) -> dict[str, Any]:
        """The `timestamp_writes` of a pass that fills the queries `begin` and `begin + 1`."""
        return {
            "query_set": self.set,
            "beginning_of_pass_write_index": begin,
            "end_of_pass_write_index": begin + 1,
        }

    def readback(self, count: int) -> Readback:
        """A staging buffer for `count` values."""
        return Readback(self.gpu, 8 * count)

    def resolve(
        self, encoder: wgpu.GPUCommandEncoder, first: int, count: int, readback: Readback
    ) -> None:
        """Record the way of `count` values from query `first`, a multiple of RESOLVE_QUERIES."""
        encoder.resolve_query_set(self.set, first, count, self._resolved, 8 * first)
        readback.record(encoder, BufferRange(self._resolved, 8 * first, 8 * count))

    def nanoseconds(self, data: np.ndarray, count: int) -> list[int]:
        """The first `count` values of a readback's bytes, on the GPU's clock."""
        values = data.view(np.uint64)[:count]
        if self._period_ns == 1.0:
            return [int(value) for value in values]
        return [round(int(value) * self._period_ns) for value in values]

    def read(self, count: int, readback: Readback) -> list[int]:
        """The first `count` values in nanoseconds. Waits for the device: not for the frame loop."""
        encoder = self.gpu.device.create_command_encoder()
        self.resolve(encoder, 0, count, readback)
        readback.arm(self.gpu.submit(encoder))
        self.gpu.wait()
        data = readback.take()
        if data is None:
            raise GpuError("timestamps did not arrive; was the device lost?")
        return self.nanoseconds(data, count)
