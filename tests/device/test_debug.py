"""Where numbers stop being finite: in a plan, in a training job, and in a whole preview."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.camera.source import Frame
from app.network import Network, NetworkConfig
from app.tenancy.jobs import TrainJob
from app.tenancy.nan_watch import NanWatch
from assets import photos_dir
from engine import ops
from engine.checkpoint import save_checkpoint
from engine.compile import compile_graph
from engine.debug import NonFinite, first_nonfinite
from engine.gpu import Gpu
from engine.graph import Graph
from engine.optim import Adam, Sgd, minimize
from engine.session import Session
from models.vision import IMAGE
from tests.command_line import ROOT

pytestmark = pytest.mark.gpu

SMALL = np.linspace(0.1, 0.9, 67, dtype=np.float32)


def trained(gpu: Gpu) -> Session:
    """loss = sum(sqrt(w * x)), which overflows for a large x and has no gradient at x = 0."""
    graph = Graph()
    w = graph.parameter("w", (67,), lambda rng, s: np.ones(s))
    x = graph.input("x", (67,))
    graph.input("counts", (67,), "u32")
    product = ops.mul(ops.affine(w, 3e38), x)
    graph.output("product", product)
    loss = ops.reduce_sum(ops.unary("sqrt", product), [0])
    graph.output("loss", loss)
    minimize(loss, Sgd(1e-30))
    session = Session(gpu, compile_graph(graph, gpu.facts, optimize=False))
    session.load({"w": SMALL, "x": SMALL, "optim.hyper": Sgd(1e-30).hyper(1)})
    return session


def test_a_finite_run_has_no_culprit(gpu: Gpu) -> None:
    session = trained(gpu)
    session.poison()
    assert first_nonfinite(session) is None
    # It was one run like any other.
    other = trained(gpu)
    other.run()
    for name in ("w", "loss", "sgd_m.w"):
        assert np.array_equal(session.read(name), other.read(name))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "kind"), [("w", "parameter"), ("x", "input"), ("sgd_m.w", "state")]
)
def test_a_source_that_is_not_finite(name: str, kind: str, value: float, gpu: Gpu) -> None:
    session = trained(gpu)
    planted = SMALL.copy()
    planted[-1] = value
    session.write(name, planted)
    found = first_nonfinite(session)
    assert found == NonFinite(-1, kind, name)
    assert str(found) == f"{kind} '{name}' is not finite from the start"


def test_an_overflow_names_its_launch_and_not_what_follows(gpu: Gpu) -> None:
    session = trained(gpu)
    x = SMALL.copy()
    x[13] = 1e30
    session.write("x", x)
    found = first_nonfinite(session)
    assert found is not None and found.label == "mul" and found.name == "product"
    launch = session.plan.dispatches[found.launch]
    assert launch.kernel.label == "mul" and session.plan.tensors["product"] in launch.write_ids()
    assert str(found) == (
        f"launch {found.launch} (mul) is the first to write a non-finite 'product'"
    )


def test_a_gradient_fails_behind_a_finite_loss(gpu: Gpu) -> None:
    session = trained(gpu)
    x = SMALL.copy()
    x[5] = 0
    session.write("x", x)
    found = first_nonfinite(session)
    assert found is not None and found.label == "sqrt_grad" and found.name == ""
    assert "an intermediate result" in str(found)
    assert np.isfinite(session.read("loss")).all()


def test_integers_are_not_floats(gpu: Gpu) -> None:
    graph = Graph()
    graph.output("labels", graph.input("counts", (3,), "u32"))
    graph.output("y", ops.gelu(graph.input("x", (3,))))
    session = Session(gpu, compile_graph(graph, gpu.facts))
    session.write("counts", np.array([0x7FC00000, 0xFF800000, 0], np.uint32))
    assert first_nonfinite(session) is None


def test_a_watched_step_is_run_again_from_what_it_started_from(gpu: Gpu) -> None:
    """An absurd learning rate: the first step is fine, the second works with its weights."""
    network = Network(gpu, NetworkConfig(depth=1, optimizer=Adam(rate=1e36)))
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (IMAGE, IMAGE, 3), np.uint8)
    watch = NanWatch(network)
    job = TrainJob(network, lambda: Frame(image, 1, 1), watch)
    job.cut(3)
    started = []
    while not job.diverged:
        assert len(started) < 3, "the rate should have made it diverge"
        assert job.due(0)
        started.append(network.train.snapshot(["parameter", "state"]))
        job.begin()
        for index in range(3):
            encoder = gpu.device.create_command_encoder()
            job.encode(encoder, index)
            job.submitted(index, gpu.submit(encoder))
        assert not job.due(0), "the loss is not known yet"
        gpu.wait()
        job.poll()
    assert not job.due(0)
    assert len(started) == 2 and np.isfinite(job.losses[0])
    assert all(np.isfinite(v).all() for v in started[1].values())
    line = watch.find()
    assert line.startswith("launch ") and "is the first to write a non-finite" in line
    again = Session(gpu, network.train.plan)
    again.load({name: network.train.read(name) for name in network.train.plan.names("frozen")})
    again.load(started[1])
    for name in network.train.plan.names("input"):
        again.write(name, network.train.read(name))
    assert str(first_nonfinite(again)) == line


def test_a_preview_names_the_culprit(tmp_path: Path, gpu: Gpu) -> None:
    network = Network(gpu, NetworkConfig())
    weights = network.train.snapshot(["parameter"])
    weights["decoder.head.bias"][7] = np.nan
    checkpoint = tmp_path / "broken.safetensors"
    save_checkpoint(checkpoint, weights, {})
    picture = sorted((photos_dir() / "val").iterdir())[0]
    options = "--headless --job train --chunks 1 --held-out 0 --frames 60 --eye-size 32 --hz 20"
    options += f" --camera {picture} --checkpoint {checkpoint} --out {tmp_path / 'out'}"
    result = subprocess.run(
        [sys.executable, "run.py", "preview", *options.split(), "--debug-nan"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    told = " ".join(result.stderr.split())
    assert (
        "the loss is not finite: training stopped at step 1: parameter 'decoder.head.bias'" in told
    )
    assert told.count("the loss is not finite") == 1
