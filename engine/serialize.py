"""A plan as bytes and back, exactly: a JSON header, then the constants' raw contents.

Layout: MAGIC, which carries the version; SHA-256 of all that follows; the header's length as u64,
little-endian; the header; the constants one after another. The digest tells damage of any kind
before anything is interpreted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.errors import PlanError
from engine.graph import DTYPES, TensorType
from engine.kernels.wgsl import Kernel
from engine.plan import Buffer, Dispatch, Placement, Plan, Slab

MAGIC = b"DVPLAN03"
_DIGEST = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<Q")


def dump_plan(plan: Plan, key: str = "") -> bytes:
    """The plan as bytes. `key` is any text that `load_plan` is to find again."""
    kernels: dict[Kernel, int] = {}
    sources: dict[str, int] = {}
    types: dict[TensorType, int] = {}

    def number(type: TensorType) -> int:
        return types.setdefault(type, len(types))

    dispatches = [
        [kernels.setdefault(d.kernel, len(kernels)), d.reads, d.writes] for d in plan.dispatches
    ]
    header = {
        "key": key,
        "buffers": [[b.name, b.kind, number(b.type), b.pack] for b in plan.buffers],
        "kernels": [
            [k.label, sources.setdefault(k.source, len(sources)), k.grid, k.flops, k.base, k.whole]
            for k in kernels
        ],
        "sources": list(sources),
        "dispatches": dispatches,
        "groups": plan.groups,
        "slabs": [[s.nbytes, s.kind] for s in plan.slabs],
        "placements": [[p.slab, p.offset] for p in plan.placements],
        "tensors": [[name, b, number(plan.types[name])] for name, b in plan.tensors.items()],
        "constants": [[b, number(_value_type(v))] for b, v in plan.constants.items()],
    }
    header["types"] = [[type.dtype, type.shape] for type in types]
    text = json.dumps(header, separators=(",", ":")).encode()
    values = [np.ascontiguousarray(value).data.cast("B") for value in plan.constants.values()]
    body = b"".join([_LENGTH.pack(len(text)), text, *values])
    return MAGIC + hashlib.sha256(body).digest() + body


def load_plan(data: bytes, key: str = "") -> Plan:
    """The plan that `dump_plan` was given, equal in every field.

    Raises PlanError when the bytes are damaged, of another version, or carry another key.
    """
    start = len(MAGIC) + _DIGEST
    if data[: len(MAGIC)] != MAGIC:
        raise PlanError("not a plan of this version")
    body = memoryview(data)[start:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        raise PlanError("the plan is damaged or cut short")
    try:
        (length,) = _LENGTH.unpack_from(body)
        header = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
        if header["key"] != key:
            raise PlanError("the plan was made for something else")
        return _plan(header, body[_LENGTH.size + length :])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise PlanError(f"the plan's header is malformed: {error!r}") from error


def _plan(header: Mapping[str, Any], values: memoryview) -> Plan:
    sources = header["sources"]
    kernels = [
        Kernel(label, sources[text], tuple(grid), flops, tuple(base), whole and tuple(whole))
        for label, text, grid, flops, base, whole in header["kernels"]
    ]
    types = [TensorType(tuple(shape), dtype) for dtype, shape in header["types"]]
    constants: dict[int, np.ndarray] = {}
    offset = 0
    for buffer, type in header["constants"]:
        kind = types[type]
        value = np.frombuffer(values[offset : offset + kind.nbytes], DTYPES[kind.dtype])
        constants[buffer] = value.reshape(kind.shape)
        offset += kind.nbytes
    if offset != len(values):
        raise ValueError("constants have another size")
    return Plan(
        buffers=tuple(
            Buffer(number, name, kind, types[type], pack)
            for number, (name, kind, type, pack) in enumerate(header["buffers"])
        ),
        dispatches=tuple(
            Dispatch(kernels[k], tuple(map(tuple, reads)), tuple(map(tuple, writes)))
            for k, reads, writes in header["dispatches"]
        ),
        groups=tuple(header["groups"]),
        slabs=tuple(Slab(nbytes, kind) for nbytes, kind in header["slabs"]),
        placements=tuple(Placement(slab, offset) for slab, offset in header["placements"]),
        tensors={name: buffer for name, buffer, _ in header["tensors"]},
        types={name: types[type] for name, _, type in header["tensors"]},
        constants=constants,
    )


def _value_type(value: np.ndarray) -> TensorType:
    return TensorType(value.shape, "u32" if value.dtype == DTYPES["u32"] else "f32")
