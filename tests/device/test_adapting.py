"""A trained decoder in use: before and after, held-out figures beside the frames, forgetting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from encoder_files import hugging_face, save
from vit import random_weights

from app.camera import Frame, held_out, rehearsed
from app.cli import main
from app.encoder import MINI_ENCODER
from app.network import Network, NetworkConfig
from app.pixels import psnr_db, to_unit
from app.start import ADAPTING
from app.telemetry.rows import QualityRow
from app.tenancy.held_out import EVERY, HeldOutTrace
from app.tenancy.jobs import InferJob, TrainJob
from app.tenancy.policy import GreedyPolicy
from app.tenancy.replay import Replay
from app.tenancy.tenant import Tenant
from app.xr.driver import FrameTiming
from engine.checkpoint import load_checkpoint
from engine.gpu import Gpu

pytestmark = pytest.mark.gpu

SIZE, DEPTH = 32, 1
SMALL = f"--headless --eye-size 32 --input-size {SIZE} --depth {DEPTH} --chunks 1".split()


@pytest.fixture(scope="module")
def network(gpu: Gpu) -> Network:
    return Network(gpu, NetworkConfig("random", depth=DEPTH, size=SIZE))


@pytest.fixture(scope="module")
def photos() -> np.ndarray:
    return held_out(SIZE)


class Session:
    """Both jobs of a network in turn, each chunk waited for; the camera shows one photograph."""

    def __init__(self, network: Network, photo: np.ndarray, measured: np.ndarray | None) -> None:
        network.reset()
        self.network, self.frames = network, 0
        self.rows: list[QualityRow] = []
        self.held_out = None
        if measured is not None:
            self.held_out = HeldOutTrace(network, measured, self.rows.append)
            self.held_out.measure()
        self.photo = photo
        self.train = TrainJob(network, self.camera)
        self.infer = InferJob(network, self.camera, self.held_out)
        self.tenant = Tenant(
            {"train": self.train, "infer": self.infer},
            GreedyPolicy(1),
            chunks=2,
            mode="both",
            new_encoder=network.gpu.device.create_command_encoder,
            submit=network.gpu.submit,
        )

    def camera(self) -> Frame:
        """A new frame at each look."""
        return Frame(self.photo, self.frames * 10**9, self.frames)

    def run(self, runs: int) -> None:
        gpu = self.network.gpu
        gpu.wait()
        gpu.take_completions()
        ends = self.train.runs + self.infer.runs + runs
        while self.train.runs + self.infer.runs < ends:
            self.frames += 1
            timing = FrameTiming(self.frames, 2**62, 10**10, True, 2**62)
            self.tenant.frame_started(timing, self.frames)
            self.tenant.pump()
            gpu.wait()
            for serial, done_ns in gpu.take_completions():
                self.tenant.completed(serial, done_ns)
            self.tenant.poll()

    def painted(self) -> bytes:
        return self.network.infer.read("painted").tobytes()


def test_comparing_and_measuring_leave_learning_alone(network: Network, photos: np.ndarray) -> None:
    photo = photos[3]
    plain = Session(network, photo, None)
    (at_first,) = network.errors(photo[None])
    first_picture = plain.painted()
    plain.run(17)
    weights = network.train.snapshot(["parameter", "state"])
    plain.infer.close()

    session = Session(network, photo, photos[:2])
    created = network.gpu.objects_created
    session.run(6)
    after = session.infer.psnr_db
    session.infer.before = True
    session.run(4)
    assert network.gpu.objects_created == created
    assert session.painted() == first_picture
    assert session.infer.psnr_db == pytest.approx(psnr_db(at_first), abs=1e-3)
    assert after is not None and after > psnr_db(at_first)
    session.infer.before = False
    session.run(7)
    assert session.painted() != first_picture
    session.infer.close()
    assert network.step == 8 == plain.train.runs
    for name, value in network.train.snapshot(["parameter", "state"]).items():
        assert value.tobytes() == weights[name].tobytes(), name

    begin, *beside = session.rows
    assert begin.photo is None and len(beside) == 9 // EVERY
    assert [row.photo for row in beside] == [n % 2 for n in range(len(beside))]
    steps = [row.step for row in beside]
    assert steps == sorted(set(steps)) and steps[0] > 0
    # The newest figure is that of the weights of its step: none have been published since.
    last = beside[-1]
    assert last.step == 8 and last.photo is not None
    (error,) = network.errors(photos[last.photo][None])
    assert last.photo_db == pytest.approx(psnr_db(error), abs=1e-3)
    assert last.camera_db is not None and last.camera_db > psnr_db(at_first)


def test_nothing_is_measured_anew_while_nothing_is_learnt(
    network: Network, photos: np.ndarray
) -> None:
    session = Session(network, photos[3], photos[:2])
    session.tenant.mode = "infer"
    session.run(3 * EVERY)
    session.infer.close()
    assert len(session.rows) == 1


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mini encoder, and a decoder trained from it for some steps by the train command."""
    folder = tmp_path_factory.mktemp("shipped")
    weights = random_weights(3, np.random.default_rng(1))
    save(hugging_face(weights), folder / "encoder.safetensors", "F16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assets.encoder_file", lambda: folder / "encoder.safetensors")
        out = folder / "decoder.safetensors"
        options = f"--data assets/photos/train --steps 40 --out {out} --size {SIZE} --batch 2"
        assert main(["train", *options.split(), "--depth", str(DEPTH)]) == 0
    return folder


