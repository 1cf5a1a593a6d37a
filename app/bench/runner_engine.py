"""The runner of this project's own compiler, on the best wgpu adapter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from app.bench.ceilings import measured_ceilings
from app.bench.families import kernel_costs
from app.bench.record import Ceilings, Framework, Job, KernelCost, Phase
from app.bench.runner import Prepared, Results, Skip, serve
from app.bench.values import network_of, parameter, sized
from engine.cache import compile_cached
from engine.errors import EngineError
from engine.gpu import Gpu
from engine.kernel_table import load_table
from engine.plan import Plan
from engine.profile import measured_costs
from engine.serialize import dump_plan
from engine.session import Session
from models.workload import LOSS, OUTPUT, Network


class EngineRunner:
    """Plans on one device; tuned kernels where `run.py tune` has measured some."""

    faults: tuple[type[Exception], ...] = (EngineError,)

    def __init__(self, job: Job) -> None:
        self.job = job
        accelerated = job.contract == "accelerated"
        self.gpu = Gpu.open(job.gpu, matrix_units=accelerated)
        if accelerated and self.gpu.contract != "accelerated":
            raise Skip(f"no matrix units through {self.gpu.implementation} on {self.gpu.name}")
        self.table = load_table(self.gpu)
        self.facts = replace(self.gpu.facts, table=self.table)
        self._serial = 0

    @property
    def framework(self) -> Framework:
        """Adapter and driver."""
        return Framework(
            "engine",
            self.gpu.backend.version,
            self.gpu.name,
            self.gpu.driver,
            precision={
                "storage": self.job.storage,
                "products": "f32" if self.gpu.contract == "strict" else "scaled f16",
                "accumulation": "f32",
            },
            settings={
                "implementation": self.gpu.implementation,
                "tuned products": str(len(self.table)),
            },
        )

    def modes(self, phase: Phase) -> Mapping[str, Callable[[], Prepared]]:
        """The plan; there is only one way to run it."""
        return {"plan": partial(self._prepare, phase)}

    def wait(self) -> None:
        """Poll until the device is idle."""
        if self.gpu.facts.is_cpu:
            # A core that spins is missing to the device.
            self.gpu.wait()
            return
        while self.gpu.poll() < self._serial:
            pass

    def ceilings(self) -> Ceilings:
        """The job's, where it has them, else measured."""
        return measured_ceilings(self.gpu, self.job.peak_gflops, self.job.peak_gbs)

    def _prepare(self, phase: Phase) -> Prepared:
        begin = time.perf_counter()
        network = network_of(self.job, phase)
        plan = compile_cached(
            network.graph,
            self.facts,
            contract=self.gpu.contract,
            storage=self.job.storage,
            folder=Path(self.job.caches),
        )
        session = Session(self.gpu, plan)
        compile_s = time.perf_counter() - begin
        if not self.job.compile_only:
            self._upload(session, network, phase)
        return Prepared(
            run=lambda: self._run(session),
            compile_s=compile_s,
            check=lambda: session.read(LOSS if phase is Phase.TRAINING else OUTPUT),
            results=lambda: _results(session, network, phase),
            memory=lambda: _memory(plan),
            plan=_sizes(plan),
            profile=lambda: _profile(session, self.job.protocol.warm_up_s),
        )

    def _run(self, session: Session) -> None:
        self._serial = session.run()

    def _upload(self, session: Session, network: Network, phase: Phase) -> None:
        workload, config = sized(self.job, phase)
        tensors = session.plan.tensors
        for name, layout in network.layouts.items():
            session.write(name, layout.to_engine(parameter(self.job, name, layout)))
        inputs = workload.inputs(config)
        session.load({name: value for name, value in inputs.items() if name in tensors})
        session.poison()
        self.gpu.wait()


def _results(session: Session, network: Network, phase: Phase) -> Results:
    if phase is not Phase.TRAINING:
        return Results(output=session.read(OUTPUT))
    gradients = {
        name: network.layouts[name].to_native(session.read(f"gradient:{name}"))
        for name in network.graph.gradients
    }
    return Results(loss=float(session.read(LOSS)[0]), gradients=gradients)


def _memory(plan: Plan) -> dict[str, int]:
    """Bytes that the plan owns on the device, and what its tensors would take without sharing."""
    rows = plan.memory_report().values()
    return {
        "allocated": sum(row["physical"] for row in rows),
        "logical": sum(row["logical"] for row in rows),
    }


def _sizes(plan: Plan) -> dict[str, int]:
    sources = {d.kernel.source for d in plan.dispatches}
    return {
        "launches": len(plan.dispatches),
        "barrier_groups": len(plan.groups),
        "kernels": len(sources),
        "wgsl_bytes": sum(len(source.encode()) for source in sources),
        "plan_bytes": len(dump_plan(plan)),
        "constant_bytes": sum(np.asarray(value).nbytes for value in plan.constants.values()),
        "flops": sum(d.kernel.flops for d in plan.dispatches),
        "bound_bytes": sum(map(plan.binding_bytes, plan.dispatches)),
    }


def _profile(session: Session, warm_up_s: float) -> Sequence[KernelCost] | None:
    costs = measured_costs(session, warm_up_s=warm_up_s)
    return None if costs is None else kernel_costs(session.plan, costs)


if __name__ == "__main__":
    sys.exit(serve(EngineRunner))
