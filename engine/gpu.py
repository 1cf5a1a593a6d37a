"""The device: opening it, its facts, creation counting, submission and completion tracking.

Objects are made once, but for bind groups through the public API; the frame loop replays them
through raw library calls, which cost a third of the wrapped ones. What differs between WebGPU
implementations is in `engine.implementations`.

Completion is tracked with raw `wgpuQueueOnSubmittedWorkDone` callbacks and non-waiting polls.
wgpu-py's own promises start a thread that waits inside the library, and a submit made meanwhile
blocks until the running kernel ends; nothing here leaves such a promise pending.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.bind_groups import BindGroups, BufferRange
from engine.errors import GpuError, first_line
from engine.implementations import Choice, Name, candidates, load
from engine.implementations.implementation import Implementation
from engine.pipelines import Pipelines, Program
from engine.specialize import Contract, DeviceFacts

if TYPE_CHECKING:
    import wgpu

FACTORIES = {
    # Also what queue reads and buffers with data go through.
    "_create_buffer": "buffer",
    "create_texture": "texture",
    "create_sampler": "sampler",
    "create_bind_group_layout": "bind_group_layout",
    "create_pipeline_layout": "pipeline_layout",
    "create_shader_module": "shader_module",
    "create_compute_pipeline": "compute_pipeline",
    "create_compute_pipeline_async": "compute_pipeline",
    "create_render_pipeline": "render_pipeline",
    "create_bind_group": "bind_group",
    "create_query_set": "query_set",
}
"""Device methods that make objects which must not be made in steady state, and their kinds."""

ADAPTER_VARIABLE = "DINOVISION_ADAPTER"
"""Environment variable: number of an adapter as `doctor` lists them, or a part of its name."""


def find_adapter(implementation: Implementation, wanted: str) -> wgpu.GPUAdapter:
    """The adapter of that number or name; the best one for an empty string."""
    if not wanted:
        return implementation.best_adapter()
    adapters = implementation.adapters()
    named = {str(number): adapter for number, adapter in enumerate(adapters)}
    for adapter in adapters:
        if wanted.casefold() in adapter.summary.casefold():
            named.setdefault(wanted, adapter)
    if wanted not in named:
        there = "; ".join(f"{n} {a.summary}" for n, a in enumerate(adapters)) or "none"
        raise GpuError(f"{ADAPTER_VARIABLE}={wanted}: no such adapter. Here: {there}")
    return named[wanted]


@dataclass(frozen=True)
class Launch:
    """A compute program, what it binds (read-only ranges, then writable ones) and its grid."""

    program: Program
    reads: Sequence[BufferRange]
    writes: Sequence[BufferRange]
    grid: tuple[int, int, int]


class Command(NamedTuple):
    """A launch ready for replay: raw handles and the grid."""

    pipeline: Any
    bind_group: Any
    x: int
    y: int
    z: int
    owner: Any
    """The public bind group: its raw handle dies with it."""


class Gpu:
    """One device and its only queue, shared by the network and the renderer."""

    def __init__(
        self, library: Implementation, adapter: wgpu.GPUAdapter, device: wgpu.GPUDevice
    ) -> None:
        self.backend, self.api = library, library.api
        self.adapter, self.device, self.queue = adapter, device, device.queue
        self.facts = _facts(library, adapter, device)
        self.contract: Contract = "strict"
        """For programs on this device: accelerated where it was opened for its matrix units."""
        self.created: Counter[str] = Counter()
        self._counting_lock = Lock()
        self._lib, self._ffi = library.lib, library.ffi
        self._raw_queue = device.queue._internal
        self._submitted = 0
        self._completed = 0
        self._completions: deque[tuple[int, int]] = deque()
        self._callback = self._ffi.callback(
            "void(WGPUQueueWorkDoneStatus, WGPUStringView, void *, void *)", self._on_done
        )
        self._count_creations()
        module = self._counting("shader_module", library.unchecked_module)
        self._pipelines = Pipelines(library, device, module)
        self._bind_group = self._counting("bind_group", BindGroups(library, device).make)

    @staticmethod
    def open(implementation: Choice = "auto", *, matrix_units: bool = False) -> Gpu:
        """The device of the best adapter, or of the one that DINOVISION_ADAPTER names.

        `implementation`: auto is what DINOVISION_GPU says, else wgpu; with `matrix_units`, Dawn
        where it has them, else wgpu. Raises GpuError when there is none.
        """
        choices = candidates(implementation, matrix_units=matrix_units)
        for name in choices[:-1]:
            try:
                gpu = Gpu._open(load(name))
            except GpuError:
                continue
            if gpu.facts.matrix_units is not None:
                break
        else:
            gpu = Gpu._open(load(choices[-1]))
        # On a CPU they are more of the same arithmetic.
        if matrix_units and gpu.facts.matrix_units is not None and not gpu.facts.is_cpu:
            gpu.contract = "accelerated"
        return gpu

    @staticmethod
    def _open(library: Implementation) -> Gpu:
        adapter = find_adapter(library, os.environ.get(ADAPTER_VARIABLE, ""))
        return Gpu(library, adapter, library.open(adapter))

    @property
    def implementation(self) -> Name:
        """Which library this is."""
        return self.backend.name

    @property
    def name(self) -> str:
        """Adapter, type and back end in one line."""
        return str(self.adapter.summary)

    @property
    def driver(self) -> str:
        """Driver name and version as the adapter reports it."""
        return str(self.adapter.info.get("description", ""))

    @property
    def timestamp_period_ns(self) -> float:
        """Nanoseconds of one unit of a resolved timestamp; 1 where the library normalises them."""
        return self.backend.timestamp_period_ns(self.queue)

    @property
    def stamps_inside_passes(self) -> bool:
        """Whether `stamp` can be used."""
        return self.backend.stamp_feature in self.device.features

    # Creation counting

    def _count_creations(self) -> None:
        """Wrap the device's factories so that `created` counts calls by kind."""
        for factory, kind in FACTORIES.items():
            setattr(self.device, factory, self._counting(kind, getattr(self.device, factory)))

    def _counting(self, kind: str, create: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(create)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._counting_lock:
                self.created[kind] += 1
            return create(*args, **kwargs)

        return counted

    @property
    def objects_created(self) -> int:
        """Counted objects created so far; equal readings mean that nothing was created between."""
        return sum(self.created.values())

    # Objects, made once

    def storage_buffer(self, nbytes: int, label: str = "") -> wgpu.GPUBuffer:
        """A zeroed storage buffer that can be written, copied from and copied to."""
        usage = "STORAGE | COPY_SRC | COPY_DST"
        return self.device.create_buffer(size=max(16, nbytes), usage=usage, label=label)

    def compile(self, programs: Collection[Program]) -> None:
        """Begin to compile what is not there yet, in threads of its own; `commands` waits for it.

        Programs that are equal share one pipeline.
        """
        self._pipelines.begin(programs)

    def commands(self, launches: Sequence[Launch]) -> list[Command]:
        """Compile and bind programs.

        Raises GpuError with the compiler's message when the WGSL is invalid.
        """
        self.compile([launch.program for launch in launches])
        groups = [self._bind(launch) for launch in launches]
        return [
            Command(self._pipelines.raw(launch.program), group._internal, *launch.grid, group)
            for launch, group in zip(launches, groups, strict=True)
        ]

    def command(
        self,
        source: str,
        reads: Sequence[BufferRange],
        writes: Sequence[BufferRange],
        grid: tuple[int, int, int],
        label: str = "",
    ) -> Command:
        """A single kernel, as `commands`."""
        program = Program(source, len(reads), len(writes), label=label)
        return self.commands([Launch(program, reads, writes, grid)])[0]

    def _bind(self, launch: Launch) -> wgpu.GPUBindGroup:
        layout = self._pipelines.layout(launch.program)
        return self._bind_group(layout, [*launch.reads, *launch.writes])

    # Replay, submission, completion

    def replay(
        self,
        encoder: wgpu.GPUCommandEncoder,
        commands: Iterable[Command],
        timestamp_writes: dict[str, Any] | None = None,
    ) -> None:
        """Record launches into one compute pass; creates no counted object.

        `timestamp_writes` as in `begin_compute_pass`.
        """
        compute_pass = encoder.begin_compute_pass(timestamp_writes=timestamp_writes)
        self.launch(compute_pass, commands)
        compute_pass.end()

    def launch(self, compute_pass: wgpu.GPUComputePassEncoder, commands: Iterable[Command]) -> None:
        """Record launches into an open pass, through raw calls."""
        lib, null = self._lib, self._ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        raw = compute_pass._internal
        last = None
        for pipeline, group, x, y, z, _ in commands:
            if pipeline is not last:
                set_pipeline(raw, pipeline)
                last = pipeline
            set_group(raw, 0, group, 0, null)
            dispatch(raw, x, y, z)

    def stamp(
        self, compute_pass: wgpu.GPUComputePassEncoder, queries: wgpu.GPUQuerySet, index: int
    ) -> None:
        """Write a query between two launches; see `stamps_inside_passes`."""
        self._lib.wgpuComputePassEncoderWriteTimestamp(
            compute_pass._internal, queries._internal, index
        )

    def submit(self, *work: wgpu.GPUCommandEncoder | wgpu.GPUCommandBuffer) -> int:
        """Submit in order, and return a serial number; see `completed`. Serials count from 1.

        Raises GpuError when the device refuses: it is lost, or out of memory.
        """
        try:
            self.queue.submit(
                [w.finish() if isinstance(w, self.api.GPUCommandEncoder) else w for w in work]
            )
        except self.api.GPUError as error:
            raise GpuError(f"the device refused work: {first_line(error)}") from error
        self._submitted += 1
        info = self._ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        info.mode = self._lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = self._callback
        info.userdata1 = self._ffi.cast("void *", self._submitted)
        self._lib.wgpuQueueOnSubmittedWorkDone(self._raw_queue, info[0])
        return self._submitted

    def poll(self) -> int:
        """Look for completions without waiting; the newest completed serial."""
        self.backend.poll(self.device)
        return self._completed

    def wait(self, timeout_s: float = 120.0) -> None:
        """Block until everything submitted has completed. Never in the frame loop.

        Raises GpuError after `timeout_s` without any completion.
        """
        deadline, last = time.perf_counter() + timeout_s, self._completed
        for turn in itertools.count():
            if self.poll() >= self._submitted:
                return
            if self._completed != last:
                deadline, last = time.perf_counter() + timeout_s, self._completed
            if time.perf_counter() > deadline:
                raise GpuError(f"the device did not finish its work within {timeout_s:.0f} s")
            time.sleep(0 if turn < 50 else 0.0005)

    @property
    def completed(self) -> int:
        """The newest serial known to be complete, as of the last poll."""
        return self._completed

    def take_completions(self) -> list[tuple[int, int]]:
        """(serial, perf_counter_ns when seen) of completions since the last call, in order."""
        taken = list(self._completions)
        self._completions.clear()
        return taken

    def _on_done(self, status: int, message: Any, serial: Any, unused: Any) -> None:
        number = int(self._ffi.cast("uintptr_t", serial))
        if number > self._completed:
            self._completed = number
        self._completions.append((number, time.perf_counter_ns()))


def _facts(
    library: Implementation, adapter: wgpu.GPUAdapter, device: wgpu.GPUDevice
) -> DeviceFacts:
    limits = device.limits
    return DeviceFacts(
        name=str(adapter.info.get("device", "")),
        is_cpu=adapter.info.get("adapter_type") == "CPU",
        max_invocations=int(limits["max-compute-invocations-per-workgroup"]),
        max_shared_bytes=int(limits["max-compute-workgroup-storage-size"]),
        max_storage_buffers=int(limits["max-storage-buffers-per-shader-stage"]),
        storage_alignment=int(limits["min-storage-buffer-offset-alignment"]),
        max_binding_bytes=int(limits["max-storage-buffer-binding-size"]),
        max_buffer_bytes=int(limits["max-buffer-size"]),
        matrix_units=library.matrix_units(adapter, device.features),
    )