@pytest.fixture
def in_use(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("assets.encoder_file", lambda: shipped / "encoder.safetensors")
    monkeypatch.setattr("assets.decoder_file", lambda: shipped / "decoder.safetensors")
    yield shipped


def preview(out: Path, *options: str) -> dict[str, object]:
    assert main(["preview", *SMALL, "--out", str(out), "--held-out", "3", *options]) == 0
    summary: dict[str, object] = json.loads((out / "summary.json").read_text())
    assert summary["outcome"] == "ok" and summary["objects_created_in_loop"] == 0
    return summary


def test_sessions_start_from_what_ships(in_use: Path, tmp_path: Path) -> None:
    fresh = preview(tmp_path / "fresh", "--fresh", "--frames", "2")
    assert (fresh["encoder"], fresh["decoder"]) == (MINI_ENCODER, "fresh decoder")
    other = preview(tmp_path / "other", "--encoder", "random", "--frames", "2")
    assert "trained from another encoder" in str(other["decoder"])
    saved = tmp_path / "mine.safetensors"
    trained = preview(tmp_path / "trained", "--frames", "20", "--save", str(saved))
    assert (trained["encoder"], trained["decoder"]) == (MINI_ENCODER, "trained decoder")
    assert trained["psnr_first_db"] > fresh["psnr_first_db"] + 2  # type: ignore[operator]

    file = load_checkpoint(saved)
    assert file.metadata["step"] == str(trained["train_steps"]) != "0"
    digest = load_checkpoint(in_use / "decoder.safetensors").metadata["encoder_sha256"]
    assert file.metadata["encoder_sha256"] == digest
    resumed = preview(tmp_path / "resumed", "--checkpoint", str(saved), "--frames", "2")
    assert resumed["decoder"] == "decoder: mine.safetensors"
    assert resumed["psnr_first_db"] == trained["psnr_last_db"]


def test_a_camera_that_shows_one_photograph_for_long_is_no_reason_to_forget(
    in_use: Path, gpu: Gpu, photos: np.ndarray
) -> None:
    network = Network(gpu, NetworkConfig(depth=DEPTH, size=SIZE, shipped_decoder=True))
    assert network.optimizer is ADAPTING
    still = photos[-1]

    def learn(replay: Replay, steps: int = 240) -> tuple[float, float]:
        """Change of the PSNR of the other held-out photographs and of the shown one, dB."""
        network.reset()

        def figures() -> np.ndarray:
            errors = network.errors(photos)
            return np.array([psnr_db(float(np.mean(errors[:-1]))), psnr_db(errors[-1])])

        before = figures()
        for step in range(steps):
            image = replay.pick(Frame(still, step * 10**7, step))
            network.write_step(to_unit(image))
            network.train.run()
            network.step += 1
        encoder = gpu.device.create_command_encoder()
        network.publish(encoder)
        gpu.submit(encoder)
        others, shown = figures() - before
        return float(others), float(shown)

    kept, adapted = learn(Replay(rehearsed=rehearsed(SIZE)))
    lost, _ = learn(Replay())
    print(f"others {kept:+.2f} dB with rehearsal, {lost:+.2f} without; shown {adapted:+.2f} dB")
    assert adapted > 1.0
    assert kept > -0.5 and kept > lost + 0.3
