"""What the HUD tells: recent frames, rates and messages gathered into one state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.scene.hud import GRAPH_FRAMES, HudState
from app.telemetry.rate import RateMeter, ShareMeter
from app.telemetry.rows import ChunkRow, FrameRow, QualityRow
from app.telemetry.run_times import RunTimes

TRACE_POINTS = 400
"""Of the curve over the whole session; when there are more, every other one is dropped."""

REFRESH_NS = 200_000_000
MESSAGE_NS = 4_000_000_000


@dataclass
class Dashboard:
    """Collects rows as they are finished; `state` gives the HUD five times a second."""

    frame_ms: deque[float] = field(default_factory=lambda: deque(maxlen=GRAPH_FRAMES))
    missed: deque[bool] = field(default_factory=lambda: deque(maxlen=GRAPH_FRAMES))
    steps: RateMeter = field(default_factory=RateMeter)
    gpu: ShareMeter = field(default_factory=ShareMeter)
    infer_ms: float | None = None
    held_out: list[tuple[int, float]] = field(default_factory=list)
    """Held-out PSNR: (ns, dB)."""
    _run_times: RunTimes = field(default_factory=RunTimes)
    _message: str = ""
    _message_until_ns: int = 0
    _next_ns: int = 0

    def due(self, now_ns: int) -> bool:
        """Whether the HUD should be drawn anew."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + REFRESH_NS
        return True

    def refresh(self) -> None:
        """Draw the HUD anew at the next frame."""
        self._next_ns = 0

    def say(self, text: str) -> None:
        """Show a line for a few seconds."""
        self._message, self._message_until_ns = text, time.perf_counter_ns() + MESSAGE_NS
        self.refresh()

    def add_frame(self, row: FrameRow) -> None:
        """A frame's fate is known."""
        if row.frame_ms is not None:
            self.frame_ms.append(row.frame_ms)
            self.missed.append(bool(row.missed))
        if row.eye_ms is not None and row.eye_end_ns is not None:
            self.gpu.add(row.eye_end_ns, "render", row.eye_ms)

    def add_chunk(self, row: ChunkRow) -> None:
        """A chunk is complete."""
        if row.ended_ns is not None:
            self.gpu.add(row.ended_ns, row.job, row.gpu_ms or 0.0)
        run = self._run_times.add(row)
        if run is None:
            return
        if row.job == "train":
            self.steps.add(run.end_ns)
        elif run.ms is not None:
            self.infer_ms = run.ms

    def add_quality(self, row: QualityRow) -> None:
        """A figure of the decoder has come back."""
        if row.held_out_db is not None:
            self.held_out.append((row.measured_ns, row.held_out_db))
        if len(self.held_out) > TRACE_POINTS:
            del self.held_out[1:-1:2]

    def state(self, help_lines: Sequence[str] = (), **known: object) -> HudState:
        """The HUD's state; `known` are the fields that others know."""
        now_ns = time.perf_counter_ns()
        return HudState(
            frame_ms=tuple(self.frame_ms),
            missed_recent=tuple(self.missed),
            steps_per_s=self.steps.rate(now_ns),
            infer_ms=self.infer_ms,
            held_out=tuple(self.held_out),
            gpu_share=self.gpu.shares(now_ns),
            message=self._message if now_ns < self._message_until_ns else "",
            help_lines=help_lines,
            **known,  # type: ignore[arg-type]
        )
