"""Training steps one after the other on a device of one's own, which never waits for the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.train.errors import TrainError
from engine.compile import compile_graph
from engine.errors import GpuError, PlanError
from engine.gpu import BufferRange, Gpu
from engine.graph import Graph
from engine.readback import Readback
from engine.session import Session

POLL_S = 0.0002
LOST_S = 600.0
"""No step takes so long: the device is lost."""


@dataclass(frozen=True)
class Pace:
    """How far the host runs ahead of the device."""

    in_flight: int = 2
    """Steps submitted and not finished: one runs while the next is prepared."""
    losses: int = 16
    """Steps whose losses are read back together; at least as many as steps in flight."""


CPU_PACE = Pace(1, 1)
"""A CPU device runs one step at a time anyway, and slowly enough to tell of each."""


class Stepper:
    """A training graph in use; its output `losses` is read back for every step, in order.

    Raises TrainError, saying what is too large (`what`), if the device cannot hold it.
    """

    def __init__(
        self, gpu: Gpu, graph: Graph, losses: str, what: str, pace: Pace | None = None
    ) -> None:
        self.gpu = gpu
        self.pace = pace or (CPU_PACE if gpu.facts.is_cpu else Pace())
        try:
            # Without the choices that `tune` measured: the same bits on every machine of a kind.
            plan = compile_graph(graph, gpu.facts, contract=gpu.contract)
        except (PlanError, MemoryError) as error:
            raise TrainError(
                f"{what} at once are too much for this device: {error}; take a smaller --batch"
            ) from error
        self.session = Session(gpu, plan)
        self.step = 0
        """Steps submitted, those before a resumed checkpoint included."""
        self._in_flight: deque[int] = deque()
        self._source = self.session.range(losses)
        size = self._source.size * self.pace.losses
        self._losses = BufferRange(gpu.storage_buffer(size, "losses"), 0, size)
        self._filled = 0
        self._readback = Readback(gpu, size)

    def resume(self, tensors: Mapping[str, np.ndarray], step: int) -> None:
        """Go on after `step` with what a checkpoint holds of weights and state."""
        self.session.load(tensors)
        self.step = step

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors of a kind: "parameter" or "state"."""
        return {name: self.session.type(name).shape for name in self.session.plan.names(kind)}

    def submit(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Submit one step on the graph's inputs.

        Waits while enough steps are in flight. Returns the losses that have arrived: f32 [steps,
        losses of a step], in order.
        """
        self._make_room()
        arrived = self._arrived()
        self.session.load(inputs)
        encoder = self.gpu.device.create_command_encoder()
        source = self._source
        encoder.copy_buffer_to_buffer(
            source.buffer,
            source.offset,
            self._losses.buffer,
            source.size * self._filled,
            source.size,
        )
        self._filled += 1
        full = self._filled == self.pace.losses
        if full:
            self._readback.record(encoder, self._losses)
            self._filled = 0
        serial = self.session.run(behind=encoder)
        if full:
            self._readback.arm(serial)
        self._in_flight.append(serial)
        self.step += 1
        return arrived

    def wait(self) -> np.ndarray:
        """Wait for all steps; the losses that are left, as `submit` returns them."""
        self.gpu.wait(LOST_S)
        left = [self._arrived()]
        if self._filled:
            size = self._source.size * self._filled
            left.append(self._rows(self.gpu.queue.read_buffer(self._losses.buffer, 0, size)))
            self._filled = 0
        return np.concatenate(left)

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and state after the last step; waits for the device."""
        return self.session.snapshot(["parameter", "state"])

    def _make_room(self) -> None:
        deadline = time.monotonic() + LOST_S
        while True:
            done = self.gpu.poll()
            while self._in_flight and self._in_flight[0] <= done:
                self._in_flight.popleft()
            if len(self._in_flight) < self.pace.in_flight:
                self.gpu.take_completions()
                return
            if time.monotonic() > deadline:
                raise GpuError(f"the device did not finish a training step within {LOST_S:.0f} s")
            time.sleep(POLL_S)

    def _arrived(self) -> np.ndarray:
        data = self._readback.take()
        return self._rows(b"" if data is None else data)

    def _rows(self, data: np.ndarray | memoryview | bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32).reshape(-1, self._source.size // 4)
