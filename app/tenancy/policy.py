"""Chunk policies: how many chunks of network work to submit now. Pure decisions, no GPU calls.

The queue is first in, first out, so a chunk submitted ahead of a frame's eye images delays them by
its GPU time. A policy is asked whenever a chunk could be submitted: while waiting for a frame and
after its eyes went out, never between locating the views and submitting the eyes. What it answers
is taken as done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

POLICIES = ("fixed", "greedy", "deadline")

START_MARGIN_MS = 1.0
MIN_MARGIN_MS = 0.5
MAX_MARGIN_MS = 20.0
MARGIN_GROWTH = 1.5
MARGIN_DECAY = 0.995
"""Per frame on time; a margin halves in about 140 of them."""

STARVATION_FRAMES = 30
"""The deadline policy submits one chunk after so many frames without any, deadline or not."""

RESULT_DELAY_FRAMES = 4
"""A frame missed so long after the last chunk was not delayed by one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All a policy may look at. Times in ns are on the clock of `time.perf_counter_ns`."""

    now_ns: int
    in_flight: int
    """Chunks submitted and not yet known to be complete."""
    submitted_this_frame: int
    """Chunks submitted since the latest `wait_frame` returned."""
    next_wake_ns: int
    """When the next frame should start; its eyes are due one period later."""
    period_ns: int
    chunk_ms: float
    """Estimated GPU time of the next chunk; 0 when unknown."""
    eye_ms: float
    """GPU time of the eye images of one frame; 0 when unknown."""
    should_render: bool
    """False while the wearer sees nothing of ours: there is no frame to protect."""
    after_submit: bool
    """Whether the eyes of the current frame have been submitted."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Chunks to submit now, and why so many (a short constant text, for telemetry)."""

    count: int
    reason: str


class Policy(Protocol):
    """Decides when chunks go to the queue. `in_flight` may be set at any time, to 1 or more."""

    name: str
    in_flight: int

    def chunks_to_submit(self, s: Situation) -> Decision:
        """How many chunks to submit now; never lets more than `in_flight` be in flight."""

    def frame_finished(self, missed: int) -> None:
        """Learn from a frame's outcome: refreshes it came too late, 0 when on time."""


class _Bounded:
    """The in-flight bound, which every policy keeps."""

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight

    @property
    def in_flight(self) -> int:
        """The most chunks in flight at once. Raises `ValueError` when set below 1."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, value: int) -> None:
        if value < 1:
            raise ValueError(f"the in-flight bound must be at least 1, not {value}")
        self._in_flight = value

    def _room(self, s: Situation) -> int:
        return max(0, self._in_flight - s.in_flight)

    def frame_finished(self, missed: int) -> None:
        """Learn nothing."""


class FixedPolicy(_Bounded):
    """At most N chunks a frame and at most N in flight."""

    name = "fixed"

    def chunks_to_submit(self, s: Situation) -> Decision:
        """Fill what is left of the frame's quota."""
        quota = max(0, self.in_flight - s.submitted_this_frame)
        room = self._room(s)
        if quota == 0:
            return Decision(0, "frame quota used")
        if room == 0:
            return Decision(0, "in-flight bound")
        return Decision(min(quota, room), "frame quota")


class GreedyPolicy(_Bounded):
    """Keeps N chunks in flight at all times, whatever the frames need."""

    name = "greedy"

    def chunks_to_submit(self, s: Situation) -> Decision:
        """Fill up to the bound."""
        room = self._room(s)
        return Decision(room, "room in flight" if room else "in-flight bound")


class DeadlinePolicy(_Bounded):
    """Submits chunks that leave the coming eye images enough time, at most N in flight.

    A chunk goes out when it and all in flight before it are predicted to complete by

        deadline of the coming eyes - eye_ms - margin_ms

    The coming eyes are the next frame's once the current frame's have been submitted; the current
    ones then count as still ahead in the queue. The margin grows by half on a miss that a chunk
    may have caused and decays while frames are on time. Without a frame to protect only the
    in-flight bound holds.

    Nothing starves: after `STARVATION_FRAMES` frames without a chunk, one goes out regardless.
    Where frames miss even without chunks, withholding cannot help: `RESULT_DELAY_FRAMES` suffice.
    """

    name = "deadline"

    def __init__(self, in_flight: int) -> None:
        super().__init__(in_flight)
        self.margin_ms = START_MARGIN_MS
        self._frames_without_chunk = 0
        self._patience = STARVATION_FRAMES

    def chunks_to_submit(self, s: Situation) -> Decision:
        """As many chunks as fit before the deadline."""
        decision = self._decide(s)
        if decision.count > 0:
            self._frames_without_chunk = 0
        return decision

    def _decide(self, s: Situation) -> Decision:
        room = self._room(s)
        if room == 0:
            return Decision(0, "in-flight bound")
        if not s.should_render:
            return Decision(room, "whole GPU")
        if s.chunk_ms > 0:
            fitting = int(self._free_ms(s) / s.chunk_ms) - s.in_flight
            if fitting > 0:
                return Decision(min(room, fitting), "fits before deadline")
        elif s.in_flight == 0 and s.submitted_this_frame == 0 and s.after_submit:
            return Decision(1, "unknown cost: one a frame")
        if s.in_flight == 0 and self._frames_without_chunk >= self._patience:
            return Decision(1, "no starvation")
        return Decision(0, "too late for deadline" if s.chunk_ms > 0 else "unknown cost")

    def _free_ms(self, s: Situation) -> float:
        """GPU time that chunks may take from now until the coming eyes must start, at least 0."""
        eyes, deadline_ns = 1, s.next_wake_ns
        if s.after_submit:
            eyes, deadline_ns = 2, s.next_wake_ns + s.period_ns
        return max(0.0, (deadline_ns - s.now_ns) / 1e6 - eyes * s.eye_ms - self.margin_ms)

    def frame_finished(self, missed: int) -> None:
        """Adapt the margin, and count towards the guard against starvation."""
        self._frames_without_chunk += 1
        blameless = self._frames_without_chunk > RESULT_DELAY_FRAMES
        self._patience = RESULT_DELAY_FRAMES if missed > 0 and blameless else STARVATION_FRAMES
        if missed == 0:
            self.margin_ms = max(MIN_MARGIN_MS, self.margin_ms * MARGIN_DECAY)
        elif not blameless:
            self.margin_ms = min(MAX_MARGIN_MS, self.margin_ms * MARGIN_GROWTH)


def make_policy(name: str, in_flight: int) -> Policy:
    """The policy called `name`. Raises `ValueError` for an unknown name or a bound below 1."""
    if name == "fixed":
        return FixedPolicy(in_flight)
    if name == "greedy":
        return GreedyPolicy(in_flight)
    if name == "deadline":
        return DeadlinePolicy(in_flight)
    raise ValueError(f"unknown policy {name!r}: choose {', '.join(POLICIES)}")
