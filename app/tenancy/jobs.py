"""The two jobs of the network as a tenant: a training step and a display inference.

A job is a plan cut into chunks. `begin` feeds it, `encode` records one chunk, `submitted` tells
which submission carries it and `completed` that the device has finished the whole job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import wgpu

from app.camera.source import Frame, Image
from app.components import ComponentFinder
from app.network import Network
from app.pixels import finite_db, to_unit
from app.tenancy.figure import Figure
from app.tenancy.held_out import HeldOutTrace
from app.tenancy.nan_watch import NanWatch
from app.tenancy.replay import Replay
from engine.chunks import cut
from engine.readback import Readback
from engine.session import Session

FrameSource = Callable[[], Frame]
Stamps = dict[str, Any]

REPAINT_NS = 100_000_000
"""An unchanged camera image is painted anew after so long: the decoder has learnt meanwhile."""

COMPONENTS_NS = 1_000_000_000
"""How often tokens are brought to the host for a new projection."""


class Job(Protocol):
    """What the tenant asks of a job."""

    name: str
    runs: int
    chunks: list[tuple[int, int]]

    def cut(self, chunks: int) -> None:
        """Recut; only between two runs."""

    def chunk_ms(self, index: int, chunks: int) -> float:
        """The job's own figure for the GPU time of chunk `index` when cut into `chunks`."""

    def due(self, now_ns: int) -> bool:
        """Whether running now is worth while when another job is waiting."""

    def begin(self) -> None:
        """Feed the next run."""

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, index: int, stamps: Stamps | None = None
    ) -> None:
        """Record chunk number `index`; `stamps` are its pass's `timestamp_writes`."""

    def submitted(self, index: int, serial: int) -> None:
        """The chunk went out with this submission."""

    def completed(self) -> None:
        """The device has finished the run."""

    def poll(self) -> None:
        """Take readbacks that have arrived; called often, must be cheap."""


class _PlanJob:
    """What both jobs share: a session cut into chunks and a camera to feed it from.

    `costs`: ns per dispatch, measured or estimated.
    """

    name: str

    def __init__(self, session: Session, costs: Sequence[float], camera: FrameSource) -> None:
        self.runs = 0
        self.session, self._camera = session, camera
        self._costs = costs
        self._cuts: dict[int, list[tuple[int, int]]] = {}
        self.cut(1)

    def cut(self, chunks: int) -> None:
        """Recut into (at most) `chunks` ranges of about equal cost; asked before every run."""
        self.chunks = self._cut(chunks)

    def chunk_ms(self, index: int, chunks: int) -> float:
        """See Job."""
        first, last = self._cut(chunks)[index]
        return sum(self._costs[first:last]) / 1e6

    def _cut(self, chunks: int) -> list[tuple[int, int]]:
        if chunks not in self._cuts:
            self._cuts[chunks] = cut(self._costs, chunks)
        return self._cuts[chunks]

    def completed(self) -> None:
        """The device has finished the run."""
        self.runs += 1

    def is_last(self, index: int) -> bool:
        """Whether the chunk ends the job."""
        return index == len(self.chunks) - 1


class TrainJob(_PlanJob):
    """One step: forward, loss, backward, optimiser; publishes its weights with the last chunk."""

    name = "train"

    def __init__(
        self,
        network: Network,
        camera: FrameSource,
        watch: NanWatch | None = None,
        rehearsed: Sequence[Image] = (),
    ) -> None:
        super().__init__(network.train, network.train_costs, camera)
        self.network, self.watch = network, watch
        self._replay = Replay(seed=network.config.seed, rehearsed=rehearsed)
        self.losses: list[float] = []
        """First and latest loss that were read back."""
        self.diverged = False
        """Set when a loss was not finite: the job then must not run again."""
        self._loss: Figure[int] = Figure(network.gpu, network.train, "loss")

    @property
    def loss(self) -> float | None:
        """The newest mean squared error that has been read back."""
        return self.losses[-1] if self.losses else None

    def due(self, now_ns: int) -> bool:
        """Learning is always worth while, unless it has failed.

        When watched, the loss of the step before must be known: a failed step stays the last.
        """
        return not self.diverged and (self.watch is None or self._loss.idle)

    def begin(self) -> None:
        """Feed image and learning rate."""
        self.network.write_step(to_unit(self._replay.pick(self._camera())))

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, index: int, stamps: Stamps | None = None
    ) -> None:
        """See Job."""
        if index == 0 and self.watch is not None:
            self.watch.record(encoder)
        self.session.encode(encoder, *self.chunks[index], stamps)
        if self.is_last(index):
            self.network.publish(encoder)
            self._loss.record(encoder, self.network.step)

    def submitted(self, index: int, serial: int) -> None:
        """See Job."""
        if self.is_last(index):
            # Counted here: the next step may be fed before this one has completed.
            self.network.step += 1
            self._loss.submitted(serial)

    def poll(self) -> None:
        """See Job."""
        found = self._loss.take()
        if found is None:
            return
        _, loss = found
        self.losses = [self.losses[0], loss] if self.losses else [loss]
        self.diverged = self.diverged or not math.isfinite(loss)


