"""Held-out photographs painted now and then, to see what learning is worth beyond the camera."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import wgpu

from app.network import Network
from app.pixels import finite_db, to_unit
from app.telemetry.rows import QualityRow
from app.tenancy.figure import Figure

EVERY = 3
"""One of so many inferences paints a held-out photograph."""


class HeldOutTrace:
    """Photographs taken in turn, painted with the newest weights by a session that no panel shows.

    `images` uint8 [n, size, size, 3], n at least 1; `tell` gets a row for each figure.
    """

    def __init__(
        self, network: Network, images: np.ndarray, tell: Callable[[QualityRow], None]
    ) -> None:
        self._network, self._images, self._tell = network, images, tell
        self.session = network.another_inference()
        self._figure: Figure[tuple[int, int]] = Figure(network.gpu, self.session, "error")
        self._errors = [math.nan] * len(images)
        self._steps = [-1] * len(images)
        """Steps that the weights had learnt when each was painted."""
        self._photo = -1
        self._turn = 0

    @property
    def psnr_db(self) -> float | None:
        """PSNR over all pixels of the newest measurement of every photograph; None: not finite."""
        return finite_db(math.fsum(self._errors) / len(self._errors))

    def measure(self) -> float | None:
        """Measure all photographs at once; their PSNR. Waits for the device: not beside frames."""
        self._errors = self._network.errors(self._images)
        self._steps = [self._network.step] * len(self._images)
        self._tell_of(self._network.step)
        return self.psnr_db

    def take_turn(self) -> bool:
        """Whether the inference that begins now paints a photograph, not the camera image.

        None does while the weights are still those that the next photograph was painted with.
        """
        self._turn += 1
        following = (self._photo + 1) % len(self._images)
        return self._turn % EVERY == 0 and self._steps[following] != self._network.step

    def begin(self) -> None:
        """Feed the next photograph."""
        self._photo = (self._photo + 1) % len(self._images)
        self._steps[self._photo] = self._network.step
        self.session.write("image", to_unit(self._images[self._photo]))

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record the figure's way to the host, behind the run's last launch."""
        self._figure.record(encoder, (self._photo, self._steps[self._photo]))

    def submitted(self, serial: int) -> None:
        """The last chunk went out with this submission."""
        self._figure.submitted(serial)

    def poll(self, camera_error: float | None) -> None:
        """Take a figure that has arrived; `camera_error`: of the camera's newest painting."""
        found = self._figure.take()
        if found is None:
            return
        (photo, step), error = found
        self._errors[photo] = error
        self._tell_of(step, photo, camera_error)

    def _tell_of(
        self, step: int, photo: int | None = None, camera_error: float | None = None
    ) -> None:
        self._tell(
            QualityRow(
                measured_ns=time.perf_counter_ns(),
                step=step,
                photo=photo,
                photo_db=None if photo is None else finite_db(self._errors[photo]),
                held_out_db=self.psnr_db,
                camera_db=None if camera_error is None else finite_db(camera_error),
            )
        )
