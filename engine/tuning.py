"""Measuring which matrix-product kernels suit a device best."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from engine.errors import GpuError
from engine.gpu import BufferRange, Command, Gpu
from engine.graph import Graph
from engine.kernel_table import KernelTable
from engine.kernels.matmul import matmul
from engine.kernels.product import MatmulShape
from engine.lower import Lowering
from engine.rewrite import rewrite
from engine.specialize import DeviceFacts, MatmulChoice, MatmulKey, matmul_candidates

SAMPLES = 5
SAMPLE_S = 0.004
"""Launches of a sample take about so long, many times the cost of a submission."""
MOST_LAUNCHES = 400
BETTER = 0.97
"""A choice replaces the usual one when it takes less than this share of its time, twice."""
HOPELESS = 2.0
"""A candidate whose first sample takes so many times the best is not measured further."""
SLOW_S = 0.2
"""A product that takes longer is measured once: noise is small beside it, and time is limited."""
LONGEST_S = 60.0


@dataclass(frozen=True)
class Measured:
    """One product: the usual kernel's time and the best one's; None: the usual is best."""

    key: MatmulKey
    usual_us: float
    best_us: float
    choice: MatmulChoice | None
    tried: int


def tuned_facts(gpu: Gpu) -> DeviceFacts:
    """The device as the choices see it that are measured: under its contract, without a table."""
    return replace(gpu.facts.under(gpu.contract), table={})


def products(graph: Graph, facts: DeviceFacts) -> Counter[MatmulKey]:
    """The plain matrix products in the program that a graph becomes, and how often."""
    asked = _Asked()
    Lowering(rewrite(graph, "greedy", facts), replace(facts, table=asked))
    return Counter({key: n for key, n in asked.counts.items() if key.layout})


def tune(
    gpu: Gpu,
    graphs: Iterable[Graph],
    seconds: float = 60.0,
    progress: Callable[[Measured], None] | None = None,
    known: KernelTable | None = None,
) -> KernelTable:
    """A table for the products of `graphs` under the device's contract: `known` with what was
    measured in its place.

    Takes about `seconds`, the products with most arithmetic first; what time does not suffice for
    stays as it is. Waits for the device all the time. Raises GpuError when it is lost.
    """
    facts = tuned_facts(gpu)
    counts: Counter[MatmulKey] = Counter()
    for graph in graphs:
        counts.update(products(graph, facts))
    keys = [key for key in counts if _fits(key, facts)]
    keys.sort(key=lambda key: counts[key] * key.batch * key.m * key.n * key.k, reverse=True)
    known = known or KernelTable(gpu.name, gpu.driver, gpu.contract)
    found: dict[MatmulKey, MatmulChoice | None] = {}
    end = time.perf_counter() + seconds
    for place, key in enumerate(keys):
        now = time.perf_counter()
        if now >= end:
            break
        # What is left is shared by the rest; heavy products may take some of it in advance.
        share = min(end - now, 3 * (end - now) / (len(keys) - place))
        result = _tune_one(gpu, key, facts, known.get(key), now + share)
        found[key] = result.choice
        if progress:
            progress(result)
    return known.updated(found)


class _Asked(dict[MatmulKey, MatmulChoice]):
    """An empty table that counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[MatmulKey] = Counter()

    def get(self, key: MatmulKey, default: object = None) -> None:  # type: ignore[override]
        self.counts[key] += 1


def _fits(key: MatmulKey, facts: DeviceFacts) -> bool:
    limit = min(facts.max_binding_bytes, facts.max_buffer_bytes)
    return max(_elements(key)) * 4 <= limit


def _elements(key: MatmulKey) -> tuple[int, int, int]:
    """Elements of a, b and the result."""
    return key.batch * key.m * key.k, key.batch * key.k * key.n, key.batch * key.m * key.n


