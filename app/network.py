"""Encoder and decoder on the shared device: one training and one inference session.

Weights travel one way, at step ends only: training -> published -> inference. A training step
copies its parameters to `published` with its last chunk; an inference takes that copy with its
first chunk. So display inference uses the weights of one finished step from beginning to end,
however the chunks of both interleave. A second copy keeps the weights of the start, for comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import wgpu

from app.encoder import open_encoder
from app.pixels import to_unit
from app.start import choose_start, has_state
from engine.chunks import estimated_costs
from engine.compile import compile_graph
from engine.gpu import BufferRange, Gpu
from engine.kernel_table import load_table
from engine.optim import HYPER, Optimizer
from engine.profile import measured_costs
from engine.readback import Readback
from engine.session import Session
from engine.split import split_plan
from models.dinov3 import DEFAULT_DEPTH, WIDTH
from models.nn import initial_parameters
from models.vision import COMPONENTS, IMAGE, inference_graph, training_graph

log = logging.getLogger(__name__)

MEASURE_REPEATS = 7
"""Runs that measure each plan's launches at start-up, 2 to 3 ms each on a GPU."""

SPLIT_ROUNDS = 3
"""Parts may take longer than their share: they are measured, and split again so often at most."""


@dataclass(frozen=True)
class NetworkConfig:
    """What to build.

    `encoder`: see `app.encoder.open_encoder`; `checkpoint`: a decoder to resume from; `depth`:
    layers of the encoder; `size`: side of the image, pixels, a multiple of 16; `shipped_decoder`:
    whether to start from it if it fits the encoder; `optimizer`: instead of the start's own.
    """

    encoder: str | None = None
    checkpoint: Path | None = None
    depth: int = DEFAULT_DEPTH
    size: int = IMAGE
    seed: int = 0
    shipped_decoder: bool = False
    optimizer: Optimizer | None = None


