"""A readback whose bytes are used in place."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import GpuError
from engine.gpu import BufferRange, Gpu
from engine.readback import Readback


def send(gpu: Gpu, readback: Readback, values: np.ndarray) -> None:
    source = gpu.storage_buffer(values.nbytes)
    gpu.queue.write_buffer(source, 0, values)
    encoder = gpu.device.create_command_encoder()
    readback.record(encoder, BufferRange(source, 0, values.nbytes))
    readback.arm(gpu.submit(encoder))


def test_mapped_bytes_stay_where_they_are(gpu: Gpu) -> None:
    readback = Readback(gpu, 4096)
    addresses = set()
    for start in (0, 7):
        values = np.arange(start, start + 1024, dtype=np.uint32)
        send(gpu, readback, values)
        assert not readback.idle
        gpu.wait()
        assert readback.arrived
        mapped = readback.map()
        assert mapped is not None and np.array_equal(mapped.view(np.uint32), values)
        assert not readback.idle and not readback.arrived
        assert readback.map() is None and readback.take() is None
        with pytest.raises(GpuError, match="recorded again"):
            send(gpu, readback, values)
        addresses.add(mapped.ctypes.data)
        readback.unmap()
        readback.unmap()
        assert readback.idle
    assert len(addresses) == 1, "importing the pages elsewhere relies on it"


def test_discarded_bytes_are_not_taken(gpu: Gpu) -> None:
    readback = Readback(gpu, 16)
    send(gpu, readback, np.full(4, 1, np.uint32))
    gpu.wait()
    readback.discard()
    assert readback.idle and readback.take() is None
    send(gpu, readback, np.full(4, 2, np.uint32))
    gpu.wait()
    taken = readback.take()
    assert taken is not None and (taken.view(np.uint32) == 2).all()
