"""The `bench` command: five workloads on the engine and on a reference, timed and judged."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from rich.console import Console

from app.bench import values
from app.bench.cells import BAD, Cell, Runs, make_cells
from app.bench.config import NONE, BenchConfig
from app.bench.golden import Golden, require_same_parameters
from app.bench.processes import Caches, run_job, scratch
from app.bench.protocol import FULL, REDUCED
from app.bench.publish import publish, rows
from app.bench.record import OK, Job, RunRecord, save
from app.bench.size import closure_bytes, engine_bytes
from app.bench.table import Bench, markdown, page, verdict
from app.config import UsageError
from app.progress import Progress
from app.telemetry.rows import to_json
from engine.atomic import write_atomic
from engine.errors import EngineError
from models.zoo import WORKLOADS


def run_bench(config: BenchConfig, console: Console | None = None) -> int:
    """Run, write and print; 0, or 1 when a gate failed or a runner broke.

    Raises UsageError, or EngineError when the folder cannot be written or weights do not serve.
    """
    config.check()
    goldens = _goldens(config)
    if config.weights is not None:
        # Now rather than in a process whose failure would be one line among many.
        values.published(config.workloads[0], config.weights)
    progress = Progress()
    with contextlib.closing(progress):
        try:
            bench = _Bench(config, progress)
            for workload in config.workloads:
                bench.run(workload, goldens.get(workload))
            published = bench.publish()
        except OSError as error:
            where = error.filename or config.out
            raise EngineError(f"cannot write {where}: {error.strerror or error}") from error
    page(bench.found).print(console or Console())
    if published:
        progress.say(f"published {published}")
    progress.say(f"{verdict(bench.found.cells)}; tables and records in {config.out}")
    return 1 if bench.failed else 0


def _goldens(config: BenchConfig) -> dict[str, Golden]:
    """The reference files, known to fit before anything is run."""
    found: dict[str, Golden] = {}
    for name in config.workloads if config.golden else ():
        workload = WORKLOADS[name]
        if not workload.has_golden:
            continue
        path = (config.golden or Path()) / f"{workload.name}.json"
        try:
            found[name] = Golden.read(path)
            size = workload.reduced if config.reduced else workload.full
            require_same_parameters(workload.training(size), found[name])
        except (OSError, ValueError) as error:
            raise UsageError(f"--golden {path} does not serve: {error}") from error
    return found


class _Bench:
    """The work, one workload after another; what there is so far is always on disk."""

    def __init__(self, config: BenchConfig, progress: Progress) -> None:
        self.config, self.progress = config, progress
        self.found = Bench(config.reference)
        self.found.installed["engine, models and what they need"] = engine_bytes()
        if config.reference != NONE:
            self.found.installed[config.reference] = closure_bytes([config.reference])
        shutil.rmtree(config.out / "records", ignore_errors=True)
        (config.out / "records").mkdir(parents=True, exist_ok=True)

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        return any(cell.gate == BAD for cell in self.found.cells) or bool(self.found.broken())

    def run(self, workload: str, golden: Golden | None) -> None:
        """Both runners in turn, in fresh processes, then the engine's compiler once more."""
        with scratch() as folder:
            records: dict[str, list[RunRecord]] = {"engine": []}
            if self.config.reference != NONE:
                records[self.config.reference] = []
            # Where times say nothing, software devices may spare themselves compiling anew.
            plans_only = self.config.reduced
            caches = {
                runner: Caches(folder / f"{runner}-caches", plans_only=plans_only)
                for runner in records
            }
            for number in range(self.config.processes):
                order = list(records) if number % 2 == 0 else list(records)[::-1]
                for runner in order:
                    job = self._job(workload, caches[runner], profile=number == 0)
                    record = self._process(runner, job, caches[runner], folder, number)
                    records[runner].append(record)
            if records["engine"][0].outcome == OK:
                again = self._job(workload, caches["engine"], compile_only=True)
                last = self.config.processes
                record = self._process("engine", again, caches["engine"], folder, last)
                self.found.cached.append(record)
            runs = {r: Runs(tuple(done), folder / f"{r}-0") for r, done in records.items()}
            self.found.runs += runs.values()
            cells = make_cells(runs["engine"], runs.get(self.config.reference), golden)
        self.found.cells += cells
        for cell in cells:
            self.progress.say(_told(cell))
        self._write()

    def publish(self) -> Path | None:
        """Keep the figures in the folder of --publish; the file."""
        framework = next((r.framework for r in self.found.engine() if r.framework), None)
        if self.config.publish is None:
            return None
        if framework is None:
            raise EngineError("nothing to publish: the engine ran nowhere")
        figures = rows(self.found.cells, self.found.runs, self.found.cached)
        kind: str = self.config.contract
        if self.config.storage == "f16":
            kind += "-f16"
        if framework.settings.get("implementation") == "dawn":
            kind += "-dawn"
        return publish(self.config.publish, figures, framework.device, kind)

    def _job(
        self, workload: str, caches: Caches, *, compile_only: bool = False, profile: bool = False
    ) -> Job:
        config = self.config
        return Job(
            workload=workload,
            contract=config.contract,
            storage=config.storage,
            gpu=config.gpu,
            reduced=config.reduced,
            protocol=REDUCED if config.reduced else FULL,
            caches=str(caches.plans),
            compile_only=compile_only,
            profile=profile and config.profile,
            peak_gflops=config.peak_gflops,
            peak_gbs=config.peak_gbs,
            weights=str(config.weights.absolute()) if config.weights else "",
        )

    def _process(
        self, runner: str, job: Job, caches: Caches, folder: Path, number: int
    ) -> RunRecord:
        what = "compiling again" if job.compile_only else "running"
        self.progress.say(f"{WORKLOADS[job.workload].name}: {runner} {what}")
        record = run_job(runner, job, caches, folder / f"{runner}-{number}")
        save(self.config.out / "records" / f"{job.workload}-{runner}-{number}.json", record)
        return record

    def _write(self) -> None:
        out, found = self.config.out, page(self.found)
        figures = rows(self.found.cells, self.found.runs, self.found.cached)
        write_atomic(out / "bench.json", to_json(figures, indent=1) + "\n")
        write_atomic(out / "bench.md", markdown(found))
        write_atomic(out / "bench.html", found.html())


def _told(cell: Cell) -> str:
    times = [
        f"{name} {timed.median:.3f} ms"
        for name, timed in (("engine", cell.engine), ("reference", cell.reference))
        if timed
    ]
    name = WORKLOADS[cell.workload].name
    return "; ".join(filter(None, [f"{name}, {cell.phase}: {cell.gate}", *times, cell.why]))
