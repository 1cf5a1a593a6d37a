"""What the engine asks of a WebGPU implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol

from engine.errors import GpuError, first_line
from engine.specialize import MatrixUnits

if TYPE_CHECKING:
    import wgpu

Name = Literal["wgpu", "dawn"]

WANTED_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
)


class Pending(Protocol):
    """An object under construction."""

    def result(self) -> Any:
        """Wait for the object. Raises what its making raised."""


class Implementation(ABC):
    """One library. `api` is its module with wgpu-py's API: objects, errors, flags and `gpu`."""

    name: Name
    package: str
    """As it is installed."""
    stamp_feature: str
    """The feature that lets a pass write queries between two launches."""
    wanted_features: tuple[str, ...]
    translates_late: bool
    """Whether a submission costs as much as to record its commands: the driver's are made there."""

    api: Any
    ffi: Any
    lib: Any
    """The C functions of webgpu.h."""
    checked: Any
    """The same functions, raising `api.GPUError` for what the device finds wrong."""
    bind_group_class: type
    """What owns a raw bind group and releases it."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Package and library in one line."""

    @abstractmethod
    def prepare(self) -> None:
        """Choose back ends before the first adapter request; harmless when called again."""

    @abstractmethod
    def request_device(
        self, adapter: wgpu.GPUAdapter, features: Sequence[str], limits: dict[str, int]
    ) -> wgpu.GPUDevice:
        """A device with exactly these features."""

    @abstractmethod
    def poll(self, device: wgpu.GPUDevice) -> None:
        """Run the callbacks of what has completed, without waiting."""

    @abstractmethod
    def timestamp_period_ns(self, queue: wgpu.GPUQueue) -> float:
        """Nanoseconds of one unit of a resolved timestamp; 1 where they are normalised."""

    @abstractmethod
    def matrix_units(self, adapter: wgpu.GPUAdapter, features: Set[str]) -> MatrixUnits | None:
        """The shape with f16 factors and f32 sums that devices with these features compute."""

    @abstractmethod
    def compile(
        self, device: wgpu.GPUDevice, pipelines: Sequence[Callable[[], dict[str, Any]]]
    ) -> list[Pending]:
        """Begin to make compute pipelines, side by side.

        Each is given by a function that makes its shader module and returns the arguments of
        `create_compute_pipeline`; the function may run in another thread.
        """

    @abstractmethod
    def unchecked_module(self, device: wgpu.GPUDevice, code: str, label: str) -> Any:
        """A shader module without checks of indices and loops: for the program's own kernels, whose
        indices the tests watch. Raises the library's GPUError for code that is not WGSL.
        """

    # What both have in common

    def adapters(self) -> list[wgpu.GPUAdapter]:
        """All adapters, in the order in which the doctor numbers them. Raises GpuError."""
        self.prepare()
        try:
            with self.quiet():
                return list(self.api.gpu.enumerate_adapters_sync())
        except Exception as error:
            raise self.no_adapter(first_line(error)) from error

    def best_adapter(self) -> wgpu.GPUAdapter:
        """The adapter to use when none is named. Raises GpuError when there is none."""
        self.prepare()
        try:
            with self.quiet():
                return self.api.gpu.request_adapter_sync(power_preference="high-performance")
        except Exception as error:
            raise self.no_adapter(first_line(error)) from error

    def quiet(self) -> AbstractContextManager[None]:
        """Keeps what the library itself prints meanwhile from stderr."""
        return nullcontext()

    def no_adapter(self, why: str) -> GpuError:
        """The error for a machine without an adapter that the library can use."""
        return GpuError(
            "no graphics adapter found: install a Vulkan driver (on Debian or Ubuntu: "
            f"apt install libvulkan1 mesa-vulkan-drivers); {why}"
        )

    def open(self, adapter: wgpu.GPUAdapter) -> wgpu.GPUDevice:
        """A device with the wanted features and limits that are there.

        Raises GpuError when the adapter gives none.
        """
        limits = {key: adapter.limits[key] for key in WANTED_LIMITS if key in adapter.limits}
        features = [name for name in self.wanted_features if name in adapter.features]
        try:
            return self.request_device(adapter, features, limits)
        except Exception as error:
            raise GpuError(f"{adapter.summary} gives no device: {first_line(error)}") from error
