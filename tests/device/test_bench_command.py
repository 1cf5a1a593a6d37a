"""Whole benchmarks of reduced networks, as a user runs them: what they find, and what they miss."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.bench import bench as command
from app.bench.config import BenchConfig
from app.bench.golden import sample
from app.bench.processes import Caches
from app.bench.record import Job, Phase, RunRecord, load_job, load_record, save
from app.bench.runner import perform
from app.bench.runner_engine import EngineRunner
from app.bench.runner_torch import TorchRunner
from engine import ops
from engine.graph import Node
from models import smolvla
from models.layers import rms_norm, swiglu_mlp
from models.nn import Scope
from models.zoo import WORKLOADS
from tests.command_line import ROOT

pytestmark = pytest.mark.gpu

PATIENCE_S = 240
RUNNERS = {"engine": EngineRunner, "torch": TorchRunner}
Run = Callable[..., tuple[int, Path]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command with its runners in this process, where tests can break a network."""
    # Left behind by the runner otherwise.
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    out = tmp_path / "out"

    def here(runner: str, job: Job, caches: Caches, folder: Path) -> RunRecord:
        folder.mkdir(parents=True)
        save(folder / "job.json", job)
        job = load_job(folder / "job.json")
        save(folder / "record.json", perform(runner, job, RUNNERS[runner], folder))
        return load_record(folder / "record.json")

    def run(workload: str, **options: object) -> tuple[int, Path]:
        config = BenchConfig(workload=workload, reduced=True, out=out, **options)  # type: ignore[arg-type]
        return command.run_bench(config), out

    monkeypatch.setattr(command, "run_job", here)
    return run


def cells(out: Path) -> dict[tuple[str, str], str]:
    rows = json.loads((out / "bench.json").read_text())
    return {(row["workload"], row["phase"]): row["gate"] for row in rows}


def test_all_five_pass_their_gates(run: Run) -> None:
    pytest.importorskip("torch")
    status, out = run("all")
    found = cells(out)
    assert set(found.values()) == {"ok"} and len(found) == 3 * len(WORKLOADS)
    assert status == 0


