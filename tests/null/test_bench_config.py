"""The options of bench: what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.bench.config import BenchConfig
from models.zoo import WORKLOADS
from tests.command_line import fails

Capture = pytest.CaptureFixture[str]


def test_workloads_are_named_or_all() -> None:
    assert BenchConfig().workloads == tuple(WORKLOADS)
    assert BenchConfig(workload="whisper, smollm2").workloads == ("smollm2", "whisper")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "bert"], "there is no workload 'bert'"),
        (["--workload", ""], "there is no workload ''"),
        (["--reference", "jax"], "--reference must be torch or none, not 'jax'"),
        (["--reference", "engine"], "--reference must be torch or none, not 'engine'"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--profile", "--peak-gbs", "0"], "--peak-gbs must be above 0"),
        (["--peak-gflops", "9"], "--peak-gflops needs --profile"),
        (["--reduced", "--publish", "docs"], "--publish is for full sizes"),
        (["--golden", "/nowhere"], "SmolLM2-135M.json does not serve"),
    ],
)
def test_impossible_options(options: list[str], message: str, capsys: Capture) -> None:
    assert message in fails(capsys, 2, "bench", *options)


def test_reference_files_of_another_size_are_refused(tmp_path: Path, capsys: Capture) -> None:
    figures = {
        "output_shape": [1],
        "output_l2": 1.0,
        "output_sample_256": [1.0],
        "loss": 1.0,
        "gradient_norms": {},
        "gradient_probes": {},
        "parameter_shapes": {"conv_in.weight": [64, 4, 3, 3]},
    }
    (tmp_path / "StableDiffusion.json").write_text(json.dumps(figures))
    options = ["--workload", "unet", "--reduced", "--golden", str(tmp_path)]
    line = fails(capsys, 2, "bench", *options)
    wanted = "parameter 'conv_in.weight' is (8, 4, 3, 3) here, (64, 4, 3, 3) in the reference"
    assert f"StableDiffusion.json does not serve: {wanted}" in line


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    line = fails(capsys, 1, "bench", "--workload", "unet", "--out", str(tmp_path / "file" / "x"))
    assert "cannot write" in line
