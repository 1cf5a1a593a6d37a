"""One number of a session, brought back from every run without waiting."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import wgpu

from engine.gpu import Gpu
from engine.readback import Readback
from engine.session import Session

Tag = TypeVar("Tag")


class Figure(Generic[Tag]):
    """A scalar output and its way to the host; all GPU objects are made here.

    A run whose number would have to wait for the one before is left out.
    """

    def __init__(self, gpu: Gpu, session: Session, name: str) -> None:
        self._where = session.range(name)
        self._readback = Readback(gpu, self._where.size)
        self._tag: Tag | None = None
        self._recorded = False

    @property
    def idle(self) -> bool:
        """Whether no number is on its way."""
        return self._readback.idle

    def record(self, encoder: wgpu.GPUCommandEncoder, tag: Tag) -> None:
        """Record the copy behind a run; `tag` says whose number it is."""
        self._recorded = self._readback.idle
        if self._recorded:
            self._readback.record(encoder, self._where)
            self._tag = tag

    def submitted(self, serial: int) -> None:
        """What was recorded went out with this submission."""
        if self._recorded:
            self._readback.arm(serial)
            self._recorded = False

    def take(self) -> tuple[Tag, float] | None:
        """A number that has arrived, once, with its tag."""
        data = self._readback.take()
        if data is None:
            return None
        assert self._tag is not None, "a readback is recorded with a tag"
        return self._tag, float(data.view(np.float32)[0])
