"""wgpu-native, through wgpu-py: the default."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wgpu
from wgpu.backends import wgpu_native
from wgpu.backends.wgpu_native import _api, _ffi, extras

from engine.header_types import know_types
from engine.implementations.implementation import Implementation, Name, Pending
from engine.specialize import MatrixUnits


class Native(Implementation):
    """The library that wgpu-py brings."""

    name: Name = "wgpu"
    package = "wgpu"
    stamp_feature = "timestamp-query-inside-passes"
    wanted_features = ("timestamp-query", stamp_feature)
    translates_late = False

    api = wgpu
    ffi, lib, checked = _ffi.ffi, _ffi.lib, _api.libf
    bind_group_class = _api.GPUBindGroup

    def __init__(self) -> None:
        self._ready = False

    @property
    def version(self) -> str:
        """Package and library in one line."""
        library = ".".join(map(str, wgpu_native.lib_version_info))
        return f"wgpu {wgpu.__version__} (wgpu-native {library})"

    def prepare(self) -> None:
        """On Linux only Vulkan: enumerating the GL back end beside an X11 window aborts the
        process.
        """
        if self._ready:
            return
        know_types(self.ffi)
        if sys.platform.startswith("linux"):
            os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
            flags = ["Default", "AutomaticTimestampNormalization"]
            extras.set_instance_extras(backends=["Vulkan"], flags=flags)
        self._ready = True

    def request_device(
        self, adapter: wgpu.GPUAdapter, features: Sequence[str], limits: dict[str, int]
    ) -> wgpu.GPUDevice:
        """A device with exactly these features."""
        return adapter.request_device_sync(required_features=features, required_limits=limits)

    def poll(self, device: wgpu.GPUDevice) -> None:
        """Run the callbacks of what has completed, without waiting."""
        self.lib.wgpuDevicePoll(device._internal, False, self.ffi.NULL)

    def timestamp_period_ns(self, queue: wgpu.GPUQueue) -> float:
        """Nanoseconds of one unit of a resolved timestamp."""
        return float(self.lib.wgpuQueueGetTimestampPeriod(queue._internal))

    def matrix_units(self, adapter: wgpu.GPUAdapter, features: Set[str]) -> MatrixUnits | None:
        """None: the C API cannot enable them."""
        return None

    def unchecked_module(self, device: wgpu.GPUDevice, code: str, label: str) -> Any:
        """By an extension of the C API that wgpu-py does not wrap: its checks cost up to 8 %."""
        data, name = (self.ffi.new("char[]", text.encode()) for text in (code, label))
        source = self.ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = data, len(data) - 1
        descriptor = self.ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = self.ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data, descriptor.label.length = name, len(name) - 1
        create, checks = self.checked.wgpuDeviceCreateShaderModuleTrusted, 0
        raw = create(device._internal, descriptor, checks)
        return _api.GPUShaderModule(label, raw, device)

    def compile(
        self, device: wgpu.GPUDevice, pipelines: Sequence[Callable[[], dict[str, Any]]]
    ) -> list[Pending]:
        """In threads: the library holds no lock while it compiles."""
        pool = ThreadPoolExecutor()
        pending: list[Pending] = [
            pool.submit(lambda make=make: device.create_compute_pipeline(**make()))  # type: ignore[misc]
            for make in pipelines
        ]
        pool.shutdown(wait=False)
        return pending
