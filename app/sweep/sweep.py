"""The sweep: all arms in random order, again and again, on one device; then their figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from app.config import UsageError
from app.interrupt import Interrupt
from app.progress import Progress
from app.rig import Rig
from app.scene.load import calibrate_load
from app.sweep.arms import Arm, Kind, arms_of, shuffled
from app.sweep.config import SweepConfig
from app.sweep.summary import summarize
from app.sweep.trial import Trial, run_trial
from app.telemetry.recorder import TelemetryError
from app.telemetry.rows import to_json
from app.xr.driver import XrDriver
from app.xr.open import make_driver
from app.xr.simulated import SimulatedDriver
from engine.atomic import write_atomic

CALIBRATION_S = 0.7
"""What one measurement of the render load takes."""


class Sweep:
    """One sweep, and a context manager that releases all it holds.

    Raises UsageError, CameraError, CheckpointError, GpuError or TelemetryError before anything is
    measured.
    """

    def __init__(self, config: SweepConfig, progress: Progress) -> None:
        config.check()
        self.config, self.progress = config, progress
        self.arms = arms_of(config)
        self._loads: dict[float, int] = {}
        self._trials: dict[Arm, list[Trial]] = {}
        with ExitStack() as owned:
            self.rig = Rig(config, progress, owned)
            self._headset = make_driver(
                config.driver,
                hz=config.rates[0],
                eye_size=config.eye_size,
                presenter=config.presenter,
                debug=config.debug,
            )
            self._headset.open()
            owned.callback(self._headset.close)
            self.rig.build(self._headset.view_size, 1e3 / max(config.rates))
            self.rig.show(self._headset)
            self.rig.warm_up_scene(self._headset)
            self._owned = owned.pop_all()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def run(self) -> dict[str, object]:
        """Run all arms; writes sweep.json and summary.json and returns the latter."""
        config = self.config
        order = shuffled(self.arms, config.repeats, config.seed)
        self._prepare_folder()
        self._write("sweep.json", self._head("incomplete", order))
        with Interrupt() as interrupt:
            for hz in config.rates:
                self._loads[hz] = self._load_for(hz)
            self._say_duration()
            for number, (arm, repeat) in enumerate(order, start=1):
                trial = self._run_arm(arm, repeat, lambda: interrupt.requested)
                if interrupt.requested:
                    break  # a run cut short would weigh as much as a whole one
                self._trials.setdefault(arm, []).append(trial)
                self.progress.say(f"[{number}/{len(order)}] {_line(trial)}")
                if number % len(self.arms) == 0 and number < len(order):
                    self._summary("incomplete")
            outcome = "interrupted" if interrupt.requested else "ok"
        summary = self._summary(outcome)
        self._write("sweep.json", self._head(outcome, order))
        return summary

    def _summary(self, outcome: str) -> dict[str, object]:
        """Write and return summary.json from the runs so far."""
        trials = {arm: self._trials[arm] for arm in self.arms if arm in self._trials}
        presenter = self._headset.presenter
        summary: dict[str, object] = {
            "outcome": outcome,
            **self.rig.provenance(),
            "seconds": self.config.seconds,
            "repeats": self.config.repeats,
            "eye_size": self._headset.view_size,
            "headset": self._headset.name,
            "presenter": presenter.name if presenter is not None else None,
            "scene_load": {f"{hz:g}": load for hz, load in self._loads.items()},
            **summarize(trials),
        }
        self._write("summary.json", summary)
        return summary

    def _driver(self, arm: Arm) -> XrDriver:
        """An open driver for the arm: the network alone needs frames that nobody sees."""
        visible = arm.kind is not Kind.WORKER
        if self.config.driver != "simulated" and visible:
            return self._headset
        driver = SimulatedDriver(arm.hz, self._headset.view_size, visible=visible)
        driver.open()
        return driver

    def _run_arm(self, arm: Arm, repeat: int, stop: Callable[[], bool]) -> Trial:
        config, folder = self.config, f"arms/{arm.name}-r{repeat}"
        self.rig.scene.load = self._loads.get(arm.hz, config.scene_load)
        return run_trial(
            self.rig,
            self._driver(arm),
            arm,
            warm_up=config.warm_up,
            seconds=config.seconds,
            out=config.out,
            folder=folder,
            description={"command": "sweep", **self.rig.provenance()},
            stop=stop,
        )

    def _load_for(self, hz: float) -> int:
        """The scene load that the options ask for at this refresh rate."""
        share = self.config.render_share
        if share is None:
            return self.config.scene_load
        self.progress.say(f"finding the scene load for {share:g} % of a refresh at {hz:g} Hz")
        target_ms = share / 100 * 1e3 / hz
        load = calibrate_load(lambda load: self._eye_ms(hz, load), target_ms)
        eye_ms = self._eye_ms(hz, load)
        self.progress.say(f"scene load {load}: eyes take {eye_ms:.2f} ms alone")
        return load

    def _eye_ms(self, hz: float, load: int) -> float:
        """Median GPU time of the eye images with the renderer alone, at pace."""
        self.rig.scene.load = load
        arm = Arm(Kind.RENDER, "none", 1, 1, "fixed", hz)
        trial = run_trial(
            self.rig,
            self._driver(arm),
            arm,
            warm_up=CALIBRATION_S / 2,
            seconds=CALIBRATION_S / 2,
            out=None,
            folder="",
            description={},
            stop=lambda: False,
        )
        samples = [row.eye_ms for row in trial.frames if row.eye_ms is not None]
        if not samples:
            raise UsageError("--render-share needs GPU timestamps, which this device lacks")
        return median(samples)

    def _prepare_folder(self) -> None:
        out = self.config.out
        try:
            out.mkdir(parents=True, exist_ok=True)
            if (out / "sweep.json").exists():
                shutil.rmtree(out / "arms", ignore_errors=True)
                (out / "summary.json").unlink(missing_ok=True)
        except OSError as error:
            raise TelemetryError(f"cannot write to {out}: {error.strerror or error}") from error

    def _head(self, outcome: str, order: list[tuple[Arm, int]]) -> dict[str, object]:
        return {
            "outcome": outcome,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": {"options": asdict(self.config), **self.rig.provenance()},
            "order": [[arm.name, repeat] for arm, repeat in order],
        }

    def _write(self, name: str, content: dict[str, object]) -> None:
        try:
            write_atomic(self.config.out / name, to_json(content, indent=2) + "\n")
        except OSError as error:
            where: Path = self.config.out / name
            raise TelemetryError(f"cannot write {where}: {error.strerror or error}") from error

    def _say_duration(self) -> None:
        runs = len(self.arms) * self.config.repeats
        minutes = runs * (self.config.warm_up + self.config.seconds) / 60
        self.progress.say(
            f"{len(self.arms)} arms, {self.config.repeats} runs each: about {minutes:.0f} min"
        )


def _line(trial: Trial) -> str:
    steps = sum(row.job == "train" and row.index == row.of - 1 for row in trial.chunks)
    missed = sum(row.missed_refreshes for row in trial.frames)
    return f"{trial.arm.name}: {len(trial.frames)} frames, {missed} refreshes missed, {steps} steps"
