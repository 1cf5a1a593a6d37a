"""Options of the benchmark, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.config import UsageError
from engine.implementations import Choice
from engine.storage import Storage

NONE = "none"


@dataclass(frozen=True)
class BenchConfig:
    """Time the five workloads, and check what they compute, beside another framework.

    Each runner and workload gets fresh processes. Every cell ends as ok, fails gate or skipped with
    a reason; exit status 1 when a gate fails or a runner breaks.
    """

    workload: str = "all"
    """Workloads with commas, or all: smollm2, smolvla, unet, resnet50, whisper."""
    contract: Literal["strict", "accelerated"] = "strict"
    """Arithmetic: strict f32, or reduced precision in products."""
    storage: Storage = "f32"
    """How the engine keeps matrices of weights: f16 is half the bytes, and for inference only, so
    that nothing is trained then."""
    reference: str = "torch"
    """Runner to compare with (app/bench/runner_NAME.py), or none."""
    reduced: bool = False
    """Small networks of the same structure, for software devices: their times say nothing."""
    golden: Path | None = None
    """Folder of reference files, one per workload; judged beside the reference runner."""
    weights: Path | None = None
    """Published weights, safetensors or .pth, of the one workload: SmolLM2-135M and Whisper-tiny of
    Hugging Face, SmolVLA of LeRobot, ResNet-50 of torchvision. [default: values made from names]"""
    profile: bool = False
    """Also time by kernel, against the ceilings of the device."""
    peak_gflops: float | None = None
    """The device's f32 ceiling for --profile, GFLOP/s. [default: measured]"""
    peak_gbs: float | None = None
    """The device's memory ceiling for --profile, GB/s. [default: measured]"""
    processes: int = 1
    """Processes per runner and workload, in turn; their samples are taken together."""
    out: Path = Path("runs/bench")
    """Folder for records and tables; an earlier benchmark in it is replaced."""
    publish: Path | None = None
    """Also keep the figures in ADAPTER-CONTRACT-DATE.json (CONTRACT-dawn on Dawn) in this folder,
    as docs/measurements; those of other workloads that are there already stay."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        from app.bench.processes import known

        _ = self.workloads
        if self.reference != NONE and (self.reference == "engine" or not known(self.reference)):
            raise UsageError(f"--reference must be torch or none, not '{self.reference}'")
        self._check_weights()
        if self.processes < 1:
            raise UsageError(f"--processes must be at least 1, not {self.processes}")
        peaks = {"--peak-gflops": self.peak_gflops, "--peak-gbs": self.peak_gbs}
        for option, value in peaks.items():
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{option} must be above 0, not {value:g}")
            if value is not None and not self.profile:
                raise UsageError(f"{option} needs --profile")
        if self.reduced and self.publish is not None:
            raise UsageError("--publish is for full sizes: leave out --reduced")

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if len(self.workloads) != 1:
            raise UsageError("--weights are of one network: name it with --workload")
        if self.reduced:
            raise UsageError("--weights are for full sizes: leave out --reduced")
        if self.golden is not None:
            raise UsageError("--weights and --golden exclude each other")

    @property
    def workloads(self) -> tuple[str, ...]:
        """--workload as names of `models.zoo.WORKLOADS`, in its order."""
        from models.zoo import WORKLOADS

        names = [name.strip() for name in self.workload.split(",")]
        if names == ["all"]:
            return tuple(WORKLOADS)
        for name in names:
            if name not in WORKLOADS:
                known = ", ".join(WORKLOADS)
                raise UsageError(f"there is no workload '{name}': use all, or some of {known}")
        return tuple(name for name in WORKLOADS if name in names)
