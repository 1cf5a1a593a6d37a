"""For tests of GPU times: devices without some feature, and a kernel that is as long as wanted."""

from __future__ import annotations

import os

import numpy as np

from engine.gpu import ADAPTER_VARIABLE, BufferRange, Command, Gpu, find_adapter

ROUND = "x ^= x << 13u; x ^= x >> 17u; x ^= x << 5u;\n"
ROUNDS = 128
MOST_TURNS = 60_000
"""Some CPU drivers leave a loop after 65535 turns."""
SPIN = f"""
@group(0) @binding(0) var<storage, read> parameters: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  var x = id.x + 1u;
  for (var i = 0u; i < parameters[0]; i++) {{ {ROUND * ROUNDS} }}
  // The generator never reaches zero, but no compiler knows.
  y[id.x] = select(parameters[1] + id.x, 0u, x == 0u);
}}
"""


class Spin:
    """64 invocations that advance a random number generator ROUNDS rounds a turn."""

    def __init__(self, gpu: Gpu, turns: int) -> None:
        self.gpu = gpu
        self.result = BufferRange(gpu.storage_buffer(256), 0, 256)
        self._parameters = BufferRange(gpu.storage_buffer(16), 0, 16)
        self.command: Command = gpu.command(
            SPIN, [self._parameters], [self.result], (1, 1, 1), "spin"
        )
        self.set(turns)

    def set(self, turns: int, base: int = 0) -> None:
        """From the next submission on: so many turns, and `base + i` as the result's element i."""
        self.turns = min(turns, MOST_TURNS)
        values = np.array([self.turns, base, 0, 0], np.uint32)
        self.gpu.queue.write_buffer(self._parameters.buffer, 0, values)


def device_with(gpu: Gpu, features: list[str]) -> Gpu:
    """Another device of the same adapter that has only these features."""
    # Dawn gives one device for each adapter object.
    adapter = find_adapter(gpu.backend, os.environ.get(ADAPTER_VARIABLE, ""))
    return Gpu(gpu.backend, adapter, gpu.backend.request_device(adapter, features, {}))