def _tune_one(
    gpu: Gpu, key: MatmulKey, facts: DeviceFacts, known: MatmulChoice | None, end: float
) -> Measured:
    bench = _Bench(gpu, key)
    usual, *others = (c for c in matmul_candidates(key, facts) if _parts_fit(key, c, facts))
    # What was best before comes first: little time must not lose it.
    others.sort(key=lambda choice: choice != known)
    usual_s = best_s = bench.time(usual)
    best, tried = usual, 1
    for choice in others:
        if time.perf_counter() >= end and choice != known:
            break
        taken = bench.time(choice, hopeless_s=HOPELESS * best_s)
        tried += 1
        if taken < best_s:
            best, best_s = choice, taken
    if best_s < BETTER * usual_s:
        # The least of many noisy times is flattering: both once more, side by side.
        usual_s, best_s = bench.time(usual), bench.time(best)
    if best_s < BETTER * usual_s:
        return Measured(key, 1e6 * usual_s, 1e6 * best_s, best, tried)
    return Measured(key, 1e6 * usual_s, 1e6 * usual_s, None, tried)


def _parts_fit(key: MatmulKey, choice: MatmulChoice, facts: DeviceFacts) -> bool:
    limit = min(facts.max_binding_bytes, facts.max_buffer_bytes)
    return choice.split_k == 1 or choice.split_k * _elements(key)[2] * 4 <= limit


class _Bench:
    """Operands of one product on the device, and the time of kernels on them."""

    def __init__(self, gpu: Gpu, key: MatmulKey) -> None:
        self.gpu = gpu
        ta, tb = (side == "t" for side in key.layout)
        self.shape = MatmulShape(key.batch, key.m, key.n, key.k, ta, tb)
        self._a, self._b, self._y = (self._buffer(size) for size in _elements(key))
        rng = np.random.default_rng(0)
        for operand in (self._a, self._b):
            # Zeros would flatter: they cost less power, and so run at a higher clock.
            values = rng.uniform(-1, 1, operand.size // 4).astype(np.float32)
            gpu.queue.write_buffer(operand.buffer, 0, values)

    def time(self, choice: MatmulChoice, hopeless_s: float = float("inf")) -> float:
        """Seconds of one product, the median of several samples after a warm-up.

        Above `hopeless_s`, or SLOW_S, a single sample must do.
        """
        commands = list(self._commands(choice))
        self._sample(commands, 1)
        launches = 1
        taken = self._sample(commands, launches)
        while taken * launches < SAMPLE_S / 2 and launches < MOST_LAUNCHES:
            wanted = int(SAMPLE_S / max(taken, 1e-7)) + 1
            launches = min(MOST_LAUNCHES, wanted, 8 * launches)
            taken = self._sample(commands, launches)
        if taken > min(hopeless_s, SLOW_S):
            return taken
        return median([taken, *(self._sample(commands, launches) for _ in range(SAMPLES - 1))])

    def _commands(self, choice: MatmulChoice) -> Iterator[Command]:
        kernels = matmul(self.shape, choice)
        a, b, y = self._a, self._b, self._y
        steps = [([a, b], y)]
        if len(kernels) == 2:
            parts = self._buffer(choice.split_k * self.shape.m * self.shape.n)
            steps = [([a, b], parts), ([parts], y)]
        for kernel, (reads, written) in zip(kernels, steps, strict=True):
            yield self.gpu.command(kernel.source, reads, [written], kernel.grid, kernel.label)

    def _sample(self, commands: list[Command], launches: int) -> float:
        """Seconds per product of so many in one submission."""
        encoder = self.gpu.device.create_command_encoder()
        self.gpu.replay(encoder, commands * launches)
        start = time.perf_counter()
        serial = self.gpu.submit(encoder)
        # Sleeping, as Gpu.wait does, would cost more than a sample takes.
        while self.gpu.poll() < serial:
            if time.perf_counter() - start > LONGEST_S:
                raise GpuError(f"the device did not finish a matrix product in {LONGEST_S:.0f} s")
        return (time.perf_counter() - start) / launches

    def _buffer(self, elements: int) -> BufferRange:
        return BufferRange(self.gpu.storage_buffer(4 * elements), 0, 4 * elements)
