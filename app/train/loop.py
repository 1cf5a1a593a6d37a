"""The loop of every training run: steps on batches made ahead, losses watched, checkpoints kept."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from app.prefetch import Prefetch
from app.train.errors import TrainError
from app.train.stepper import Stepper

Batch = TypeVar("Batch")
Kept = TypeVar("Kept", bound="Keepsake")


class Teller(Protocol):
    """Where progress goes: `app.progress.Progress`, or nowhere in tests."""

    def say(self, text: str) -> None:
        """Print a line."""

    def update(self, line: Callable[[], str]) -> None:
        """Show the running state when it is time to."""


class Keepsake(Protocol):
    """What was written, and the figures of that moment."""

    @property
    def step(self) -> int:
        """The step that was written."""

    @property
    def summary(self) -> str:
        """A line for people."""


class Loop(ABC, Generic[Batch, Kept]):
    """Steps of a stepper; `file` always holds the newest finite checkpoint.

    `rate` is the learning rate that is to be lowered when learning diverges.
    """

    def __init__(self, stepper: Stepper, file: Path, rate: float, progress: Teller) -> None:
        self.stepper, self.file, self.rate, self.progress = stepper, file, rate, progress
        self.kept: Kept | None = None
        self._known = stepper.step
        self.losses: list[float] = []
        """Since the checkpoint before."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """What step `step`, from 0, learns from; called by other threads."""

    @abstractmethod
    def advance(self, batch: Batch) -> list[float]:
        """Submit a step; the losses that have arrived."""

    @abstractmethod
    def drain(self) -> list[float]:
        """Wait for all steps; the losses that are left."""

    @abstractmethod
    def write(self, tensors: Mapping[str, np.ndarray]) -> Kept:
        """Measure finite weights and write them with the state of training."""

    @abstractmethod
    def shown(self, loss: float) -> str:
        """A mean loss for people."""

    def run(self, steps: int, every: int, stop: Callable[[], bool]) -> Kept:
        """Learn until step `steps`, or until `stop()`; a checkpoint every `every` steps and last.

        Raises TrainError when the loss or a weight is not finite; the checkpoint before stays.
        """
        first = self.stepper.step
        self._began_s, self._began_step, self._steps = time.monotonic(), first, steps
        with Prefetch(self.batch, range(first, steps)) as batches:
            for batch in batches:
                self._note(self.advance(batch))
                self.progress.update(self._line)
                if stop():
                    break
                if self.stepper.step % every == 0 and self.stepper.step < steps:
                    self._keep()
        return self._keep()

    def diverged(self, what: str) -> TrainError:
        """The error to raise when something is not finite."""
        if self.kept is not None:
            state = f"{self.file} holds step {self.kept.step}"
        else:
            state = f"{self.file} is as it was" if self.file.exists() else "nothing was saved"
        return TrainError(f"{what} is not finite; {state}: take a --rate below {self.rate:g}")

    def mean_loss(self) -> float | None:
        """Mean over the steps since the checkpoint before; None if there were none."""
        return float(np.mean(self.losses)) if self.losses else None

    def _note(self, losses: list[float]) -> None:
        for loss in losses:
            self._known += 1
            if not math.isfinite(loss):
                raise self.diverged(f"the loss of step {self._known}")
            self.losses.append(loss)

    def _keep(self) -> Kept:
        self._note(self.drain())
        tensors = self.stepper.tensors()
        for name, value in tensors.items():
            if not np.isfinite(value).all():
                raise self.diverged(f"'{name}' at step {self.stepper.step}")
        self.kept = self.write(tensors)
        self.losses.clear()
        self.progress.say(self.kept.summary)
        return self.kept

    def _line(self) -> str:
        done, left = self.stepper.step - self._began_step, self._steps - self.stepper.step
        rate = done / max(1e-9, time.monotonic() - self._began_s)
        text = f"step {self.stepper.step} of {self._steps}, {rate:.1f} steps/s"
        if self.losses:
            text += f", {self.shown(float(np.mean(self.losses[-50:])))}"
        minutes, seconds = divmod(round(left / rate), 60)
        return f"{text}, {minutes}:{seconds:02} left"
