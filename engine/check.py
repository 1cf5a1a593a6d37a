"""An independent judge of plans: replays one byte by byte and shares no code with its planner.

What is proved, by the placements alone: every read finds the bytes that its tensor was last given,
so no live tensors overlap; what must outlive a run does; launches of one barrier group do not
touch what another of them writes; each launch keeps WebGPU's rules on bindings; packs that one
launch walks through together hold the same parameter at each element.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.check_parts import launches
from engine.errors import PlanError
from engine.plan import Buffer, BufferIds, Dispatch, Plan
from engine.specialize import DeviceFacts

SOURCES = ("parameter", "frozen", "input", "state", "constant")
READ_ONLY = ("frozen", "constant")
UPDATED = ("parameter", "state")
PER_PARAMETER = (*UPDATED, "gradient")
UNIT = 256
"""Bytes that packed tensors are padded to, so that a run of them can be bound as one range."""


def check_plan(plan: Plan, facts: DeviceFacts | None = None) -> None:
    """Raise PlanError for the first fault; returning is the proof that there is none."""
    facts = facts or DeviceFacts()
    _check_storage(plan)
    for index, dispatch in enumerate(plan.dispatches):
        try:
            _check_dispatch(plan, dispatch, facts)
        except PlanError as error:
            raise PlanError(f"launch {index} ({dispatch.kernel.label}): {error}") from None
    _check_groups(plan)
    _replay(plan)


@dataclass(frozen=True)
class _Span:
    """Bytes [first, last) of a slab."""

    slab: int
    first: int
    last: int

    def meets(self, other: _Span) -> bool:
        return self.slab == other.slab and self.first < other.last and other.first < self.last


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise PlanError(fault)


def _padded(nbytes: int) -> int:
    return (nbytes + UNIT - 1) // UNIT * UNIT


def _bound_bytes(plan: Plan, b: int) -> int:
    """Bytes of tensor `b` that a binding covers: a packed tensor is bound with its padding."""
    nbytes = plan.buffers[b].type.nbytes
    return _padded(nbytes) if plan.buffers[b].pack else nbytes


def _name(plan: Plan, buffer: int) -> str:
    known = plan.buffers[buffer]
    return f"'{known.name}'" if known.name else f"{known.kind} {buffer}"


# Storage


def _check_storage(plan: Plan) -> None:
    """Numbers refer to what exists, tensors lie inside slabs of their kind, values fit."""
    _require(len(plan.placements) == len(plan.buffers), "not every tensor has one place")
    for number, (buffer, place) in enumerate(zip(plan.buffers, plan.placements, strict=True)):
        name = _name(plan, number)
        _require(buffer.id == number, f"tensor {name} has number {buffer.id}, not {number}")
        _require(0 <= place.slab < len(plan.slabs), f"{name} lies in no slab")
        slab = plan.slabs[place.slab]
        inside = 0 <= place.offset and place.offset + buffer.type.nbytes <= slab.nbytes
        _require(inside, f"{name} lies outside of slab {place.slab}")
        _require(slab.kind == buffer.kind, f"{name} is {buffer.kind}, its slab {slab.kind}")
    _require(set(plan.types) == set(plan.tensors), "names and types of tensors differ")
    for public, b in plan.tensors.items():
        _require(0 <= b < len(plan.buffers), f"'{public}' names no tensor")
        same = plan.types[public].nbytes == plan.buffers[b].type.nbytes
        _require(same, f"'{public}' has another size than its tensor")
    constants = {b.id for b in plan.buffers if b.kind == "constant"}
    _require(constants == set(plan.constants), "constants and their values do not correspond")
    for b, value in plan.constants.items():
        same = value.nbytes == plan.buffers[b].type.nbytes
        _require(same, f"{_name(plan, b)} has a value of another size")


# One launch


def _check_dispatch(plan: Plan, dispatch: Dispatch, facts: DeviceFacts) -> None:
    bound = [*dispatch.reads, *dispatch.writes]
    _require(len(bound) <= facts.max_storage_buffers, f"binds {len(bound)} ranges")
    _require(all(1 <= n <= 65535 for n in dispatch.kernel.grid), "has an impossible grid")
    spans = [_binding_span(plan, ids, facts) for ids in bound]
    _check_declarations(plan, dispatch)
    reads, writes = spans[: len(dispatch.reads)], spans[len(dispatch.reads) :]
    shared = {span.slab for span in reads} & {span.slab for span in writes}
    _require(not shared, f"binds slab {min(shared, default=0)} both read-only and writable")
    for k, span in enumerate(writes):
        clash = any(span.meets(other) for other in writes[:k])
        _require(not clash, "binds overlapping writable ranges")
    for ids in dispatch.writes:
        for b in ids:
            fixed = plan.buffers[b].kind in READ_ONLY
            _require(not fixed, f"writes {_name(plan, b)}, which is {plan.buffers[b].kind}")
    _check_packs(plan, dispatch)


def _binding_span(plan: Plan, ids: BufferIds, facts: DeviceFacts) -> _Span:
    """The bytes that a binding covers; a run of a pack has no gaps but padding."""
    _require(len(ids) > 0, "has a binding of nothing")
    _require(all(0 <= b < len(plan.buffers) for b in ids), "binds a tensor that does not exist")
    places = [plan.placements[b] for b in ids]
    first, slab = places[0], plan.slabs[places[0].slab]
    name = _name(plan, ids[0])
    _require(first.offset % facts.storage_alignment == 0, f"{name} is bound unaligned")
    end = first.offset
    for b, place in zip(ids, places, strict=True):
        _require(place.slab == first.slab, f"{_name(plan, b)} is in another slab than its run")
        _require(place.offset == end, f"{_name(plan, b)} does not follow its run")
        end += _bound_bytes(plan, b)
    _require(end <= slab.nbytes, f"the binding of {name} reaches beyond slab {first.slab}")
    _require(end - first.offset <= facts.max_binding_bytes, f"the binding of {name} is too large")
    return _Span(first.slab, first.offset, end)


_DECLARED = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*var<storage,\s*(\w+)>\s*(\w+)\s*:\s*array<([^;]*)>"
)
PAIRS = "vec2<u32>"
"""Elements of a tensor of f16, and of no other, as shaders declare them."""


def _declared(source: str) -> list[tuple[str, str, str]]:
    """(access, name, type of elements) per binding, by binding number."""
    found = sorted((int(number), *rest) for number, *rest in _DECLARED.findall(source))
    _require([number for number, *_ in found] == list(range(len(found))), "skips a binding")
    return [(mode, name, kind) for _, mode, name, kind in found]


def _check_declarations(plan: Plan, dispatch: Dispatch) -> None:
    """The shader declares the launch's bindings: read-only ones first, and f16 as such."""
    want = ["read"] * len(dispatch.reads) + ["read_write"] * len(dispatch.writes)
    declared = _declared(dispatch.kernel.source)
    got = [mode for mode, *_ in declared]
    _require(got == want, f"binds {' '.join(want)}, its shader declares {' '.join(got)}")
    for ids, (_, name, kind) in zip((*dispatch.reads, *dispatch.writes), declared, strict=True):
        dtypes = {plan.buffers[b].type.dtype for b in ids}
        good = dtypes == {"f16"} if kind == PAIRS else "f16" not in dtypes
        _require(good, f"declares {name} as {kind}, which is {' and '.join(sorted(dtypes))}")


