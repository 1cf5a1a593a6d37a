"""Training steps one after the other on a device of one's own, which never waits for the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.encoder import Encoder
from app.train.errors import TrainError
from app.train.recipe import Recipe
from engine.compile import compile_graph
from engine.errors import GpuError, PlanError
from engine.gpu import BufferRange, Gpu, Readback
from engine.optim import HYPER
from engine.session import Session
from models.nn import initial_parameters
from models.vision import training_graph

POLL_S = 0.0002
LOST_S = 600.0
"""No step takes so long: the device is lost."""


@dataclass(frozen=True)
class Pace:
    """How far the host runs ahead of the device."""

    in_flight: int = 2
    """Steps submitted and not finished: one runs while the next is prepared."""
    losses: int = 16
    """Losses that are read back together; at least as many as steps in flight."""


CPU_PACE = Pace(1, 1)
"""A CPU device runs one step at a time anyway, and slowly enough to tell of each."""


class Learner:
    """The decoder in training. Raises TrainError if the batch is too large for the device."""

    def __init__(
        self, gpu: Gpu, recipe: Recipe, encoder: Encoder, pace: Pace | None = None
    ) -> None:
        self.gpu, self.optimizer = gpu, recipe.optimizer
        self.pace = pace or (CPU_PACE if gpu.facts.is_cpu else Pace())
        graph = training_graph(
            self.optimizer, depth=recipe.depth, size=recipe.size, batch=recipe.batch
        )
        try:
            # Without the choices that `tune` measured: the same bits on every machine of a kind.
            plan = compile_graph(graph, gpu.facts)
        except (PlanError, MemoryError) as error:
            raise TrainError(
                f"{recipe.batch} samples of {recipe.size} x {recipe.size} pixels at once are too "
                f"much for this device: {error}; take a smaller --batch"
            ) from error
        self.session = Session(gpu, plan)
        self.session.load(encoder.tensors)
        self.session.load(initial_parameters(graph, recipe.seed, trainable=True))
        self.step = 0
        """Steps submitted, those before a resumed checkpoint included."""
        self._in_flight: deque[int] = deque()
        self._losses = BufferRange(
            gpu.storage_buffer(4 * self.pace.losses, "losses"), 0, 4 * self.pace.losses
        )
        self._filled = 0
        self._readback = Readback(gpu, self._losses.size)

    def resume(self, tensors: Mapping[str, np.ndarray], step: int) -> None:
        """Go on after `step` with what a checkpoint holds of weights and moments."""
        self.session.load(tensors)
        self.step = step

    def shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors of a kind: "parameter" or "state"."""
        return {name: self.session.type(name).shape for name in self.session.plan.names(kind)}

    def advance(self, images: np.ndarray) -> list[float]:
        """Submit one step on images f32 [batch, size, size, 3] in 0..1.

        Waits while enough steps are in flight. Returns the losses that have arrived, in order.
        """
        self._make_room()
        arrived = self._arrived()
        self.session.write("image", images.reshape(self.session.type("image").shape))
        self.session.write(HYPER, self.optimizer.hyper(self.step + 1))
        encoder = self.gpu.device.create_command_encoder()
        self.session.encode(encoder)
        loss = self.session.range("loss")
        encoder.copy_buffer_to_buffer(
            loss.buffer, loss.offset, self._losses.buffer, 4 * self._filled, loss.size
        )
        self._filled += 1
        full = self._filled == self.pace.losses
        if full:
            self._readback.record(encoder, self._losses)
            self._filled = 0
        serial = self.gpu.submit(encoder)
        if full:
            self._readback.arm(serial)
        self._in_flight.append(serial)
        self.step += 1
        return arrived

    def drain(self) -> list[float]:
        """Wait for all steps; the losses that are left."""
        self.gpu.wait(LOST_S)
        left = self._arrived()
        if self._filled:
            left += _floats(self.gpu.queue.read_buffer(self._losses.buffer, 0, 4 * self._filled))
            self._filled = 0
        return left

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and moments after the last step; waits for the device."""
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

    def _arrived(self) -> list[float]:
        data = self._readback.take()
        return [] if data is None else _floats(data)


def _floats(data: np.ndarray | memoryview) -> list[float]:
    return [float(value) for value in np.frombuffer(data, np.float32)]