class Network:
    """The learning and painting network. Raises CheckpointError for unusable files."""

    def __init__(self, gpu: Gpu, config: NetworkConfig) -> None:
        self.gpu, self.config = gpu, config
        self.encoder = open_encoder(config.encoder, config.depth)
        self.start = choose_start(config.checkpoint, self.encoder, shipped=config.shipped_decoder)
        self.optimizer = config.optimizer or self.start.optimizer
        self.step = self.start.step
        """Finished training steps, those before a resumed checkpoint included."""
        shape = {"depth": config.depth, "size": config.size}
        training = training_graph(self.optimizer, **shape)
        # What `run.py tune` has measured, if it has.
        facts = replace(gpu.facts, table=load_table(gpu))
        self.train = Session(gpu, compile_graph(training, facts, contract=gpu.contract))
        painting = inference_graph(**shape)
        self.infer = Session(gpu, compile_graph(painting, facts, contract=gpu.contract))
        self.train_costs = estimated_costs(self.train.plan, is_cpu=facts.is_cpu)
        """Nanoseconds of each launch: estimated, measured by `warm_up`."""
        self.infer_costs = estimated_costs(self.infer.plan, is_cpu=facts.is_cpu)
        decoder = initial_parameters(training, config.seed, trainable=True)
        self._initial = decoder | self.encoder.tensors | self._resumed()
        self._connect()

    def _resumed(self) -> dict[str, np.ndarray]:
        """What the start's file holds of weights and optimiser state."""
        file, plan = self.start.file, self.train.plan
        if file is None:
            return {}
        names = [*plan.names("parameter"), *(plan.names("state") if has_state(file) else ())]
        return file.pick({name: self.train.type(name).shape for name in names})

    def _connect(self) -> None:
        """Find the memory that weights travel between, and fill it."""
        self._weights = _only(self.train.pack("parameter"))
        self._check_layout()
        self._published = self.gpu.storage_buffer(self._weights.size, "published")
        self._before = self.gpu.storage_buffer(self._weights.size, "before")
        self.reset()

    def reset(self) -> None:
        """Back to the initial (or resumed) weights and optimiser state, and publish them."""
        for session in (self.train, self.infer):
            self._fill(session)
        for name in self.train.plan.names("state"):
            zeros = np.zeros(self.train.type(name).shape, np.float32)
            self.train.write(name, self._initial.get(name, zeros))
        self.infer.write("components.basis", np.zeros((COMPONENTS, WIDTH), np.float32))
        self.infer.write("components.offset", np.full(COMPONENTS, 0.5, np.float32))
        self.step = self.start.step
        w = self._weights
        encoder = self.gpu.device.create_command_encoder()
        self.publish(encoder)
        encoder.copy_buffer_to_buffer(w.buffer, w.offset, self._before, 0, w.size)
        self.gpu.submit(encoder)

    def another_inference(self) -> Session:
        """A session like `infer` with memory of its own, for pictures that nobody is shown."""
        session = Session(self.gpu, self.infer.plan)
        self._fill(session)
        return session

    def _fill(self, session: Session) -> None:
        names = [*session.plan.names("frozen"), *session.plan.names("parameter")]
        session.load({name: self._initial[name] for name in names})

    def warm_up(self, max_kernel_ms: float | None = None) -> None:
        """Run both plans so that drivers finish compiling, measure their launches, and reset.

        `max_kernel_ms`: kernels that take longer on this device are split; raises KernelTooLong for
        one that cannot be. Sessions may be replaced: to be called before their memory is shared.
        """
        self.train, self.train_costs = self._measure(self.train, self.train_costs, max_kernel_ms)
        self.infer, self.infer_costs = self._measure(self.infer, self.infer_costs, max_kernel_ms)
        self._connect()

    def _measure(
        self, session: Session, estimated: list[float], max_kernel_ms: float | None
    ) -> tuple[Session, list[float]]:
        repeats = 1 if self.gpu.facts.is_cpu else MEASURE_REPEATS
        costs = measured_costs(session, repeats)
        if costs is None:
            session.run()
            self.gpu.wait()
            return session, estimated
        for _ in range(SPLIT_ROUNDS):
            if max_kernel_ms is None or max(costs) <= 1e6 * max_kernel_ms:
                break
            plan = split_plan(session.plan, costs, 1e6 * max_kernel_ms)
            log.info("long kernels split: %d launches, not %d", len(plan.dispatches), len(costs))
            session = Session(self.gpu, plan)
            costs = measured_costs(session, repeats)
            assert costs is not None, "timestamps were available a moment ago"
        return session, costs

    # In the frame loop

    def write_step(self, image: np.ndarray) -> None:
        """Feed the next training step: image f32 [size, size, 3] in 0..1, and the scalars."""
        self.train.write("image", image)
        self.train.write(HYPER, self.optimizer.hyper(self.step + 1))

    def publish(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record the copy of the training weights; only at a step's end."""
        w = self._weights
        encoder.copy_buffer_to_buffer(w.buffer, w.offset, self._published, 0, w.size)

    def deploy(
        self,
        encoder: wgpu.GPUCommandEncoder,
        session: Session | None = None,
        *,
        before: bool = False,
    ) -> None:
        """Record the copy of weights into an inference session, the displayed one by default.

        Those published last, or with `before` those of the start.
        """
        d = _only((session or self.infer).pack("parameter"))
        source = self._before if before else self._published
        encoder.copy_buffer_to_buffer(source, 0, d.buffer, d.offset, d.size)

    # Outside of it

    def errors(self, images: np.ndarray) -> list[float]:
        """Mean squared error of each of images uint8 [n, size, size, 3], for signals in 0..1.

        Painted with the published weights. Waits for the device.
        """
        errors = []
        for image in images:
            self.infer.write("image", to_unit(image))
            encoder = self.gpu.device.create_command_encoder()
            self.deploy(encoder)
            self.infer.encode(encoder)
            self.gpu.submit(encoder)
            errors.append(float(self.infer.read("error")[0]))
        return errors

    def checkpoint_tensors(self, packs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Name the contents of downloaded packs, as `Saver` brings them."""
        tensors: dict[str, np.ndarray] = {}
        plan = self.train.plan
        pack_of = {r.buffer: data for r, data in zip(self.saved_packs(), packs, strict=True)}
        for name in [*plan.names("parameter"), *plan.names("state")]:
            where, kind = self.train.range(name), self.train.type(name)
            data = pack_of[where.buffer].view(np.float32)
            start = where.offset // 4
            tensors[name] = data[start : start + kind.size].reshape(kind.shape)
        return tensors

    def metadata(self, step: int) -> dict[str, str]:
        """What a checkpoint at `step` says of itself."""
        return {
            "step": str(step),
            "model": "dinovision-decoder",
            "encoder": self.encoder.note,
            "encoder_sha256": self.encoder.digest,
            "depth": str(self.config.depth),
            "size": str(self.config.size),
            "optimizer": repr(self.optimizer),
        }

    def saved_packs(self) -> list[BufferRange]:
        """Memory that a checkpoint consists of: parameters and optimiser moments."""
        return [*self.train.pack("parameter"), *self.train.pack("state")]

    def _check_layout(self) -> None:
        """Both plans must pack the decoder alike: weights are copied as one block."""
        places = [
            [(n, s.range(n).offset) for n in s.plan.names("parameter")]
            for s in (self.train, self.infer)
        ]
        assert places[0] == places[1], "training and inference pack parameters differently"


class Saver:
    """Downloads a checkpoint's packs without stalling the frame loop."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._packs = network.saved_packs()
        self._readbacks = [Readback(network.gpu, pack.size) for pack in self._packs]
        self._arrived: list[np.ndarray] = []

    @property
    def busy(self) -> bool:
        """Whether a download is under way."""
        return not all(r.idle for r in self._readbacks)

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record the download; only between training steps."""
        for readback, pack in zip(self._readbacks, self._packs, strict=True):
            readback.record(encoder, pack)

    def arm(self, serial: int) -> None:
        """Name the submission that carries it."""
        self._arrived = []
        for readback in self._readbacks:
            readback.arm(serial)

    def take(self) -> dict[str, np.ndarray] | None:
        """The checkpoint's tensors once they have arrived, one time; else None."""
        for readback in self._readbacks[len(self._arrived) :]:
            data = readback.take()
            if data is None:
                return None
            self._arrived.append(data)
        if not self._arrived:
            return None
        packs, self._arrived = self._arrived, []
        return self.network.checkpoint_tensors(packs)


def _only(ranges: list[BufferRange]) -> BufferRange:
    (single,) = ranges
    return single