def _reads_first(source: str, name: str) -> bool:
    """Whether a shader's first use of the writable array `name` needs what was there before.

    It does not when that use is an assignment to an element whose right side lacks the name.
    Only `name[...]` and `&name` are uses: locals may have the same name.
    """
    body = _DECLARED.sub("", re.sub(r"//[^\n]*", "", source))
    uses = list(re.finditer(rf"&\s*{name}\b|(?<![.\w]){name}\s*\[", body))
    if not uses:
        return False
    if uses[0].group()[0] == "&":
        return True
    end, depth = uses[0].end(), 1
    while end < len(body) and depth:
        depth += {"[": 1, "]": -1}.get(body[end], 0)
        end += 1
    if not re.match(r"(\.\w+)?\s*=(?!=)", body[end:]):
        return True
    stop = body.find(";", end)
    return any(use.start() < stop for use in uses[1:])


def _check_packs(plan: Plan, dispatch: Dispatch) -> None:
    """Where a launch updates parameters or state, all its packs hold what belongs to the same
    parameter at each element.
    """
    bound = [[plan.buffers[b] for b in ids] for ids in (*dispatch.writes, *dispatch.reads)]
    updated = [run for run in bound[: len(dispatch.writes)] if run[0].kind in UPDATED]
    if not updated:
        return
    leader = updated[0]
    for run in bound:
        if run[0].kind not in PER_PARAMETER:
            continue
        _require(len(run) == len(leader), "walks through packs of different lengths")
        for mine, other in zip(leader, run, strict=True):
            alike = _parameter(mine) == _parameter(other) and mine.type.size == other.type.size
            _require(alike, f"pairs '{mine.name}' with '{other.name}'")
        # Equal sizes and gapless runs put every element at the same distance from the start.


def _parameter(buffer: Buffer) -> str:
    """Name of the parameter that a tensor is, or belongs to."""
    match buffer.kind:
        case "gradient":
            return buffer.name.removeprefix("gradient:")
        case "state":
            return buffer.name.partition(".")[2]
    return buffer.name


# Barrier groups


def _groups(plan: Plan) -> Iterator[range]:
    for first, last in pairwise([*plan.groups, len(plan.dispatches)]):
        yield range(first, last)


