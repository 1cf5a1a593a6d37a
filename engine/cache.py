"""A cache of compiled plans on disk, keyed by everything that a plan depends on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.atomic import write_atomic
from engine.compile import compile_graph
from engine.errors import GraphError, PlanError
from engine.graph import SOURCES, Graph
from engine.op import definition
from engine.plan import Plan
from engine.serialize import dump_plan, load_plan
from engine.specialize import DeviceFacts

KEPT = 64
"""Entries that stay in a folder; the least recently used go first."""

log = logging.getLogger(__name__)
_unwritable: set[Path] = set()


def compile_cached(
    graph: Graph, facts: DeviceFacts | None = None, *, folder: Path | None = None, **options: Any
) -> Plan:
    """`compile_graph(graph, facts, **options)`, taken from `folder` when it was made before.

    An entry that is damaged or belongs to something else costs one warning and is replaced. A
    folder that cannot be written costs one warning per process. A graph with ops defined outside
    of the engine is always compiled: their source is not part of the key.
    """
    call = inspect.signature(compile_graph).bind(graph, facts or DeviceFacts(), **options)
    call.apply_defaults()
    if not _all_from_the_engine(graph):
        return compile_graph(*call.args, **call.kwargs)
    folder = folder or default_folder()
    key = fingerprint(graph, {k: v for k, v in call.arguments.items() if k != "graph"})
    path = folder / f"{key}.plan"
    plan = _look_up(path, key)
    if plan is None:
        plan = compile_graph(*call.args, **call.kwargs)
        _store(path, dump_plan(plan, key))
    return plan


def default_folder() -> Path:
    """The user's cache folder for plans, as the platform wants it."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
    else:
        # The XDG specification has relative paths ignored.
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = xdg if xdg.is_absolute() else Path.home() / ".cache"
    return base / "dinovision" / "plans"


def fingerprint(graph: Graph, options: Mapping[str, Any]) -> str:
    """Hex SHA-256 of all that decides a plan: the graph, the options and the compiler itself.

    Raises GraphError for an attribute or option whose value has no canonical form.
    """
    parts = [_canonical([generator_version(), sys.version, np.__version__])]
    for node in graph.nodes:
        inputs = tuple(value.id for value in node.inputs)
        kind = node.type
        parts.append(f"{node.op!r}{inputs}{kind.dtype!r}{kind.shape}{_canonical(node.attrs)}")
    for named in (graph.outputs, graph.gradients):
        parts.append(_canonical([(name, node.id) for name, node in named.items()]))
    parts.append(_canonical([effect.id for effect in graph.effects]))
    parts.append(_canonical(options))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def generator_version() -> str:
    """Hex SHA-256 of the engine's source files, names included."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(_canonical((path.relative_to(root).as_posix(), len(content))).encode())
        digest.update(content)
    return digest.hexdigest()


_LEAVES = frozenset((bool, int, float, str, bytes, type(None)))


def _canonical(value: Any) -> str:
    """One line of text that differs for values which differ in type or content.

    Python's own `repr` is that for plain values, and the rest is built from it.
    """
    if type(value) in _LEAVES:
        return repr(value)
    match value:
        case tuple() | list():
            return f"{type(value).__name__}({','.join(map(_canonical, value))})"
        case Mapping():
            items = (f"{_canonical(key)}:{_canonical(value[key])}" for key in sorted(value))
            return f"{{{','.join(items)}}}"
        case np.ndarray() | np.generic() if value.dtype != object:
            digest = hashlib.sha256(value.tobytes()).hexdigest()
            return f"array({value.dtype.str!r},{value.shape},{digest})"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return f"{type(value).__qualname__}{_canonical(fields)}"
        case _:
            raise GraphError(f"a {type(value).__name__} has no fingerprint; use plain values")


def _all_from_the_engine(graph: Graph) -> bool:
    ops = {node.op for node in graph.nodes if node.op not in SOURCES}
    return all(type(definition(op)).__module__.startswith("engine.") for op in ops)


def _look_up(path: Path, key: str) -> Plan | None:
    try:
        plan = load_plan(path.read_bytes(), key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, PlanError) as error:
        log.warning("ignoring the cached plan %s: %s", path, error)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return plan


def _store(path: Path, data: bytes) -> None:
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
        entries = sorted(folder.glob("*.plan"), key=lambda entry: entry.stat().st_mtime)
        for old in entries[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        if folder not in _unwritable:
            _unwritable.add(folder)
            log.warning("compiled plans are not kept: %s", error)
