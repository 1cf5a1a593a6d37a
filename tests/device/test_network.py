"""Weights on their way from training to the picture, with the real network at full size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import wgpu

from app.camera import Frame
from app.network import Network, NetworkConfig
from app.pixels import to_unit
from app.preview.saving import CheckpointSaver
from app.scene.renderer import PanelSources, SceneRenderer
from app.tenancy.jobs import InferJob, TrainJob
from app.tenancy.policy import GreedyPolicy
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameTiming
from app.xr.head_motion import scripted_views
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.errors import CheckpointError
from engine.gpu import Gpu
from models.dinov3 import PATCH
from models.vision import IMAGE

pytestmark = pytest.mark.gpu

Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def network(gpu: Gpu) -> Network:
    return Network(gpu, NetworkConfig())


class Camera:
    """A new image each time one is asked for, from random blocks of colour."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.sequence = 0

    def __call__(self) -> Frame:
        self.sequence += 1
        blocks = self.rng.integers(0, 256, (7, 7, 3), np.uint8)
        image = blocks.repeat(IMAGE // 7, axis=0).repeat(IMAGE // 7, axis=1)
        return Frame(image, self.sequence * 10**9, self.sequence)


PICTURE = Camera()().image


class Rig:
    """A tenant with both jobs, on a network with its initial weights, and eyes in between."""

    def __init__(self, network: Network, *, chunks: int, mode: str) -> None:
        network.reset()
        self.network, self.gpu = network, network.gpu
        self.train = TrainJob(network, Camera())
        self.infer = InferJob(network, Camera())
        self.tenant = Tenant(
            {"train": self.train, "infer": self.infer},
            GreedyPolicy(1),
            chunks=chunks,
            mode=mode,
            new_encoder=self.encoder,
            submit=self.gpu.submit,
        )
        self.frame_id = 0
        self.gpu.wait()
        self.gpu.take_completions()

    def encoder(self) -> wgpu.GPUCommandEncoder:
        return self.gpu.device.create_command_encoder()

    def frame(self) -> None:
        """One chunk, waited for."""
        self.frame_id += 1
        self.tenant.frame_started(
            FrameTiming(self.frame_id, 2**62, 10**10, True, 2**62), self.frame_id
        )
        self.tenant.pump()
        self.collect()

    def collect(self) -> None:
        self.gpu.wait()
        for serial, done_ns in self.gpu.take_completions():
            self.tenant.completed(serial, done_ns)
        self.tenant.poll()

    def close(self) -> None:
        self.infer.close()


def weights_of(network: Network) -> Weights:
    return network.train.snapshot(["parameter", "state"])


def paint(network: Network, weights: Weights | None = None) -> np.ndarray:
    """The fixed picture, painted with the given weights, or with the published ones."""
    network.infer.write("image", to_unit(PICTURE))
    encoder = network.gpu.device.create_command_encoder()
    if weights is None:
        network.deploy(encoder)
    else:
        network.infer.load({n: weights[n] for n in network.infer.plan.names("parameter")})
    network.infer.encode(encoder)
    network.gpu.submit(encoder)
    return network.infer.read("painted")


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


def test_a_picture_is_painted_with_the_weights_of_one_finished_step(network: Network) -> None:
    network.reset()
    gpu = network.gpu
    train = TrainJob(network, Camera())
    infer = InferJob(network, lambda: Frame(PICTURE, 0, 0))
    train.cut(5)
    infer.cut(4)

    def submit(job: TrainJob | InferJob, index: int) -> None:
        encoder = gpu.device.create_command_encoder()
        job.encode(encoder, index)
        job.submitted(index, gpu.submit(encoder))

    train.begin()
    for index in range(5):
        submit(train, index)
    finished = weights_of(network)

    # An inference begins late in the next step, and goes on when that step has ended and
    # published its weights.
    train.begin()
    for index in range(4):
        submit(train, index)
    infer.begin()
    submit(infer, 0)
    submit(infer, 1)
    submit(train, 4)
    submit(infer, 2)
    submit(infer, 3)
    painted = network.infer.read("painted")
    infer.close()

    newer = weights_of(network)
    assert not same(finished, newer)
    assert painted.tobytes() == paint(network, finished).tobytes()
    assert painted.tobytes() != paint(network, newer).tobytes()
    # The next picture is painted with the newer step's weights, which are published by now.
    assert paint(network).tobytes() == paint(network, newer).tobytes()
    assert network.step == 2


def test_learning_does_not_depend_on_chunks_or_on_what_is_drawn_between(network: Network) -> None:
    sources = PanelSources(
        network.infer.range("painted"),
        network.infer.range("components"),
        IMAGE,
        IMAGE // PATCH,
    )
    scene = SceneRenderer(network.gpu.device, (32, 32), sources, samples=1)
    results = []
    for chunks, mode in ((1, "train"), (3, "both"), (16, "both")):
        rig = Rig(network, chunks=chunks, mode=mode)
        while rig.train.runs < 2:
            encoder = rig.encoder()
            scene.encode(encoder)
            scene.set_views(scripted_views(rig.frame_id / 90))
            rig.gpu.submit(encoder)
            rig.frame()
        rig.close()
        assert network.step == 2
        assert (rig.infer.runs > 0) == (mode == "both")
        # The loss is downloaded without waiting: here it has arrived, one value per step.
        assert len(rig.train.losses) == 2
        results.append((weights_of(network), rig.train.losses))
    (weights, losses), *others = results
    assert 0 < losses[1] < losses[0] * 1.5
    for other, other_losses in others:
        assert same(weights, other)
        assert losses == other_losses


def test_reset_goes_back_to_the_first_step(network: Network) -> None:
    rig = Rig(network, chunks=1, mode="train")
    initial, picture = weights_of(network), paint(network)
    rig.frame()
    rig.close()
    assert network.step == 1 and not same(initial, weights_of(network))
    network.reset()
    assert network.step == 0 and same(initial, weights_of(network))
    assert paint(network).tobytes() == picture.tobytes()


def test_a_checkpoint_saved_while_training_deploys_bit_equal(
    network: Network, gpu: Gpu, tmp_path: Path
) -> None:
    rig = Rig(network, chunks=3, mode="both")
    messages: list[str] = []
    saver = CheckpointSaver(network, rig.tenant, messages.append)
    path = tmp_path / "decoder.safetensors"

    while rig.train.runs < 1:
        rig.frame()
    for _ in range(3 + 1):  # an inference, and into the middle of the next step
        rig.frame()
    assert not rig.tenant.between_runs and network.step == 1
    saver.request(path)
    saver.request(tmp_path / "another.safetensors")
    assert messages == ["still saving the last checkpoint"]

    encoder = rig.encoder()
    assert not saver.draw(encoder)
    while not saver.draw(encoder):
        rig.frame()
        encoder = rig.encoder()
    saver.submitted(gpu.submit(encoder))
    step, weights, picture = network.step, weights_of(network), paint(network)
    while network.step == step or not rig.tenant.between_runs:  # training goes on
        rig.frame()
    while saver.busy:
        saver.poll()
    saver.close()
    rig.close()
    assert messages[1:] == [f"saved {path} at step {step}"]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]

    assert paint(network).tobytes() != picture.tobytes()
    file = load_checkpoint(path)
    assert same(dict(file.tensors), weights)
    assert file.metadata["step"] == str(step)
    fresh = Network(gpu, NetworkConfig(checkpoint=path))
    assert fresh.step == step
    assert same(weights_of(fresh), weights)
    assert paint(fresh).tobytes() == picture.tobytes()
    check_bad_steps(gpu, path, tmp_path / "bad.safetensors")


