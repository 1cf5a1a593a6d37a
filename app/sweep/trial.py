"""One run of one arm on the shared rig: warm-up, measured time, rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.loop import FrameLoop
from app.punctual import collect_young, punctual_python
from app.rig import Rig
from app.sweep.arms import Arm, Kind
from app.telemetry.recorder import Recorder
from app.telemetry.rows import ChunkRow, FrameRow
from app.telemetry.summary import Summary
from app.xr.driver import XrDriver


@dataclass
class Trial:
    """What one run of an arm brought, warm-up excluded. Times in ns of `time.perf_counter_ns`."""

    arm: Arm
    folder: str | None
    """Run folder, relative to the sweep's; None when nothing was recorded."""
    begin_ns: int = 0
    end_ns: int = 0
    frames: list[FrameRow] = field(default_factory=list)
    chunks: list[ChunkRow] = field(default_factory=list)


def run_trial(
    rig: Rig,
    driver: XrDriver,
    arm: Arm,
    *,
    warm_up: float,
    seconds: float,
    out: Path | None,
    folder: str,
    description: Mapping[str, object],
    stop: Callable[[], bool],
) -> Trial:
    """Run an arm from the network's initial weights; its records go to `out / folder`, if any.

    `driver` is open. `warm_up`, `seconds`: what is left out at first, then measured. `stop` is
    asked each frame. Raises TelemetryError when the folder cannot be written, GpuError when the
    device is lost.
    """
    traced = arm.kind is not Kind.UNTRACED
    record_to = out / folder if traced and out is not None else None
    rig.network.reset()
    rig.gpu.wait()
    trial = Trial(arm, folder if record_to is not None else None)
    with ExitStack() as owned:
        clock = rig.clock() if traced else None
        stamps = rig.stamps(clock)
        tenant, train, _ = rig.tenant(
            stamps,
            policy=arm.policy,
            in_flight=arm.in_flight,
            chunks=arm.chunks,
            mode=arm.job,
            owned=owned,
        )
        options = asdict(arm) | {"kind": str(arm.kind)}
        recorder = Recorder(record_to, {**description, "options": options}, clock)

        def on_frame(row: FrameRow) -> None:
            if trial.begin_ns <= row.wait_ns < trial.end_ns:
                trial.frames.append(row)
                recorder.frame(row)

        def on_chunk(row: ChunkRow) -> None:
            if trial.begin_ns <= row.submit_ns < trial.end_ns:
                trial.chunks.append(row)
                recorder.chunk(row)

        loop = FrameLoop(
            rig.gpu,
            driver,
            rig.scene,
            tenant,
            rig.camera.latest,
            stamps,
            after_submit=collect_young,
            on_frame=on_frame,
            on_chunk=on_chunk,
        )
        trial.begin_ns = time.perf_counter_ns() + round(1e9 * warm_up)
        trial.end_ns = trial.begin_ns + round(1e9 * seconds)
        before = rig.gpu.objects_created
        with punctual_python():
            loop.run(lambda: time.perf_counter_ns() < trial.end_ns and not stop())
            loop.finish()
        created = rig.gpu.objects_created - before
        outcome = "interrupted" if stop() else "ok"
        clock = rig.recalibrated(clock)
        summary = Summary(
            outcome=outcome,
            chunks=arm.chunks,
            in_flight=arm.in_flight,
            policy=arm.policy,
            adapter=rig.gpu.name,
            gpu=rig.gpu.implementation,
            objects_created_in_loop=created,
            clock_error_us=clock.error_us if clock else None,
            loss_first=train.losses[0] if train.losses else None,
            loss_last=train.losses[-1] if train.losses else None,
        )
        recorder.finish(
            outcome, summary.to_dict(recorder.statistics, {"job": arm.job, "hz": arm.hz}), clock
        )
    return trial
