"""Perfetto's trace format: tracks, slices that nest, instants, counters.

Packets go to the file one by one, all on one sequence. Timestamps are nanoseconds of the monotonic
clock, which is that of `time.perf_counter_ns` on Linux. Viewers sort packets by time, and those of
one time by their place in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    ClockSnapshot,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

Value = str | float | int | None
Annotations = Mapping[str, Value]
NOTHING: Annotations = MappingProxyType({})

PID = 1
"""Of the traced process; one that is no process of the machine the trace is looked at on."""
SEQUENCE = 1
MONOTONIC = 3  # ClockSnapshot.Clock.BuiltinClocks


class Slice(NamedTuple):
    """Something with a duration. Slices that share a flow are joined by arrows, in order of time.

    Annotations that are None are left out.
    """

    begin_ns: int
    end_ns: int
    name: str
    annotations: Annotations = NOTHING
    flows: tuple[int, ...] = ()


class TraceWriter:
    """Writes a trace of one process to a binary file."""

    def __init__(self, file: BinaryIO, start_ns: int) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        packet = self._builder.create_packet()
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.trace_packet_defaults.timestamp_clock_id = MONOTONIC
        snapshot: ClockSnapshot = packet.clock_snapshot
        snapshot.primary_trace_clock = MONOTONIC
        snapshot.clocks.add(clock_id=MONOTONIC, timestamp=start_ns)
        self._write(packet)

    def process(self, name: str, labels: Iterable[str]) -> int:
        """The process's own track; `labels` are shown beside its name. Returns a track."""
        track = self._describe(name, None)
        track.process.pid = PID
        track.process.process_name = name
        track.process.process_labels.extend(labels)
        track.child_ordering = TrackDescriptor.EXPLICIT
        return self._declare(track)

    def thread(self, name: str, process: int) -> int:
        """A thread's track."""
        track = self._describe(name, process)
        track.thread.pid = track.thread.tid = PID
        track.thread.thread_name = name
        return self._declare(track)

    def track(self, name: str, parent: int, rank: int, description: str = "") -> int:
        """A track for slices and instants; `rank` orders the tracks of a parent."""
        track = self._describe(name, parent)
        track.sibling_order_rank = rank
        track.description = description
        return self._declare(track)

    def counter(self, name: str, parent: int, rank: int, unit: str) -> int:
        """A track for `count`."""
        track = self._describe(name, parent)
        track.sibling_order_rank = rank
        track.counter.unit_name = unit
        return self._declare(track)

    def begin(self, track: int, at_ns: int, piece: Slice) -> None:
        """A slice begins, at `at_ns`."""
        packet = self._event(TrackEvent.TYPE_SLICE_BEGIN, track, at_ns)
        packet.track_event.flow_ids.extend(piece.flows)
        _fill(packet.track_event, piece.name, piece.annotations)
        self._write(packet)

    def end(self, track: int, at_ns: int) -> None:
        """The innermost open slice ends."""
        self._write(self._event(TrackEvent.TYPE_SLICE_END, track, at_ns))

    def instant(self, track: int, at_ns: int, name: str, annotations: Annotations) -> None:
        """Something without duration."""
        packet = self._event(TrackEvent.TYPE_INSTANT, track, at_ns)
        _fill(packet.track_event, name, annotations)
        self._write(packet)

    def count(self, track: int, at_ns: int, value: float) -> None:
        """A counter's value from `at_ns` on."""
        packet = self._event(TrackEvent.TYPE_COUNTER, track, at_ns)
        packet.track_event.double_counter_value = value
        self._write(packet)

    def _describe(self, name: str, parent: int | None) -> TrackDescriptor:
        digest = hashlib.blake2b(f"{parent} {name}".encode(), digest_size=8).digest()
        track = TrackDescriptor(uuid=int.from_bytes(digest) >> 1, name=name)
        if parent is not None:
            track.parent_uuid = parent
        return track

    def _declare(self, track: TrackDescriptor) -> int:
        packet = self._builder.create_packet()
        packet.track_descriptor.CopyFrom(track)
        self._write(packet)
        return track.uuid

    def _event(self, kind: TrackEvent.Type, track: int, at_ns: int) -> TracePacket:
        packet = self._builder.create_packet()
        packet.timestamp = at_ns
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _write(self, packet: TracePacket) -> None:
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags |= TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        self._builder.write_packet(packet)


class NestedSlices:
    """Slices of one track, added in order of their beginning; kept nested whatever they say.

    A slice that begins before the one added last, or outlasts the slice that it begins in, is
    clamped; `clamped` counts those.
    """

    def __init__(self, writer: TraceWriter, track: int) -> None:
        self.clamped = 0
        self._writer, self._track = writer, track
        self._ends: list[int] = []  # of the open slices, innermost last
        self._now_ns = 0

    def add(self, piece: Slice) -> None:
        """Add a slice."""
        begin = max(piece.begin_ns, self._now_ns)
        self._close(begin)
        end = max(begin, min([piece.end_ns, *self._ends[-1:]]))
        self.clamped += (begin, end) != piece[:2]
        self._writer.begin(self._track, begin, piece)
        self._ends.append(end)
        self._now_ns = begin

    def close(self) -> None:
        """End what is still open."""
        self._close(None)

    def _close(self, until_ns: int | None) -> None:
        while self._ends and (until_ns is None or self._ends[-1] <= until_ns):
            self._now_ns = self._ends.pop()
            self._writer.end(self._track, self._now_ns)


class SerialSlices:
    """Slices of one track that never overlap: one that begins too soon is clamped and counted."""

    def __init__(self, writer: TraceWriter, track: int) -> None:
        self.clamped = 0
        self._writer, self._track = writer, track
        self._now_ns = 0

    def add(self, piece: Slice) -> None:
        """Add a slice."""
        begin = max(piece.begin_ns, self._now_ns)
        self._now_ns = max(begin, piece.end_ns)
        self.clamped += (begin, self._now_ns) != piece[:2]
        self._writer.begin(self._track, begin, piece)
        self._writer.end(self._track, self._now_ns)


def _fill(event: TrackEvent, name: str, annotations: Annotations) -> None:
    event.name = name
    for key, value in annotations.items():
        if value is None:
            continue
        note = event.debug_annotations.add(name=key)
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = str(value)
