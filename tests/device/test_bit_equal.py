"""Learning beside the renderer gives the same bits as learning alone, whatever the scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from app.config import SessionConfig
from app.loop import FrameLoop
from app.network import Network
from app.pixels import to_unit
from app.progress import Progress
from app.rig import Rig
from app.telemetry.rows import ChunkRow, FrameRow
from app.xr.simulated import SimulatedDriver
from assets import photos_dir
from engine.optim import HYPER
from engine.profile import measured_costs

pytestmark = pytest.mark.gpu

EYES = (48, 48)
STILL = sorted((photos_dir() / "val").iterdir())[0]
"""The one picture that the camera shows, so that every session learns from the same."""
STEPS = 2

Weights = dict[str, np.ndarray]


def open_rig(owned: ExitStack, max_kernel_ms: float | None = None) -> Rig:
    config = SessionConfig(camera=str(STILL), eye_size=EYES[0], max_kernel_ms=max_kernel_ms)
    rig = Rig(config, Progress(), owned)
    rig.build(EYES, period_ms=11.0)
    return rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with ExitStack() as owned:
        yield open_rig(owned)


def weights_of(network: Network) -> Weights:
    """Parameters and optimiser state."""
    return network.train.snapshot(["parameter", "state"])


class Alone:
    """The session alone: whole steps, nothing between them, nothing drawn."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.after: dict[int, Weights] = {}

    def weights(self, steps: int) -> Weights:
        """After so many steps: a frame of a fast device has room for many."""
        if steps not in self.after:
            network = self.rig.network
            network.reset()
            network.train.write("image", to_unit(self.rig.image().image))
            for step in range(1, steps + 1):
                network.train.write(HYPER, network.optimizer.hyper(step))
                network.train.run()
            self.after[steps] = weights_of(network)
        return self.after[steps]


@pytest.fixture(scope="module")
def alone(rig: Rig) -> Alone:
    return Alone(rig)


class Session:
    """Frames of the real loop until STEPS training steps have completed."""

    def __init__(
        self, rig: Rig, policy: str, chunks: int, *, in_flight: int = 1, mode: str = "train"
    ) -> None:
        # The deadline policy needs room for a chunk in front of some deadline.
        driver = SimulatedDriver(1.25 if policy == "deadline" else 90.0, EYES)
        self.frames: list[FrameRow] = []
        self.chunks: list[ChunkRow] = []
        rig.network.reset()
        rig.gpu.wait()
        with ExitStack() as owned:
            stamps = rig.stamps(rig.clock())
            tenant, train, infer = rig.tenant(
                stamps, policy=policy, in_flight=in_flight, chunks=chunks, mode=mode, owned=owned
            )
            loop = FrameLoop(
                rig.gpu,
                driver,
                rig.scene,
                tenant,
                rig.camera.latest,
                stamps,
                on_frame=self.frames.append,
                on_chunk=self.chunks.append,
            )
            driver.open()
            jobs = (train, infer) if mode == "both" else (train,)
            loop.run(lambda: any(job.runs < STEPS for job in jobs))
            loop.finish()
            self.inferences = infer.runs
            assert rig.network.step == train.runs
        # A frame of a fast device has room for many.
        if rig.gpu.facts.is_cpu:
            assert rig.network.step in (STEPS, STEPS + 1)  # the step under way is finished
        self.steps = rig.network.step
        self.weights = weights_of(rig.network)
        assert all(row.submit_ns is not None for row in self.frames)
        assert rig.picture()[..., :3].std() > 10


def check(session: Session, alone: Alone) -> None:
    """The same bits as after as many steps alone, and other ones than after one less."""
    assert session.steps >= STEPS
    expected, before = alone.weights(session.steps), alone.weights(session.steps - 1)
    assert session.weights.keys() == expected.keys()
    for name, value in session.weights.items():
        assert value.tobytes() == expected[name].tobytes(), name
    assert any(value.tobytes() != before[name].tobytes() for name, value in session.weights.items())


@pytest.mark.parametrize("chunks", [1, 3, 8])
@pytest.mark.parametrize("policy", ["fixed", "greedy", "deadline"])
def test_learning_beside_the_renderer(policy: str, chunks: int, rig: Rig, alone: Alone) -> None:
    session = Session(rig, policy, chunks)
    check(session, alone)
    assert {row.of for row in session.chunks} == {chunks}
    assert len(session.frames) >= (1 if policy == "deadline" else STEPS)


def test_learning_beside_renderer_and_inference(rig: Rig, alone: Alone) -> None:
    session = Session(rig, "greedy", 3, in_flight=2, mode="both")
    check(session, alone)
    assert session.inferences >= STEPS
    assert max(row.in_flight for row in session.chunks) == 2


def test_learning_with_kernels_in_parts(rig: Rig, alone: Alone) -> None:
    costs = measured_costs(rig.network.train, 1)
    if costs is None:
        pytest.skip("this device has no timestamps, so nothing is measured and split")
    whole = len(rig.network.train.plan.dispatches)
    with ExitStack() as owned:
        # Half of the longest kernel's time: that one at least is split.
        split = open_rig(owned, max_kernel_ms=max(costs) / 2 / 1e6)
        assert len(split.network.train.plan.dispatches) > whole
        check(Session(split, "fixed", 3), alone)