def test_two_workloads_in_processes_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    options = ["--workload", "whisper,resnet50", "--reduced", "--profile", "--out", str(out)]
    done = subprocess.run(
        (sys.executable, "run.py", "bench", *options, "--processes", "2"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "6 cells: 6 ok" in done.stdout
    assert "Whisper-tiny: worst kernels" in done.stdout
    rows = json.loads((out / "bench.json").read_text())
    assert [(row["workload"], row["phase"], row["gate"]) for row in rows] == [
        (workload, str(phase), "ok") for workload in ("resnet50", "whisper") for phase in Phase
    ]
    for row in rows:
        assert row["engine_ms"] > 0 and row["torch_ms"] > 0 and row["torch_mode"] == "eager"
        assert row["engine_compile_s"] > 0 and row["engine_compile_cached_s"] > 0
    names = sorted(path.stem for path in (out / "records").iterdir())
    assert names == sorted(
        f"{workload}-{runner}-{number}"
        for workload in ("resnet50", "whisper")
        for runner, processes in (("engine", 3), ("torch", 2))
        for number in range(processes)
    )
    record = load_record(out / "records" / "whisper-engine-0.json")
    samples = record.job.protocol.samples
    for phase in record.phases:
        (mode,) = phase.modes
        assert mode.timing is not None and len(mode.timing.samples_ms) == samples
        launches = sum(cost.launches for cost in phase.kernels or ())
        assert launches == phase.plan["launches"] > 0
    assert record.ceilings is not None and record.ceilings.gflops > 0 < record.ceilings.gbs
    torch = load_record(out / "records" / "whisper-torch-0.json").framework
    assert torch is not None and torch.precision["float32_matmul_precision"] == "highest"
    for name in ("bench.md", "bench.html"):
        assert "Whisper-tiny" in (out / name).read_text()


def _raw_keys(s: Scope, x: Node, context: Node | None, config: smolvla.SmolVlaConfig) -> Node:
    """A block whose self-attention takes keys and values before the norm."""
    h = rms_norm(s / "input_layernorm", x)
    at = s / "self_attn"
    if context is None:
        q = smolvla.linear(at / "q_proj", h, config.heads * config.head, bias=False)
        width = config.kv_heads * config.head
        k, v = (smolvla.linear(at / f"{n}_proj", x, width, bias=False) for n in "kv")
        q, k, v = (
            smolvla.split_heads(y, heads)
            for y, heads in ((q, config.heads), (k, config.kv_heads), (v, config.kv_heads))
        )
        mixed = smolvla.merge_heads(ops.attention(q, k, v, causal=True))
        x = ops.add(x, smolvla.linear(at / "o_proj", mixed, config.hidden, bias=False))
    else:
        x = ops.add(x, smolvla._attention(at, h, context, config))
    h = rms_norm(s / "post_attention_layernorm", x)
    return ops.add(x, swiglu_mlp(s / "mlp", h, config.mlp))


def test_keys_from_the_input_before_the_norm_fail(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(smolvla, "_block", _raw_keys)
    status, out = run("smolvla")
    assert status == 1 and set(cells(out).values()) == {"fails gate"}


def test_attention_to_the_future_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    attention = ops.attention
    monkeypatch.setattr(ops, "attention", lambda q, k, v, causal: attention(q, k, v, causal=False))
    status, out = run("smolvla")
    assert status == 1 and set(cells(out).values()) == {"fails gate"}


def golden_of(out: Path, folder: Path) -> Path:
    """A reference file that says what the engine just computed, of UNet's whole output norm."""
    record = load_record(out / "records" / "unet-engine-0.json")
    training = record.phase(Phase.TRAINING)
    assert training is not None and training.gradients is not None
    workload = WORKLOADS["unet"]
    network = workload.training(workload.reduced)
    output = np.load(folder / "inference.npy")
    path = folder / f"{workload.name}.json"
    content = {
        "output_shape": output.shape,
        "output_l2": float(np.linalg.norm(output)),
        "output_sample_256": sample(output).tolist(),
        "loss": training.loss,
        "gradient_norms": {n: g.norm for n, g in training.gradients.items()},
        "gradient_probes": {n: g.probe for n, g in training.gradients.items()},
        "parameter_shapes": {n: layout.native for n, layout in network.layouts.items()},
    }
    path.write_text(json.dumps(content))
    return path


def test_reference_files_judge_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "golden"
    kept.mkdir()
    here = command.run_job

    def keeping(runner: str, job: Job, caches: Caches, folder: Path) -> RunRecord:
        record = here(runner, job, caches, folder)
        if not job.compile_only:
            (kept / "inference.npy").write_bytes((folder / "inference.npy").read_bytes())
        return record

    monkeypatch.setattr(command, "run_job", keeping)
    status, out = run("unet", reference="none")
    assert status == 0
    assert set(cells(out).values()) == {"skipped(no reference was asked for)"}

    path = golden_of(out, kept)
    status, out = run("unet", reference="none", golden=kept)
    assert status == 0 and set(cells(out).values()) == {"ok"}

    # One tensor with the wrong sign: nothing but its probe tells.
    figures = json.loads(path.read_text())
    name, norms = "conv_in.weight", figures["gradient_norms"]
    assert abs(figures["gradient_probes"][name]) > 0.1 * norms[name]
    figures["gradient_probes"][name] *= -1
    path.write_text(json.dumps(figures))
    status, out = run("unet", reference="none", golden=kept)
    gates = cells(out)
    assert status == 1 and gates["unet", "training"] == "fails gate"
    assert gates["unet", "inference"] == "ok"
    assert f"probe of {name}" in (out / "bench.md").read_text()


def test_the_accelerated_contract_is_skipped_not_dropped(run: Run) -> None:
    status, out = run("whisper", contract="accelerated", reference="none")
    assert status == 0
    (state,) = set(cells(out).values())
    assert state.startswith("skipped(engine: skipped: no matrix units through ")


def test_a_runner_that_breaks_fails_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runner: str, job: Job, caches: Caches, folder: Path) -> RunRecord:
        return RunRecord(runner, job.workload, "error: out of memory", job)

    monkeypatch.setattr(command, "run_job", broken)
    status, out = run("whisper", reference="none")
    assert status == 1
    assert set(cells(out).values()) == {"skipped(engine: error: out of memory)"}