def check_bad_steps(gpu: Gpu, good: Path, bad: Path) -> None:
    """A resumed optimiser needs to know its step."""
    file = load_checkpoint(good)
    others = {name: value for name, value in file.metadata.items() if name != "format"}
    save_checkpoint(bad, file.tensors, others | {"step": "1x"})
    with pytest.raises(CheckpointError, match=r"does not say how many steps it has learnt: '1x'"):
        Network(gpu, NetworkConfig(checkpoint=bad))


def test_weights_that_are_not_finite_never_replace_a_checkpoint(
    network: Network, gpu: Gpu, tmp_path: Path
) -> None:
    rig = Rig(network, chunks=1, mode="train")
    messages: list[str] = []
    saver = CheckpointSaver(network, rig.tenant, messages.append)
    path = tmp_path / "decoder.safetensors"
    path.write_text("an older checkpoint")
    name = network.train.plan.names("parameter")[0]
    network.train.write(name, np.full(network.train.type(name).shape, np.nan, np.float32))
    saver.request(path)
    encoder = rig.encoder()
    assert saver.draw(encoder)
    saver.submitted(gpu.submit(encoder))
    gpu.wait()
    while saver.busy:
        saver.poll()
    assert "not finite" in messages[0] and isinstance(saver.error, CheckpointError)
    assert path.read_text() == "an older checkpoint"

    # A loss that is not finite ends the training.
    rig.frame()
    saver.close()
    rig.close()
    assert rig.train.diverged
    rig.frame()
    assert network.step == 1
    network.reset()
