"""Lowering: from graph nodes to logical buffers and dispatches, in program order."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import PlanError
from engine.graph import EXTRA, SOURCES, Graph, Node, TensorType, reachable
from engine.kernels.operands import Stored
from engine.kernels.splits import Splits
from engine.kernels.wgsl import Kernel
from engine.op import definition
from engine.plan import Buffer, Dispatch
from engine.specialize import DeviceFacts

Operand = Node | int | tuple[int, ...]
"""A node, a scratch buffer's id, or a run of packed buffers."""


@dataclass(frozen=True)
class Unfinished:
    """What is left of a product that was split along k: a launch on `reads`."""

    kernel: Kernel
    reads: tuple[Operand, ...]
    splits: Splits


class Lowering:
    """Collects what op definitions emit. `facts` is all that an op may know of the device.

    `halves`: the parameters that lie in memory as f16.
    """

    def __init__(self, graph: Graph, facts: DeviceFacts, halves: Set[str] = frozenset()) -> None:
        self.facts = facts
        self._halves = halves
        self.buffers: list[Buffer] = []
        self.dispatches: list[Dispatch] = []
        self.tensors: dict[str, int] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[int, np.ndarray] = {}
        self._of: dict[Node, int] = {}
        self._unfinished: dict[int, Unfinished] = {}
        self._kinds = _kinds(graph)
        nodes = reachable(graph.roots())
        self._readers: dict[tuple[Node, int], list[Node]] = {}
        self._extras: dict[tuple[Node, int], int] = {}
        for node in nodes:
            if node.op == EXTRA:
                key = node.inputs[0], node.attrs["index"]
                self._readers.setdefault(key, []).append(node)
        for node in graph.gradients.values():
            # Allocated first, in parameter order: all packs must be laid out alike.
            self._own(storage_root(node))
        for node in nodes:
            self._lower(node)
        self._finish(list(self._unfinished))
        for name, node in graph.outputs.items():
            self._publish(name, node)
        for name, node in graph.gradients.items():
            self._publish(f"gradient:{name}", node)

    def buffer(self, node: Node) -> int:
        """The buffer that holds a node's value."""
        return self._of[node]

    def extra(self, node: Node, index: int) -> int | None:
        """The buffer of a node's further result `index`; None when nothing reads it."""
        readers = self._readers.get((node, index), [])
        if len(readers) == 1:
            return self._own(readers[0])
        if readers and (node, index) not in self._extras:
            # Merged producers: each reader copies, for it may need storage of its own.
            self._extras[node, index] = self._allocate("", "transient", readers[0].type)
        return self._extras.get((node, index))

    def stored(self, operand: Operand) -> Stored:
        """How the elements of an f32 operand lie in memory."""
        first = self._ids(operand)[0]
        return "f16" if self.buffers[first].type.dtype == "f16" else "f32"

    def scratch(self, shape: Sequence[int], stored: Stored = "f32") -> int:
        """A transient buffer private to the op being lowered."""
        return self._allocate("", "transient", TensorType(tuple(shape), stored))

    def dispatch(self, kernel: Kernel, reads: Sequence[Operand], *writes: Operand) -> None:
        """Append a launch; operands are in the kernel's binding order."""
        if len(reads) + len(writes) > self.facts.max_storage_buffers:
            raise PlanError(
                f"{kernel.label} binds {len(reads) + len(writes)} buffers; the device allows "
                f"{self.facts.max_storage_buffers}"
            )
        bound = [self._ids(operand) for operand in (*reads, *writes)]
        self._finish([b for ids in bound for b in ids])
        entry = Dispatch(kernel, tuple(bound[: len(reads)]), tuple(bound[len(reads) :]))
        if entry.read_ids() & entry.write_ids():
            raise PlanError(f"{kernel.label} binds a buffer both read-only and writable")
        self.dispatches.append(entry)

    def finish_later(self, rest: Unfinished, result: Operand) -> None:
        """Append the rest of a product where the result is first needed; see `take_unfinished`."""
        ids = self._ids(result)
        if len(ids) == 1:
            self._unfinished[ids[0]] = rest
        else:
            self.dispatch(rest.kernel, rest.reads, result)

    def take_unfinished(self, node: Node, kind: str, bound: int) -> Unfinished | None:
        """What is left of the product that gives `node`, for a launch that then does it and writes
        the result, in elements of WGSL type `kind`.

        None if nothing is left, if the result has other elements, or if the operands do not fit
        beside `bound` others, `node` among them.
        """
        rest = self._unfinished.get(self.buffer(node))
        if rest is None or rest.splits.epilogue.result(rest.splits.columns)[0] != kind:
            return None
        if bound + len(rest.reads) > self.facts.max_storage_buffers:
            return None
        return self._unfinished.pop(self.buffer(node))

    def _finish(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            rest = self._unfinished.pop(buffer, None)
            if rest is not None:
                self.dispatch(rest.kernel, rest.reads, buffer)

    def _ids(self, operand: Operand) -> tuple[int, ...]:
        if isinstance(operand, Node):
            return (self.buffer(operand),)
        return (operand,) if isinstance(operand, int) else operand

    def _allocate(self, name: str, kind: str, type: TensorType, pack: str = "") -> int:
        self.buffers.append(Buffer(len(self.buffers), name, kind, type, pack))
        return len(self.buffers) - 1

    def _lower(self, node: Node) -> None:
        if node.op in SOURCES:
            self._declare(node)
            return
        op = definition(node.op)
        if op.view or op.in_place:
            self._of[node] = self.buffer(node.inputs[0])
        elif not op.effect:
            self._own(node)
        if op.view:
            return
        if op.effect:
            # It may change what an epilogue reads.
            self._finish(list(self._unfinished))
        op.lower(node, self)

    def _own(self, node: Node) -> int:
        """The buffer of a computed node, allocated when first asked for."""
        if node not in self._of:
            kind = self._kinds.get(node, ("", "transient", node.type, ""))
            self._of[node] = self._allocate(*kind)
        return self._of[node]

    def _publish(self, name: str, node: Node) -> None:
        self.tensors[name], self.types[name] = self.buffer(node), node.type

    def _declare(self, node: Node) -> None:
        kind = node.op
        pack = ""
        if node.op == "parameter":
            kind = pack = "parameter" if node.attrs["trainable"] else "frozen"
        elif node.op == "state":
            pack = node.name.split(".")[0]
        elif node.op == "constant":
            pack = "constant"
        type = replace(node.type, dtype="f16") if node.name in self._halves else node.type
        buffer = self._allocate(node.name, kind, type, pack)
        if node.op == "constant":
            self.constants[buffer] = node.attrs["value"]
        self._of[node] = buffer
        self.tensors[node.name], self.types[node.name] = buffer, type


def storage_root(node: Node) -> Node:
    """The node whose buffer holds `node`: views resolve to what they view, changes in place to
    what they change.
    """
    while node.op not in SOURCES:
        op = definition(node.op)
        if not (op.view or op.in_place):
            break
        node = node.inputs[0]
    return node


def _kinds(graph: Graph) -> dict[Node, tuple[str, str, TensorType, str]]:
    """(name, kind, type, pack) of computed nodes whose storage outlives the run."""
    kinds: dict[Node, tuple[str, str, TensorType, str]] = {}
    for name, node in graph.outputs.items():
        root = storage_root(node)
        kinds[root] = (name, "output", root.type, "")
    for name, node in graph.gradients.items():
        root = storage_root(node)
        if root in kinds or not root.inputs:
            raise PlanError(f"the gradient of '{name}' needs storage of its own; copy it first")
        kinds[root] = (f"gradient:{name}", "gradient", root.type, "gradient")
    return kinds
