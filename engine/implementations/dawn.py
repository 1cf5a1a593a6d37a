"""Dawn, through wgpudawn: matrix units and images shared with other devices."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from engine.errors import GpuError
from engine.implementations.implementation import Implementation, Name, Pending
from engine.specialize import MatrixUnits

try:
    import wgpudawn
    from wgpudawn.backends import dawn
    from wgpudawn.backends.dawn import _api, extras
except ImportError as error:
    raise GpuError(
        f"Dawn is not installed: pip install 'dinovision[dawn]', or use --gpu wgpu ({error})"
    ) from error

if TYPE_CHECKING:
    import wgpu

log = logging.getLogger(__name__)

MATRIX_FEATURES = ("shader-f16", "subgroups", "chromium-experimental-subgroup-matrix")
SHARING_FEATURES = (
    "shared-texture-memory-opaque-f-d",
    "shared-fence-vk-semaphore-opaque-f-d",
    "shared-fence-sync-f-d",
)

STDERR = 2

INSTANCE_TOGGLES = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")
"""Subgroup matrices and stamps inside passes count as unsafe; f16 is off by default on NVIDIA."""
ENABLED_TOGGLES = ("disable_robustness", "disable_workgroup_init")
"""All shaders are this program's own. They guard their indices: the clamps Dawn would add cost
attention's gradients three quarters of their speed. And they write shared memory before they read
it: tests let them begin with garbage.
"""
DISABLED_TOGGLES = ("timestamp_quantization",)
"""Else GPU times come in steps of 0.1 ms."""


class Dawn(Implementation):
    """The library that wgpudawn brings."""

    name: Name = "dawn"
    package = "wgpudawn"
    stamp_feature = "chromium-experimental-timestamp-query-inside-passes"
    wanted_features = (
        "timestamp-query",
        stamp_feature,
        "implicit-device-synchronization",  # Python may release objects in any thread.
        *MATRIX_FEATURES,
        *SHARING_FEATURES,
    )

    translates_late = True

    api = wgpudawn
    ffi, lib, checked = dawn.ffi, dawn.lib, _api.libf
    bind_group_class = _api.GPUBindGroup

    def __init__(self) -> None:
        self._ready = False
        self._instance: Any = None
        self._said = ""

    @property
    def version(self) -> str:
        """Package and library in one line."""
        return f"wgpudawn {wgpudawn.__version__} (Dawn {dawn.__version__})"

    def prepare(self) -> None:
        """Choose back ends and what goes beyond WebGPU; harmless when called again."""
        if self._ready:
            return
        if sys.platform.startswith("linux"):
            os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
        extras.set_instance_extras(
            backends=["Vulkan" if sys.platform.startswith("linux") else "Primary"],
            enable_toggles=INSTANCE_TOGGLES,
        )
        self._instance = _api.get_wgpu_instance()
        self._ready = True

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Dawn warns of each adapter that is not all it could be: kept for `no_adapter`."""
        sys.stderr.flush()
        stderr = os.dup(STDERR)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), STDERR)
            try:
                yield
            finally:
                os.dup2(stderr, STDERR)
                os.close(stderr)
                file.seek(0)
                said = file.read().decode(errors="replace").strip()
        if said:  # once in a process
            self._said = said
            log.debug("%s", said)

    def no_adapter(self, why: str) -> GpuError:
        """Dawn needs more of a driver than wgpu-native does."""
        reason = self._said.partition("\n")[0].removeprefix("Warning: ") or why
        return GpuError(
            "Dawn finds no graphics adapter: the driver is missing or too old for it; update it, "
            f"or use --gpu wgpu ({reason})"
        )

    def request_device(
        self, adapter: wgpu.GPUAdapter, features: Sequence[str], limits: dict[str, int]
    ) -> wgpu.GPUDevice:
        """A device with exactly these features."""
        return extras.request_device_sync(
            adapter,
            required_features=features,
            required_limits=limits,
            enable_toggles=ENABLED_TOGGLES,
            disable_toggles=DISABLED_TOGGLES,
        )

    def poll(self, device: wgpu.GPUDevice) -> None:
        """Run the callbacks of what has completed on any device, without waiting."""
        self.lib.wgpuInstanceProcessEvents(self._instance)

    def timestamp_period_ns(self, queue: wgpu.GPUQueue) -> float:
        """1: Dawn resolves to nanoseconds."""
        return 1.0

    def matrix_units(self, adapter: wgpu.GPUAdapter, features: Set[str]) -> MatrixUnits | None:
        """The largest shape with f16 factors and f32 sums."""
        if not features >= set(MATRIX_FEATURES):
            return None
        properties = extras.get_adapter_properties(adapter)
        shapes = [
            MatrixUnits(c["m"], c["n"], c["k"], c["max_subgroup_size"])
            for c in properties.get("subgroup_matrix_configs", ())
            if (c["component_type"], c["result_component_type"]) == ("f16", "f32")
            and c["min_subgroup_size"] == c["max_subgroup_size"]
        ]
        return max(shapes, key=lambda shape: shape.m * shape.n * shape.k, default=None)

    def unchecked_module(self, device: wgpu.GPUDevice, code: str, label: str) -> Any:
        """As all modules of the device are; see ENABLED_TOGGLES."""
        # By the class: what is called on the device itself counts, and so does the caller.
        return type(device).create_shader_module(device, code=code, label=label)

    def compile(
        self, device: wgpu.GPUDevice, pipelines: Sequence[Callable[[], dict[str, Any]]]
    ) -> list[Pending]:
        """In Dawn's own threads: its device is not for several of ours."""
        return [_Promised(device, make) for make in pipelines]


class _Promised:
    """A pipeline that Dawn makes; errors of its shader module wait until it is asked for."""

    def __init__(self, device: wgpu.GPUDevice, make: Callable[[], dict[str, Any]]) -> None:
        self._error: Exception | None = None
        self._pipeline: Any = None
        try:
            self._promise = device.create_compute_pipeline_async(**make())
            _begun.add(self)
        except wgpudawn.GPUError as error:
            self._error = error

    def result(self) -> Any:
        """Wait for the pipeline. Raises GPUError or RuntimeError with the compiler's message."""
        if self._error is None and self._pipeline is None:
            try:
                self._pipeline = self._promise.sync_wait()
            except (wgpudawn.GPUError, RuntimeError) as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._pipeline


_begun: WeakSet[_Promised] = WeakSet()


@atexit.register
def _let_compilers_end() -> None:
    """A process that ends while a driver compiles in a thread of Dawn's ends with a fault."""
    for promised in list(_begun):
        with suppress(Exception):
            promised.result()
