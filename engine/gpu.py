"""The device: opening it, its facts, creation counting, submission and completion tracking.

With `engine.readback` and `engine.bind_groups` the only file that knows which WebGPU implementation
runs (wgpu-native through wgpu-py). Objects are made once, but for bind groups through the public
API; the frame loop replays them through raw library calls, which cost a third of the wrapped ones.

Completion is tracked with raw `wgpuQueueOnSubmittedWorkDone` callbacks and non-waiting polls.
wgpu-py's own promises start a thread that waits inside the library, and a submit made meanwhile
blocks until the running kernel ends; nothing here leaves such a promise pending.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any, Literal, NamedTuple

import wgpu

from engine.bind_groups import BindGroups, BufferRange
from engine.errors import GpuError, first_line
from engine.header_types import know_types
from engine.pipelines import Pipelines, Program
from engine.specialize import DeviceFacts

FACTORIES = {
    # Also what queue reads and buffers with data go through.
    "buffer": "_create_buffer",
    "texture": "create_texture",
    "sampler": "create_sampler",
    "bind_group_layout": "create_bind_group_layout",
    "pipeline_layout": "create_pipeline_layout",
    "shader_module": "create_shader_module",
    "compute_pipeline": "create_compute_pipeline",
    "render_pipeline": "create_render_pipeline",
    "bind_group": "create_bind_group",
    "query_set": "create_query_set",
}
"""Device methods that make objects which must not be made in steady state, by kind."""

WANTED_FEATURES = ("timestamp-query", "timestamp-query-inside-passes")
WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
)

ADAPTER_VARIABLE = "DINOVISION_ADAPTER"
"""Environment variable: number of an adapter as `doctor` lists them, or a part of its name."""

_instance_ready = False


def prepare_instance() -> None:
    """Choose back ends before the first adapter request; harmless when called again.

    On Linux only Vulkan: enumerating the GL back end beside an X11 window aborts the process.
    """
    global _instance_ready
    if _instance_ready:
        return
    from wgpu.backends.wgpu_native._ffi import ffi
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    know_types(ffi)
    if sys.platform.startswith("linux"):
        os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
        set_instance_extras(
            backends=["Vulkan"], flags=["Default", "AutomaticTimestampNormalization"]
        )
    _instance_ready = True


def _adapter(wanted: str) -> wgpu.GPUAdapter:
    """The adapter of that number or name; the best one for an empty string."""
    try:
        if not wanted:
            return wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        adapters = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        raise GpuError(
            "no graphics adapter found: install a Vulkan driver (on Debian or Ubuntu: "
            f"apt install libvulkan1 mesa-vulkan-drivers); {first_line(error)}"
        ) from error
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

    implementation: Literal["wgpu", "dawn"] = "wgpu"

    def __init__(self, adapter: wgpu.GPUAdapter, device: wgpu.GPUDevice) -> None:
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        self.adapter, self.device, self.queue = adapter, device, device.queue
        self.facts = _facts(adapter, device)
        self.created: Counter[str] = Counter()
        self._counting_lock = Lock()
        self._lib, self._ffi = lib, ffi
        self._raw_device = device._internal
        self._raw_queue = device.queue._internal
        self._submitted = 0
        self._completed = 0
        self._completions: deque[tuple[int, int]] = deque()
        self._callback = ffi.callback(
            "void(WGPUQueueWorkDoneStatus, WGPUStringView, void *, void *)", self._on_done
        )
        self._count_creations()
        self._pipelines = Pipelines(device)
        self._bind_group = self._counting("bind_group", BindGroups(device).make)

    @staticmethod
    def open() -> Gpu:
        """The device of the best adapter, or of the one that DINOVISION_ADAPTER names.

        Raises GpuError when there is none.
        """
        prepare_instance()
        adapter = _adapter(os.environ.get(ADAPTER_VARIABLE, ""))
        limits = {key: adapter.limits[key] for key in WANTED_LIMITS if key in adapter.limits}
        features = [name for name in WANTED_FEATURES if name in adapter.features]
        try:
            device = adapter.request_device_sync(required_features=features, required_limits=limits)
        except Exception as error:
            raise GpuError(f"{adapter.summary} gives no device: {first_line(error)}") from error
        return Gpu(adapter, device)

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
        return float(self._lib.wgpuQueueGetTimestampPeriod(self._raw_queue))

    # Creation counting

    def _count_creations(self) -> None:
        """Wrap the device's factories so that `created` counts calls by kind."""
        for kind, factory in FACTORIES.items():
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
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
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
        """Write a query between two launches; needs the feature timestamp-query-inside-passes."""
        self._lib.wgpuComputePassEncoderWriteTimestamp(
            compute_pass._internal, queries._internal, index
        )

    def submit(self, *work: wgpu.GPUCommandEncoder | wgpu.GPUCommandBuffer) -> int:
        """Submit in order, and return a serial number; see `completed`. Serials count from 1.

        Raises GpuError when the device refuses: it is lost, or out of memory.
        """
        try:
            self.queue.submit(
                [w.finish() if isinstance(w, wgpu.GPUCommandEncoder) else w for w in work]
            )
        except wgpu.GPUError as error:
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
        self._lib.wgpuDevicePoll(self._raw_device, False, self._ffi.NULL)
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


def _facts(adapter: wgpu.GPUAdapter, device: wgpu.GPUDevice) -> DeviceFacts:
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
    )
