"""The network as a tenant of the queue: which chunk goes next, and which are in flight."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import wgpu

from app.telemetry.rows import ChunkRow
from app.tenancy.jobs import Job
from app.tenancy.policy import Policy, Situation
from app.xr.driver import FrameTiming

MODES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "infer": ("infer",),
    "both": ("train", "infer"),
}

SMOOTHING = 0.1
"""Weight of the newest sample in the running estimates of GPU times."""


@dataclass
class _Flight:
    serial: int
    job: Job
    row: dict[str, object]
    last: bool
    submit_ns: int


class Tenant:
    """Submits chunks of the active jobs when the policy says so.

    A run of a job is submitted chunk by chunk to its end before the next begins; with two
    active jobs they alternate. `chunks` may be set at any time and holds from the next run on.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        policy: Policy,
        *,
        chunks: int,
        mode: str,
        new_encoder: Callable[[], wgpu.GPUCommandEncoder],
        submit: Callable[[wgpu.GPUCommandEncoder], int],
    ) -> None:
        self.jobs, self.policy = jobs, policy
        self.chunks, self.mode = chunks, mode
        self.training = True
        """Turned off, training steps pause at the next step's end."""
        self.hold = False
        """While set no run begins, so that the weights soon are those of a finished step."""
        self.eye_ms = 0.0
        """Estimated GPU time of the eye images."""
        self.chunk_ms = 0.0
        self.busy_ns = 0
        """GPU time of completed chunks, as observed."""
        self._new_encoder, self._submit = new_encoder, submit
        self._flights: deque[_Flight] = deque()
        self._current: tuple[Job, int] | None = None
        self._begun: Counter[str] = Counter()
        self._turn = 0
        self._submitted = 0
        self._timing: FrameTiming | None = None
        self._this_frame = 0
        self._next_wake_ns = 0
        self._last_done_ns = 0

    @property
    def in_flight(self) -> int:
        """Chunks submitted and not known to be complete."""
        return len(self._flights)

    @property
    def between_runs(self) -> bool:
        """Whether the next chunk begins a run: weights are those of a finished step."""
        return self._current is None

    @property
    def chunks_this_frame(self) -> int:
        """Chunks submitted since the frame started."""
        return self._this_frame

    def frame_started(self, timing: FrameTiming) -> None:
        """A frame was waited for; chunks submitted from now on count as its own."""
        self._timing, self._this_frame = timing, 0
        # One period from now; sooner when this frame itself started late.
        next_ns = time.perf_counter_ns() + timing.period_ns
        self._next_wake_ns = min(next_ns, timing.predicted_display_ns)

    def pump(self, *, after_submit: bool) -> None:
        """Submit as many chunks as the policy wants now."""
        timing = self._timing
        if timing is None:
            return
        while True:
            now_ns = time.perf_counter_ns()
            situation = Situation(
                now_ns=now_ns,
                in_flight=self.in_flight,
                submitted_this_frame=self._this_frame,
                next_wake_ns=self._next_wake_ns,
                period_ns=timing.period_ns,
                chunk_ms=self.chunk_ms,
                eye_ms=self.eye_ms,
                should_render=timing.should_render,
                after_submit=after_submit,
            )
            decision = self.policy.chunks_to_submit(situation)
            if decision.count == 0:
                return
            for _ in range(decision.count):
                if not self._submit_next(timing.frame_id, decision.reason):
                    return

    def finish_run(self, wait: Callable[[], None]) -> None:
        """Submit the rest of a run under way chunk by chunk, with `wait` for the device after each.

        Not for the frame loop.
        """
        while self._current is not None and self._timing is not None:
            self._submit_next(self._timing.frame_id, "end of session")
            wait()

    def collect(self, serial: int, done_ns: int) -> ChunkRow | None:
        """Take a completion; returns the chunk's row if the submission was one of ours."""
        if not self._flights or self._flights[0].serial != serial:
            return None
        flight = self._flights.popleft()
        begun_ns = max(flight.submit_ns, self._last_done_ns)
        self._last_done_ns = done_ns
        spent_ns = max(0, done_ns - begun_ns)
        self.busy_ns += spent_ns
        self.chunk_ms += (spent_ns / 1e6 - self.chunk_ms) * (SMOOTHING if self.chunk_ms else 1.0)
        if flight.last:
            flight.job.completed()
        return ChunkRow(done_ns=done_ns, **flight.row)  # type: ignore[arg-type]

    def poll(self) -> None:
        """Let the jobs take their readbacks."""
        for job in self.jobs.values():
            job.poll()

    def _submit_next(self, frame_id: int, reason: str) -> bool:
        """Submit one chunk; False when no job is active."""
        if self._current is None:
            job = None if self.hold else self._choose()
            if job is None:
                return False
            job.cut(self.chunks)
            job.begin()
            self._begun[job.name] += 1
            self._current = (job, 0)
        job, index = self._current
        encoder = self._new_encoder()
        job.encode(encoder, index)
        submit_ns = time.perf_counter_ns()
        serial = self._submit(encoder)
        submit_ms = (time.perf_counter_ns() - submit_ns) / 1e6
        job.submitted(index, serial)
        last = index == len(job.chunks) - 1
        self._current = None if last else (job, index + 1)
        self._submitted += 1
        self._this_frame += 1
        first, end = job.chunks[index]
        row: dict[str, object] = {
            "id": self._submitted,
            "job": job.name,
            "job_id": self._begun[job.name],
            "index": index,
            "of": len(job.chunks),
            "dispatches": end - first,
            "frame_id": frame_id,
            "submit_ns": submit_ns,
            "submit_ms": submit_ms,
            "in_flight": self.in_flight + 1,
            "reason": reason,
        }
        self._flights.append(_Flight(serial, job, row, last, submit_ns))
        return True

    def _choose(self) -> Job | None:
        """The next job in turn; one that is not due gives way to the other."""
        names = [name for name in MODES[self.mode] if name != "train" or self.training]
        if not names:
            return None
        now_ns = time.perf_counter_ns()
        for _ in names:
            self._turn += 1
            job = self.jobs[names[self._turn % len(names)]]
            if job.due(now_ns):
                return job
        alone = len(names) == 1 and names[0] != "train"
        return self.jobs[names[0]] if alone else None
