"""Chunk policies: whether to submit a chunk of network work now. Pure decisions, no GPU calls.

The queue is first in, first out, so a chunk submitted ahead of a frame's eye images delays them by
its GPU time. A policy is asked again and again while waiting for a frame and after its eyes went
out, never between locating the views and submitting the eyes. A granted chunk is submitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from app.tenancy.estimates import Cost

POLICIES = ("fixed", "greedy", "deadline")

START_MARGIN_MS = 1.0
MIN_MARGIN_MS = 0.7
MAX_MARGIN_MS = 20.0
MARGIN_GROWTH = 1.5
MARGIN_DECAY = 0.9998
"""Per frame on time: probing for a smaller margin costs a miss, so a margin halves in no less
than 3,500 frames."""

DEVIATIONS = 2.0
"""Costs are taken to be so many standard deviations above their mean."""

STARVATION_FRAMES = 1000
"""The deadline policy submits one chunk after so many frames without any, deadline or not."""

RESULT_DELAY_FRAMES = 4
"""What becomes of a frame is known so many frames later at most. One missed so long after the last
chunk was not delayed by any; one missed earlier after a miss was decided on before that taught."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All a policy may look at. Times in ns are on the clock of `time.perf_counter_ns`."""

    now_ns: int
    in_flight: int
    """Chunks submitted and not yet known to be complete."""
    submitted_this_frame: int
    """Chunks submitted since the latest `wait_frame` returned."""
    due_ns: int
    """When the next eye images, not submitted yet, must be complete."""
    backlog: Cost
    """GPU work that is queued already: chunks, and the eye images of the current frame."""
    chunk: Cost | None
    """GPU time of the next chunk; None when unknown."""
    eyes: Cost
    """GPU time of the eye images of one frame; 0 when unknown."""
    should_render: bool
    """False while the wearer sees nothing of ours: there is no frame to protect."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to submit the next chunk now, and why (a short constant text, for telemetry)."""

    submit: bool
    reason: str


class Policy(Protocol):
    """Decides when chunks go to the queue. `in_flight` may be set at any time, to 1 or more."""

    name: str
    in_flight: int

    @property
    def margin_ms(self) -> float | None:
        """The safety margin that the policy keeps; None if it keeps none."""

    def decide(self, s: Situation) -> Decision:
        """Whether to submit a chunk now; never when `in_flight` are in flight already."""

    def frame_finished(self, missed: int, *, by_chunk: bool) -> None:
        """Learn from a frame: refreshes it came too late (0: on time), and whether only the
        chunks ahead of it in the queue were the cause.
        """


class _Bounded:
    """What all policies share: the in-flight bound, and no restraint when nothing is shown."""

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight

    @property
    def margin_ms(self) -> float | None:
        """No margin is kept."""
        return None

    @property
    def in_flight(self) -> int:
        """The most chunks in flight at once. Raises `ValueError` when set below 1."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, value: int) -> None:
        if value < 1:
            raise ValueError(f"the in-flight bound must be at least 1, not {value}")
        self._in_flight = value

    def decide(self, s: Situation) -> Decision:
        """See Policy."""
        if s.in_flight >= self._in_flight:
            return Decision(False, "in-flight bound")
        if not s.should_render:
            return Decision(True, "whole GPU")
        return self._beside_frames(s)

    def _beside_frames(self, s: Situation) -> Decision:
        raise NotImplementedError

    def frame_finished(self, missed: int, *, by_chunk: bool) -> None:
        """Learn nothing."""


class FixedPolicy(_Bounded):
    """At most N chunks a frame and at most N in flight."""

    name = "fixed"

    def _beside_frames(self, s: Situation) -> Decision:
        if s.submitted_this_frame >= self.in_flight:
            return Decision(False, "frame quota used")
        return Decision(True, "frame quota")


class GreedyPolicy(_Bounded):
    """Keeps N chunks in flight at all times, whatever the frames need."""

    name = "greedy"

    def _beside_frames(self, s: Situation) -> Decision:
        return Decision(True, "room in flight")


class DeadlinePolicy(_Bounded):
    """Submits a chunk when the next eye images, queued behind it, still complete in time.

    That is, when from now

        backlog + chunk + eyes, each with its deviation, + margin  <=  due

    Eye images need not be early, only in time: the queue may hold work at the moment they are
    submitted, so the GPU need never idle. The margin grows by half on a miss that chunks caused,
    once for those that one delay brings in a row, and shrinks slowly while frames are on time.

    Nothing starves for ever: after `STARVATION_FRAMES` frames without a chunk, one goes out
    regardless. Where frames miss even without chunks, withholding cannot help:
    `RESULT_DELAY_FRAMES` suffice.
    """

    name = "deadline"

    def __init__(self, in_flight: int) -> None:
        super().__init__(in_flight)
        self._margin_ms = START_MARGIN_MS
        self._frames_without_chunk = 0
        self._frames_since_lesson = RESULT_DELAY_FRAMES
        self._patience = STARVATION_FRAMES

    @property
    def margin_ms(self) -> float:
        """What eye images should be earlier than due, beyond what deviations ask for."""
        return self._margin_ms

    def decide(self, s: Situation) -> Decision:
        """See Policy."""
        decision = super().decide(s)
        if decision.submit:
            self._frames_without_chunk = 0
        return decision

    def _beside_frames(self, s: Situation) -> Decision:
        alone = s.in_flight == 0
        if s.chunk is None:
            if alone and s.submitted_this_frame == 0:
                return Decision(True, "unknown cost: one a frame")
            return Decision(False, "unknown cost")
        if self._fits(s, s.chunk):
            return Decision(True, "fits before deadline")
        if alone and self._frames_without_chunk >= self._patience:
            return Decision(True, "no starvation")
        return Decision(False, "too late for deadline")

    def _fits(self, s: Situation, chunk: Cost) -> bool:
        left_ms = (s.due_ns - s.now_ns) / 1e6 - self._margin_ms
        needed_ms = s.backlog.ms + chunk.ms + s.eyes.ms
        return needed_ms + DEVIATIONS * _deviation(s, chunk) <= left_ms

    def frame_finished(self, missed: int, *, by_chunk: bool) -> None:
        """Adapt the margin, and count towards the guard against starvation."""
        self._frames_without_chunk += 1
        self._frames_since_lesson += 1
        blameless = self._frames_without_chunk > RESULT_DELAY_FRAMES
        self._patience = RESULT_DELAY_FRAMES if missed > 0 and blameless else STARVATION_FRAMES
        if missed == 0:
            self._margin_ms = max(MIN_MARGIN_MS, self._margin_ms * MARGIN_DECAY)
        elif by_chunk and self._frames_since_lesson > RESULT_DELAY_FRAMES:
            self._frames_since_lesson = 0
            self._margin_ms = min(MAX_MARGIN_MS, self._margin_ms * MARGIN_GROWTH)


def _deviation(s: Situation, chunk: Cost) -> float:
    """Network and renderer err independently of each other, ms."""
    return math.hypot(s.backlog.sd_ms + chunk.sd_ms, s.eyes.sd_ms)


def make_policy(name: str, in_flight: int) -> Policy:
    """The policy called `name`. Raises `ValueError` for an unknown name or a bound below 1."""
    if name == "fixed":
        return FixedPolicy(in_flight)
    if name == "greedy":
        return GreedyPolicy(in_flight)
    if name == "deadline":
        return DeadlinePolicy(in_flight)
    raise ValueError(f"unknown policy {name!r}: choose {', '.join(POLICIES)}")
