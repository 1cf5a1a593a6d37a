"""A plan made executable: its buffers, pipelines and bind groups on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import PlanError
from engine.gpu import BufferRange, Gpu, Launch
from engine.graph import STORED, TensorType
from engine.kernels.wgsl import Kernel
from engine.pipelines import Program
from engine.plan import Plan
from engine.storage import rounded

if TYPE_CHECKING:
    import wgpu

SHARED = ("parameter", "frozen", "state")
"""Kinds of buffers that a session can have in common with another one."""

FIRST_PART = 10
"""Launches that keep a device busy while as many more are submitted."""


class Session:
    """Owns the device memory of one plan. All GPU objects are created here, none later.

    `write` and `encode` may be used in the frame loop; `read` waits for the device and may not.
    """

    def __init__(self, gpu: Gpu, plan: Plan, sharing: Session | None = None) -> None:
        """`sharing`: a session of the same device whose parameters and states are this one's too.

        Raises PlanError unless both plans have the same ones and lay them out alike.
        """
        self.gpu, self.plan = gpu, plan
        shared = {} if sharing is None else _shared_slabs(plan, sharing)
        programs = _programs(plan)
        gpu.compile(programs.values())
        self._slabs = [
            shared[number] if number in shared else gpu.storage_buffer(s.nbytes, label=s.kind)
            for number, s in enumerate(plan.slabs)
        ]
        for buffer, value in plan.constants.items():
            place = plan.placements[buffer]
            gpu.queue.write_buffer(self._slabs[place.slab], place.offset, value)
        self.commands = gpu.commands(self._launches(programs))
        self._recorded: list[wgpu.GPUCommandBuffer] = []

    def type(self, name: str) -> TensorType:
        """Type of a named tensor; PlanError if the plan has no such name."""
        self._buffer(name)
        return self.plan.types[name]

    def range(self, name: str) -> BufferRange:
        """Where a named tensor lives, for sharing with other users of the device."""
        return self._range(self._buffer(name))

    def pack(self, kind: str) -> list[BufferRange]:
        """All slabs that hold buffers of a kind ("parameter": every trainable parameter)."""
        return [
            BufferRange(buffer, 0, slab.nbytes)
            for buffer, slab in zip(self._slabs, self.plan.slabs, strict=True)
            if slab.kind == kind
        ]

    def write(self, name: str, value: np.ndarray) -> None:
        """Queue an upload; takes effect before anything submitted afterwards.

        Raises PlanError when the shape differs from the tensor's, or when it lies in memory as f16
        and the values do not survive that.
        """
        kind = self.type(name)
        if tuple(value.shape) != kind.shape:
            raise PlanError(f"'{name}' has shape {list(kind.shape)}, got {list(value.shape)}")
        data = rounded(value) if kind.dtype == "f16" else value
        if data is None:
            raise PlanError(f"'{name}' has values too large or too small for f16: keep it in f32")
        where = self.range(name)
        data = np.ascontiguousarray(data, STORED[kind.dtype])
        self.gpu.queue.write_buffer(where.buffer, where.offset, data)

    def read(self, name: str) -> np.ndarray:
        """Download a named tensor; waits for the device and creates a temporary buffer."""
        return self.read_buffer(self._buffer(name)).reshape(self.type(name).shape)

    def read_buffer(self, number: int) -> np.ndarray:
        """Download a buffer of the plan, transients included, flat; f16 as f32. As `read`."""
        kind, where = self.plan.buffers[number].type, self._range(number)
        self.gpu.wait()
        data = self.gpu.queue.read_buffer(where.buffer, where.offset, kind.nbytes)
        values = np.frombuffer(data, STORED[kind.dtype])
        return values.astype(np.float32) if kind.dtype == "f16" else values.copy()

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Write many tensors by name."""
        for name, value in tensors.items():
            self.write(name, value)

    def snapshot(self, kinds: Iterable[str]) -> dict[str, np.ndarray]:
        """Download all tensors of the given kinds, by name."""
        return {name: self.read(name) for kind in kinds for name in self.plan.names(kind)}

    def encode(
        self,
        encoder: wgpu.GPUCommandEncoder,
        first: int = 0,
        last: int | None = None,
        timestamp_writes: dict[str, Any] | None = None,
    ) -> None:
        """Record dispatches [first, last) as one compute pass.

        `timestamp_writes` as in `begin_compute_pass`.
        """
        self.gpu.replay(encoder, self.commands[first:last], timestamp_writes)

    def run(self, behind: wgpu.GPUCommandEncoder | None = None) -> int:
        """Submit the whole plan once, without waiting; the serial of the submission.

        `behind`: commands that go with it and follow it, such as copies of results.

        A command buffer serves once. The next run's is recorded at once, while the device works
        on this run: on an idle device it then starts without the time that recording takes.
        """
        recorded, self._recorded = self._recorded or self._record(), []
        for part in recorded[:-1]:
            self.gpu.submit(part)
        serial = self.gpu.submit(recorded[-1], *([] if behind is None else [behind]))
        self._recorded = self._record()
        return serial

    def _record(self) -> list[wgpu.GPUCommandBuffer]:
        """The plan as what is submitted one after another.

        Where a submission itself takes long, the device begins with a small part meanwhile; each
        is as long as all before it.
        """
        parts: list[wgpu.GPUCommandBuffer] = []
        first, last = 0, len(self.commands)
        late = self.gpu.backend.translates_late
        while first < last or not parts:
            end = min(last, max(FIRST_PART, 2 * first)) if late else last
            encoder = self.gpu.device.create_command_encoder()
            self.encode(encoder, first, end)
            parts.append(encoder.finish())
            first = end
        return parts

    def poison(self) -> None:
        """Fill outputs, gradients and transients with NaN, so that unwritten elements show.

        The padding of gradients stays zero, as kernels that walk through a whole pack expect.
        """
        for slab, buffer in zip(self.plan.slabs, self._slabs, strict=True):
            if slab.kind in ("transient", "output"):
                nan = np.full(slab.nbytes // 4, np.nan, np.float32)
                self.gpu.queue.write_buffer(buffer, 0, nan)
        for b in self.plan.buffers:
            if b.kind == "gradient":
                where = self._range(b.id)
                nan = np.full(b.type.size, np.nan, np.float32)
                self.gpu.queue.write_buffer(where.buffer, where.offset, nan)

    def _buffer(self, name: str) -> int:
        if name not in self.plan.tensors:
            raise PlanError(f"the plan has no tensor '{name}'")
        return self.plan.tensors[name]

    def _range(self, buffer: int) -> BufferRange:
        place = self.plan.placements[buffer]
        size = self.plan.buffers[buffer].type.nbytes
        return BufferRange(self._slabs[place.slab], place.offset, size)

    def _launches(self, programs: Mapping[Kernel, Program]) -> list[Launch]:
        binding = cache(self._binding)
        return [
            Launch(
                programs[d.kernel],
                [binding(ids) for ids in d.reads],
                [binding(ids) for ids in d.writes],
                d.kernel.grid,
            )
            for d in self.plan.dispatches
        ]

    def _binding(self, ids: tuple[int, ...]) -> BufferRange:
        first, last = self._range(ids[0]), self._range(ids[-1])
        size = last.offset + last.size - first.offset
        if self.plan.buffers[ids[0]].pack:
            # Kernels may walk through a pack in vec4s, over its padding.
            size = -(-size // 256) * 256
        return BufferRange(first.buffer, first.offset, size)


def _programs(plan: Plan) -> dict[Kernel, Program]:
    """What is compiled for each of the plan's kernels."""
    some = {dispatch.kernel: dispatch for dispatch in plan.dispatches}
    return {
        kernel: Program(
            kernel.source,
            len(dispatch.reads),
            len(dispatch.writes),
            frozenset(kernel.overrides.items()),
            kernel.label,
        )
        for kernel, dispatch in some.items()
    }


def _shared_slabs(plan: Plan, owner: Session) -> dict[int, wgpu.GPUBuffer]:
    """The owner's memory by the slab of `plan` that it serves as."""
    found: dict[int, int] = {}
    for kind in SHARED:
        if plan.names(kind) != owner.plan.names(kind):
            raise PlanError(f"sessions that share memory must have the same {kind} tensors")
        for name in plan.names(kind):
            mine, its = (p.placements[p.tensors[name]] for p in (plan, owner.plan))
            alike = (
                plan.types[name] == owner.plan.types[name]
                and mine.offset == its.offset
                and plan.slabs[mine.slab] == owner.plan.slabs[its.slab]
                and found.setdefault(mine.slab, its.slab) == its.slab
            )
            if not alike:
                raise PlanError(f"sessions that share memory lay out '{name}' differently")
    return {mine: owner._slabs[its] for mine, its in found.items()}
