"""What presenters have in common: of the images that are there, the newest goes to the runtime."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from app.xr.openxr.uploader import Swapchain

SMOOTHING = 0.1


class Slot(Protocol):
    """One image on its way."""

    frame_id: int


S = TypeVar("S", bound=Slot)


class NewestImage(ABC, Generic[S]):
    """Images on their way to `swapchain`, which the frame loop hands over without waiting."""

    def __init__(self, swapchain: Swapchain) -> None:
        self._swapchain = swapchain
        self._slots: list[S] = []
        self._recorded: S | None = None
        self._shown = 0
        self._cost_ns = 0.0
        self.skipped = 0
        """Frames whose images were not copied because all slots were on their way."""

    @abstractmethod
    def _arrived(self, slot: S) -> bool:
        """Whether the slot's image is there and not yet handed over."""

    @abstractmethod
    def _discard(self, slot: S) -> None:
        """Free a slot whose image nobody will see."""

    @abstractmethod
    def _put(self, slot: S) -> bool:
        """Acquire a swapchain image and have the slot's written into it; False: it cannot be."""

    def present(self) -> int:
        """Put the newest finished image into the swapchain; the frame that the swapchain shows.

        Raises `XrLost` when the compositor or the session's device is gone.
        """
        arrived = [slot for slot in self._slots if self._arrived(slot)]
        if not arrived:
            return self._shown
        begin_ns = time.perf_counter_ns()
        newest = max(arrived, key=lambda slot: slot.frame_id)
        for slot in arrived:
            if slot is not newest:
                self._discard(slot)
        if not self._put(newest):
            return self._shown
        self._swapchain.release()
        self._shown = newest.frame_id
        took_ns = time.perf_counter_ns() - begin_ns
        self._cost_ns += (took_ns - self._cost_ns) * (SMOOTHING if self._cost_ns else 1.0)
        return self._shown

    @property
    def cost_ns(self) -> int:
        """What `present` takes of late, nanoseconds."""
        return round(self._cost_ns)
