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

from app.camera.source import Frame
from app.components import ComponentFinder
from app.network import Network, psnr_db, to_unit
from app.tenancy.nan_watch import NanWatch
from app.tenancy.replay import Replay
from engine.chunks import cut
from engine.gpu import Readback
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
        self, network: Network, camera: FrameSource, watch: NanWatch | None = None
    ) -> None:
        super().__init__(network.train, network.train_costs, camera)
        self.network, self.watch = network, watch
        self._replay = Replay(seed=network.config.seed)
        self.losses: list[float] = []
        """First and latest loss that were read back."""
        self.diverged = False
        """Set when a loss was not finite: the job then must not run again."""
        self._readback = Readback(network.gpu, 4)
        self._loss = network.train.range("loss")
        self._recorded = False

    @property
    def loss(self) -> float | None:
        """The newest mean squared error that has been read back."""
        return self.losses[-1] if self.losses else None

    @property
    def psnr_db(self) -> float | None:
        """The same as PSNR in dB."""
        return psnr_db(self.losses[-1]) if self.losses and not self.diverged else None

    def due(self, now_ns: int) -> bool:
        """Learning is always worth while, unless it has failed.

        When watched, the loss of the step before must be known: a failed step stays the last.
        """
        return not self.diverged and (self.watch is None or self._readback.idle)

    def begin(self) -> None:
        """Feed image and learning rate."""
        self.network.write_step(to_unit(self._replay.pick(self._camera()).image))

    def encode(
        self, encoder: wgpu.GPUCommandEncoder, index: int, stamps: Stamps | None = None
    ) -> None:
        """See Job."""
        if index == 0 and self.watch is not None:
            self.watch.record(encoder)
        self.session.encode(encoder, *self.chunks[index], stamps)
        if self.is_last(index):
            self.network.publish(encoder)
            self._recorded = self._readback.idle
            if self._recorded:
                self._readback.record(encoder, self._loss)

    def submitted(self, index: int, serial: int) -> None:
        """See Job."""
        if self.is_last(index):
            # Counted here: the next step may be fed before this one has completed.
            self.network.step += 1
            if self._recorded:
                self._readback.arm(serial)

    def poll(self) -> None:
        """See Job."""
        data = self._readback.take()
        if data is None:
            return
        loss = float(data.view(np.float32)[0])
        self.losses = [self.losses[0], loss] if self.losses else [loss]
        self.diverged = self.diverged or not math.isfinite(loss)


class InferJob(_PlanJob):
    """Paint the newest camera image with the weights of the last finished step."""

    name = "infer"

    def __init__(self, network: Network, camera: FrameSource) -> None:
        super().__init__(network.infer, network.infer_costs, camera)
        self.network = network
        self._finder = ComponentFinder()
        tokens = network.infer.type("tokens")
        self._tokens_shape = tokens.shape
        self._readback = Readback(network.gpu, tokens.nbytes)
        self._recorded = False
        self._painted = (-1, 0)
        self._next_tokens_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether there is a new image, or the last painting is old."""
        sequence, since_ns = self._painted
        return self._camera().sequence != sequence or now_ns - since_ns >= REPAINT_NS

    def begin(self) -> None:
        """Feed the image, and a renewed projection if there is one."""
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
            self.network.deploy(encoder)
        self.session.encode(encoder, *self.chunks[index], stamps)
        self._recorded = False
        wanted = time.perf_counter_ns() >= self._next_tokens_ns and not self._finder.busy
        if self.is_last(index) and wanted and self._readback.idle:
            self._readback.record(encoder, self.session.range("tokens"))
            self._next_tokens_ns = time.perf_counter_ns() + COMPONENTS_NS
            self._recorded = True

    def submitted(self, index: int, serial: int) -> None:
        """See Job."""
        if self._recorded:
            self._readback.arm(serial)

    def poll(self) -> None:
        """See Job."""
        data = self._readback.take()
        if data is not None:
            self._finder.submit(data.view(np.float32).reshape(self._tokens_shape))

    def close(self) -> None:
        """End the background thread."""
        self._finder.close()
