"""What each launch of a plan costs on this device, measured with its timestamps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from engine.gpu import Command, Gpu
from engine.queries import MOST_QUERIES, TimestampQueries, timestamps_available
from engine.readback import Readback
from engine.session import Session

REPEATS = 5


def measured_costs(
    session: Session, repeats: int = REPEATS, warm_up_s: float = 0.0
) -> list[float] | None:
    """Nanoseconds per dispatch, the median of `repeats` runs; None without timestamps.

    The plan first runs for `warm_up_s` seconds: a GPU that was idle has lower clocks, half as fast.

    Scaled so that they sum to the time of a run without stamps between its launches. Launches
    that overlap share their time: each is charged what it adds. Runs the plan at least
    2 * repeats + 1 times, which changes its state: reset parameters and optimiser afterwards.
    Waits for the device and creates objects. Raises ValueError for repeats < 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    if not timestamps_available(session.gpu):
        return None
    if not session.commands:
        return []
    stopwatch = _Stopwatch(session.gpu)
    begin = time.perf_counter()
    session.run()
    while time.perf_counter() - begin < warm_up_s:
        session.gpu.wait()
        session.run()
    runs: list[list[float]] = []
    totals: list[float] = []
    for _ in range(repeats):
        runs.append(stopwatch.each(session.commands))
        totals.append(stopwatch.whole(session.commands))
    return scaled([median(times) for times in zip(*runs, strict=True)], median(totals))


def scaled(costs: list[float], total: float) -> list[float]:
    """The same proportions with the sum `total`; equal shares when nothing was measurable."""
    measured = sum(costs)
    if measured <= 0:
        return [total / len(costs)] * len(costs)
    return [cost * total / measured for cost in costs]


class _Stopwatch:
    """Queries and staging to time launches, one blocking submission at a time."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._inside = gpu.stamps_inside_passes
        self._queries = TimestampQueries(gpu, MOST_QUERIES)
        self._readback: Readback = self._queries.readback(MOST_QUERIES)

    def whole(self, commands: list[Command]) -> float:
        """Nanoseconds of all launches in one pass."""
        encoder = self.gpu.device.create_command_encoder()
        self.gpu.replay(encoder, commands, self._queries.writes(0))
        self.gpu.submit(encoder)
        begin, end = self._queries.read(2, self._readback)
        return float(max(0, end - begin))

    def each(self, commands: list[Command]) -> list[float]:
        """Nanoseconds of every launch, in pieces that the queries suffice for."""
        size = MOST_QUERIES - 1 if self._inside else MOST_QUERIES // 2
        measure = self._between_launches if self._inside else self._pass_per_launch
        times: list[float] = []
        for first in range(0, len(commands), size):
            times += (float(max(0, t)) for t in measure(commands[first : first + size]))
        return times

    def _between_launches(self, commands: list[Command]) -> Iterator[int]:
        encoder = self.gpu.device.create_command_encoder()
        launches = encoder.begin_compute_pass()
        self.gpu.stamp(launches, self._queries.set, 0)
        for number, command in enumerate(commands, start=1):
            self.gpu.launch(launches, [command])
            self.gpu.stamp(launches, self._queries.set, number)
        launches.end()
        self.gpu.submit(encoder)
        stamps = self._queries.read(len(commands) + 1, self._readback)
        return (after - before for before, after in pairwise(stamps))

    def _pass_per_launch(self, commands: list[Command]) -> Iterator[int]:
        encoder = self.gpu.device.create_command_encoder()
        for number, command in enumerate(commands):
            self.gpu.replay(encoder, [command], self._queries.writes(2 * number))
        self.gpu.submit(encoder)
        stamps = self._queries.read(2 * len(commands), self._readback)
        return (end - begin for begin, end in zip(stamps[::2], stamps[1::2], strict=True))
