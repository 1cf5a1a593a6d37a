"""The network as a tenant of the queue: which chunk goes next, and when."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import wgpu

from app.telemetry.chunk_log import ChunkDraft, ChunkLog
from app.telemetry.rows import ChunkRow
from app.tenancy.estimates import Backlog, Cost, Estimate
from app.tenancy.jobs import Job
from app.tenancy.policy import Policy, Situation
from app.xr.driver import FrameTiming
from engine.timestamps import Span

MODES: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "infer": ("infer",),
    "both": ("train", "infer"),
    "none": (),
}


@dataclass
class _Run:
    """A job under way."""

    job: Job
    number: int
    index: int = 0


class Tenant:
    """Submits chunks of the active jobs when the policy says so.

    A run of a job is submitted chunk by chunk to its end before the next begins; with two
    active jobs they alternate. `chunks` may be set at any time and holds from the next run on.
    `span` reserves GPU stamps; None when there are none to be had.
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
        span: Callable[[], Span | None] = lambda: None,
    ) -> None:
        self.jobs, self.policy = jobs, policy
        self.chunks, self.mode = chunks, mode
        self.training = True
        """Turned off, training steps pause at the next step's end."""
        self.hold = False
        """While set no run begins, so that the weights soon are those of a finished step."""
        self.withheld = ""
        """Why the policy refused the latest chunk."""
        self._new_encoder, self._submit = new_encoder, submit
        self._span = span
        self._log = ChunkLog()
        self._backlog = Backlog()
        self._eyes = Estimate()
        self._scales = {name: Estimate() for name in jobs}
        self._current: _Run | None = None
        self._begun: Counter[str] = Counter()
        self._turn = 0
        self._submitted = 0
        self._timing: FrameTiming | None = None
        self._frame_id = 0
        self._this_frame = 0

    @property
    def in_flight(self) -> int:
        """Chunks submitted and not known to be complete."""
        return self._log.in_flight

    @property
    def newest_in_flight(self) -> int | None:
        """Id of the newest of those."""
        return self._log.newest_in_flight

    @property
    def between_runs(self) -> bool:
        """Whether the next chunk begins a run: weights are those of a finished step."""
        return self._current is None

    @property
    def chunks_this_frame(self) -> int:
        """Chunks submitted since the frame started."""
        return self._this_frame

    @property
    def eyes(self) -> Cost:
        """Expected GPU time of the eye images; 0 while unknown."""
        return Cost(self._eyes.mean, self._eyes.sd)

    def frame_started(self, timing: FrameTiming, frame_id: int) -> None:
        """A frame was waited for; chunks submitted from now on count as its own.

        `frame_id`: its number in the records.
        """
        self._timing, self._frame_id, self._this_frame = timing, frame_id, 0

    def rest(self) -> None:
        """Submit nothing before the next frame starts."""
        self._timing = None

    def eyes_submitted(self, serial: int, submit_ns: int) -> None:
        """The frame's eye images went to the queue."""
        self._backlog.submitted(serial, submit_ns, self.eyes)

    def learn_eye_time(self, ms: float) -> None:
        """The GPU time of one frame's eye images."""
        self._eyes.learn(ms)

    def pump(self, limit: int | None = None) -> None:
        """Submit as many chunks as the policy wants now, at most `limit`."""
        timing = self._timing
        if timing is None:
            return
        for _ in range(limit) if limit is not None else itertools.count():
            chunk = self._next_cost()
            decision = self.policy.decide(self._situation(timing, chunk))
            if not decision.submit:
                self.withheld = decision.reason
                return
            if not self._submit_next(decision.reason, chunk):
                self.withheld = "no work"
                return

    def finish_run(self, wait: Callable[[], None]) -> None:
        """Submit the rest of a run under way chunk by chunk, with `wait` for the device after each.

        Not for the frame loop.
        """
        while self._current is not None:
            self._submit_next("end of session", self._next_cost())
            wait()

    def completed(self, serial: int, done_ns: int) -> bool:
        """Note that a submission, anyone's, has completed; whether it was a chunk."""
        self._backlog.completed(serial, done_ns)
        chunk = self._log.completed(serial, done_ns)
        if chunk is None:
            return False
        if chunk.span is None:
            self._learn(chunk)
        if chunk.last:
            self.jobs[chunk.job].completed()
        return True

    def stamped(self, span: int, begin_ns: int, end_ns: int) -> bool:
        """Note GPU stamps on the CPU clock; whether they were a chunk's."""
        chunk = self._log.stamped(span, begin_ns, end_ns)
        if chunk is not None:
            self._learn(chunk)
        return chunk is not None

    def stamps_passed(self, span: int) -> None:
        """Older stamps that have not come are lost."""
        self._log.stamps_passed(span)

    def poll(self) -> None:
        """Let the jobs take their readbacks."""
        for job in self.jobs.values():
            job.poll()

    def take_rows(self, *, all_of_them: bool = False) -> list[ChunkRow]:
        """Rows of chunks of which all is known, once each; at the end of a session the rest too."""
        return self._log.finish() if all_of_them else self._log.take()

    def _situation(self, timing: FrameTiming, chunk: Cost | None) -> Situation:
        now_ns = time.perf_counter_ns()
        return Situation(
            now_ns=now_ns,
            in_flight=self.in_flight,
            submitted_this_frame=self._this_frame,
            # The eyes of the current frame are in the queue already: the next ones are at stake.
            due_ns=timing.due_ns + timing.period_ns,
            backlog=self._backlog.ahead(now_ns),
            chunk=chunk,
            eyes=self.eyes,
            should_render=timing.should_render,
        )

    def _next_cost(self) -> Cost | None:
        """Expected GPU time of the next chunk: the job's own figure, scaled by experience.

        Between runs the dearest first chunk counts, as it is not known yet whose turn it is.
        """
        if self._current is not None:
            job = self._current.job
            return self._cost(job, self._current.index, len(job.chunks))
        first = [self._cost(self.jobs[name], 0, self.chunks) for name in MODES[self.mode]]
        known = [cost for cost in first if cost is not None]
        return max(known, key=lambda cost: cost.ms, default=None)

    def _cost(self, job: Job, index: int, chunks: int) -> Cost | None:
        scale = self._scales[job.name]
        if not scale.known:
            return None
        own_ms = job.chunk_ms(index, chunks)
        return Cost(own_ms * scale.mean, own_ms * scale.sd)

    def _learn(self, chunk: ChunkDraft) -> None:
        job = self.jobs[chunk.job]
        own_ms = job.chunk_ms(chunk.index, chunk.of)
        if chunk.gpu_ms is not None and own_ms > 0:
            self._scales[chunk.job].learn(chunk.gpu_ms / own_ms)

    def _submit_next(self, reason: str, cost: Cost | None) -> bool:
        """Submit one chunk; False when no job is active."""
        run = self._current or self._begin_run()
        if run is None:
            return False
        job, index = run.job, run.index
        encoder = self._new_encoder()
        span = self._span()
        job.encode(encoder, index, span.writes if span else None)
        submit_ns = time.perf_counter_ns()
        serial = self._submit(encoder)
        submit_ms = (time.perf_counter_ns() - submit_ns) / 1e6
        if span is not None:
            span.recorded()
        job.submitted(index, serial)
        self._backlog.submitted(serial, submit_ns, cost or Cost(0.0, 0.0))
        self._submitted += 1
        self._this_frame += 1
        first, end = job.chunks[index]
        self._log.submitted(
            ChunkDraft(
                id=self._submitted,
                job=job.name,
                job_id=run.number,
                index=index,
                of=len(job.chunks),
                dispatches=end - first,
                frame_id=self._frame_id,
                in_flight=self.in_flight + 1,
                reason=reason,
                predicted_ms=cost.ms if cost else None,
                submit_ns=submit_ns,
                submit_ms=submit_ms,
                serial=serial,
                span=span.number if span else None,
            )
        )
        run.index += 1
        self._current = run if run.index < len(job.chunks) else None
        return True

    def _begin_run(self) -> _Run | None:
        """Feed the next job in turn; None when none is active."""
        job = None if self.hold else self._choose()
        if job is None:
            return None
        job.cut(self.chunks)
        job.begin()
        self._begun[job.name] += 1
        return _Run(job, self._begun[job.name])

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