def _spans(plan: Plan, bindings: Sequence[BufferIds]) -> list[_Span]:
    everything = DeviceFacts(storage_alignment=1, max_binding_bytes=1 << 62)
    return [_binding_span(plan, ids, everything) for ids in bindings]


def _check_groups(plan: Plan) -> None:
    """Groups partition the launches, and launches of a group are free of races."""
    starts = list(plan.groups)
    good = starts[:1] == ([0] if plan.dispatches else []) and starts == sorted(set(starts))
    good = good and (not starts or starts[-1] < len(plan.dispatches))
    _require(good, "barrier groups do not partition the launches")
    for group in _groups(plan):
        reads: list[_Span] = []
        writes: list[_Span] = []
        for launch in launches(plan, group):
            # Parts of a launch bind the same: one of them speaks for all.
            index = launch.start
            dispatch = plan.dispatches[index]
            mine_read, mine = _spans(plan, dispatch.reads), _spans(plan, dispatch.writes)
            races = any(m.meets(w) for m in (*mine_read, *mine) for w in writes)
            races = races or any(m.meets(r) for m in mine for r in reads)
            label = dispatch.kernel.label
            _require(not races, f"launch {index} ({label}) races within its barrier group")
            reads += mine_read
            writes += mine


# Replay


class _Memory:
    """Whose bytes each slab holds. Slabs are cut where any tensor begins or ends."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._edges: list[list[int]] = [[0, slab.nbytes] for slab in plan.slabs]
        for place, buffer in zip(plan.placements, plan.buffers, strict=True):
            end = place.offset + buffer.type.nbytes
            bound = place.offset + _bound_bytes(plan, buffer.id)
            self._edges[place.slab] += [place.offset, end, bound]
        self._edges = [sorted(set(edges)) for edges in self._edges]
        self._owner: list[list[int | None]] = [[None] * len(edges) for edges in self._edges]

    def owners(self, b: int) -> set[int | None]:
        """Who owns the bytes of tensor `b`; None: nobody has written them."""
        return self._owners(b, self.plan.buffers[b].type.nbytes)

    def bound_owners(self, b: int) -> set[int | None]:
        """The same of all bytes that a binding of it covers."""
        return self._owners(b, _bound_bytes(self.plan, b))

    def give(self, b: int) -> None:
        """Let tensor `b` own the bytes that a binding of it covers."""
        for piece in self._pieces(b, _bound_bytes(self.plan, b)):
            self._owner[self.plan.placements[b].slab][piece] = b

    def _owners(self, b: int, nbytes: int) -> set[int | None]:
        pieces = self._pieces(b, nbytes)
        return set(self._owner[self.plan.placements[b].slab][pieces.start : pieces.stop])

    def _pieces(self, b: int, nbytes: int) -> range:
        place = self.plan.placements[b]
        edges = self._edges[place.slab]
        return range(bisect_left(edges, place.offset), bisect_left(edges, place.offset + nbytes))


def _replay(plan: Plan) -> None:
    """Run the plan on whose bytes are where."""
    memory = _Memory(plan)
    for buffer in plan.buffers:
        if buffer.kind in SOURCES:
            free = memory.owners(buffer.id) == {None}
            _require(free, f"{_name(plan, buffer.id)} overlaps another tensor that persists")
            memory.give(buffer.id)
    for index, dispatch in enumerate(plan.dispatches):
        what = f"launch {index} ({dispatch.kernel.label})"
        source = dispatch.kernel.source
        names = [name for _, name, _ in _declared(source)][len(dispatch.reads) :]
        written = zip(dispatch.writes, names, strict=True)
        updated = [ids for ids, name in written if _reads_first(source, name)]
        for ids in (*dispatch.reads, *updated):
            for b in ids:
                _check_owner(plan, memory, b, f"{what} reads")
                # Kernels walk over padding; it must hold nobody else's numbers.
                padding = memory.bound_owners(b) <= {b, None}
                _require(padding, f"{what} reads foreign bytes behind {_name(plan, b)}")
        for ids in dispatch.writes:
            for b in ids:
                memory.give(b)
    for buffer in plan.buffers:
        if buffer.kind != "transient":
            _check_owner(plan, memory, buffer.id, "the run ends with")


def _check_owner(plan: Plan, memory: _Memory, b: int, what: str) -> None:
    owners = memory.owners(b)
    _require(None not in owners, f"{what} {_name(plan, b)}, which nothing has written")
    others = sorted(owner for owner in owners - {b} if owner is not None)
    _require(not others, f"{what} {_name(plan, b)} overwritten by {_names(plan, others)}")


def _names(plan: Plan, buffers: Sequence[int]) -> str:
    return " and ".join(_name(plan, b) for b in buffers)