class InferJob(_PlanJob):
    """Paint the newest camera image with the weights of the last finished step.

    Some runs paint a held-out photograph instead, elsewhere: see `HeldOutTrace`.
    """

    name = "infer"

    def __init__(
        self, network: Network, camera: FrameSource, held_out: HeldOutTrace | None = None
    ) -> None:
        super().__init__(network.infer, network.infer_costs, camera)
        self.network, self.held_out = network, held_out
        self.before = False
        """Whether to paint with the weights of the start; may change at any time."""
        self.errors: dict[bool, float] = {}
        """Mean squared error of the newest camera image painted before (True) and after."""
        self._error: Figure[bool] = Figure(network.gpu, network.infer, "error")
        self._finder = ComponentFinder()
        tokens = network.infer.type("tokens")
        self._tokens_shape = tokens.shape
        self._readback = Readback(network.gpu, tokens.nbytes)
        self._recorded = False
        self._aside = False
        self._shown = False
        self._painted = (-1, 0)
        self._next_tokens_ns = 0

    @property
    def psnr_db(self) -> float | None:
        """Of the newest camera image as it is shown; None while unknown."""
        return finite_db(self.errors[self.before]) if self.before in self.errors else None

    def due(self, now_ns: int) -> bool:
        """Whether there is a new image, or the last painting is old."""
        sequence, since_ns = self._painted
        return self._camera().sequence != sequence or now_ns - since_ns >= REPAINT_NS

    def begin(self) -> None:
        """Feed the image, and a renewed projection if there is one."""
        self._aside = self.held_out is not None and self.held_out.take_turn()
        if self.held_out is not None and self._aside:
            self.session = self.held_out.session
            self.held_out.begin()
            return
        self.session, self._shown = self.network.infer, self.before
        frame = self._camera()
        self._painted = (frame.sequence, time.perf_counter_ns())
        self.session.write("image", to_unit(frame.image))
        projection = self._finder.take()
        if projection is not None:
            self.session.write("components.basis", projection.basis)
            self.session.write("components.offset", projection.offset)

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, index: int, stamps: Stamps | None = None
    ) -> None:
        """See Job."""
        if index == 0:
            self.network.deploy(encoder, self.session, before=self._shown and not self._aside)
        self.session.encode(encoder, *self.chunks[index], stamps)
        self._recorded = False
        if not self.is_last(index):
            return
        if self.held_out is not None and self._aside:
            self.held_out.record(encoder)
            return
        self._error.record(encoder, self._shown)
        wanted = time.perf_counter_ns() >= self._next_tokens_ns and not self._finder.busy
        if wanted and self._readback.idle:
            self._readback.record(encoder, self.session.range("tokens"))
            self._next_tokens_ns = time.perf_counter_ns() + COMPONENTS_NS
            self._recorded = True

    def submitted(self, index: int, serial: int) -> None:
        """See Job."""
        if not self.is_last(index):
            return
        if self.held_out is not None and self._aside:
            self.held_out.submitted(serial)
        else:
            self._error.submitted(serial)
        if self._recorded:
            self._readback.arm(serial)

    def poll(self) -> None:
        """See Job."""
        found = self._error.take()
        if found is not None:
            self.errors[found[0]] = found[1]
        if self.held_out is not None:
            self.held_out.poll(None if self._shown else self.errors.get(False))
        data = self._readback.take()
        if data is not None:
            self._finder.submit(data.view(np.float32).reshape(self._tokens_shape))

    def close(self) -> None:
        """End the background thread."""
        self._finder.close()
