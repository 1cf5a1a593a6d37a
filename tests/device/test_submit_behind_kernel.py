"""A submission behind a long kernel returns at once, readbacks or not."""

from __future__ import annotations

import time

import numpy as np
import pytest
from timed_devices import MOST_TURNS, Spin

from engine.gpu import BufferRange, Gpu
from engine.readback import Readback

pytestmark = pytest.mark.gpu

LONG_NS = 60_000_000
"""About as long is the kernel, many times a submission."""
TURNS = 3


def long_kernel(gpu: Gpu) -> Spin:
    """A kernel of at least LONG_NS, found by doubling."""
    spin = Spin(gpu, 500)
    spin_ns(gpu, spin)  # The first run of a kernel may compile it.
    while spin_ns(gpu, spin) < LONG_NS and spin.turns < MOST_TURNS:
        spin.set(2 * spin.turns)
    return spin


def spin_ns(gpu: Gpu, spin: Spin) -> int:
    """Submission to completion on an idle device."""
    gpu.wait()
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [spin.command])
    start = time.perf_counter_ns()
    serial = gpu.submit(encoder)
    while gpu.poll() < serial:
        pass
    return time.perf_counter_ns() - start


def test_a_submit_behind_a_running_kernel_does_not_wait_for_it(gpu: Gpu) -> None:
    spin = long_kernel(gpu)
    small = gpu.storage_buffer(16)
    early, late, tiny = Readback(gpu, 16), Readback(gpu, 256), Readback(gpu, 16)
    fastest_ns = returned_while_running = 0
    for turn in range(TURNS):
        # Copied already, and mapped only while the kernel runs.
        gpu.queue.write_buffer(small, 0, np.full(4, turn, np.uint32))
        encoder = gpu.device.create_command_encoder()
        early.record(encoder, BufferRange(small, 0, 16))
        early.arm(gpu.submit(encoder))
        kernel_ns = spin_ns(gpu, spin)
        gpu.take_completions()

        spin.set(spin.turns, base=1_000 * turn)
        encoder = gpu.device.create_command_encoder()
        gpu.replay(encoder, [spin.command])
        late.record(encoder, spin.result)
        kernel = gpu.submit(encoder)
        late.arm(kernel)
        first = early.take()
        for _ in range(20):
            gpu.poll()
            if gpu.completed < kernel:
                assert late.take() is None, "the kernel runs"

        encoder = gpu.device.create_command_encoder()
        tiny.record(encoder, BufferRange(small, 0, 16))
        start = time.perf_counter_ns()
        behind = gpu.submit(encoder)
        submit_ns = time.perf_counter_ns() - start
        returned_while_running += gpu.poll() < kernel
        tiny.arm(behind)
        fastest_ns = min(fastest_ns or submit_ns, submit_ns)

        gpu.wait()
        assert [serial for serial, _ in gpu.take_completions()] == [kernel, behind]
        bytes_late, bytes_tiny = late.take(), tiny.take()
        assert first is not None and bytes_late is not None and bytes_tiny is not None
        assert first.view(np.uint32).tolist() == [turn] * 4
        assert bytes_late.view(np.uint32).tolist() == list(range(1_000 * turn, 1_000 * turn + 64))
        assert bytes_tiny.view(np.uint32).tolist() == [turn] * 4
    if not gpu.facts.is_cpu:
        # A CPU device takes one submission at a time, and a second one waits by design.
        assert returned_while_running == TURNS
        assert fastest_ns < kernel_ns / 4
