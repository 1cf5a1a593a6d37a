"""Kernel choices measured on one device, kept on disk (`engine.tuning` makes them)."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.atomic import write_atomic
from engine.cache import default_folder
from engine.specialize import Contract, DeviceFacts, MatmulChoice, MatmulKey, matmul_candidates

if TYPE_CHECKING:
    from engine.gpu import Gpu

FORMAT = 1
LAYOUTS = ("nn", "nt", "tn", "tt")
GENERATORS = (
    *("matmul", "tiled", "gemv", "matrix_units", "scaled_f16"),
    *("product", "operands", "splits", "epilogue"),
)
"""Modules of engine/kernels whose change makes measurements stale."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelTable(Mapping[MatmulKey, MatmulChoice]):
    """The best kernel by shape, for one adapter, driver and contract. Give it to
    `DeviceFacts.table`.
    """

    adapter: str
    driver: str
    contract: Contract = "strict"
    choices: tuple[tuple[MatmulKey, MatmulChoice], ...] = ()

    def __getitem__(self, key: MatmulKey) -> MatmulChoice:
        return self._by_key[key]

    def __iter__(self) -> Iterator[MatmulKey]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    @functools.cached_property
    def _by_key(self) -> dict[MatmulKey, MatmulChoice]:
        return dict(self.choices)

    def updated(self, changes: Mapping[MatmulKey, MatmulChoice | None]) -> KernelTable:
        """With some choices replaced; None removes one."""
        merged = {**self._by_key, **changes}
        kept = sorted((key, choice) for key, choice in merged.items() if choice is not None)
        return replace(self, choices=tuple(kept))

    def save(self, path: Path) -> None:
        """Write the table whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {
            "format": FORMAT,
            "adapter": self.adapter,
            "driver": self.driver,
            "contract": self.contract,
            "generators": generators_version(),
        }
        # One entry a line, for people who look.
        lines = [json.dumps([*key, asdict(choice)]) for key, choice in self.choices]
        entries = ",\n    ".join(lines)
        text = json.dumps(header, indent=2)[:-2] + f',\n  "matmul": [\n    {entries}\n  ]\n}}\n'
        write_atomic(path, text)


def table_path(gpu: Gpu, folder: Path | None = None) -> Path:
    """Where the table of this adapter, driver and contract is kept: by default the user's cache
    folder.
    """
    owner = hashlib.sha256(f"{gpu.name}\0{gpu.driver}".encode()).hexdigest()[:16]
    suffix = "" if gpu.contract == "strict" else f"-{gpu.contract}"
    return (folder or default_folder().parent / "kernels") / f"{owner}{suffix}.json"


def load_table(gpu: Gpu, folder: Path | None = None) -> KernelTable:
    """The table of a device under its contract; empty where there is none. See `read_table`."""
    empty = KernelTable(gpu.name, gpu.driver, gpu.contract)
    return read_table(table_path(gpu, folder), empty, gpu.facts)


def read_table(path: Path, empty: KernelTable, facts: DeviceFacts) -> KernelTable:
    """The entries of a file that are of use on this device, whose table is `empty` without it.

    A file that is damaged, of another device or of other kernels costs one warning and counts as
    empty, and entries that the device or the kernels do not allow cost one and are left out.
    """
    try:
        data = json.loads(path.read_bytes())
        rows = _rows(data, empty)
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except (OSError, ValueError, RecursionError) as error:
        log.warning("ignoring the kernel table %s: %s; run: python run.py tune", path, error)
        return empty
    entries = [_entry(row, facts) for row in rows]
    good = {key: choice for key, choice in filter(None, entries)}
    if None in entries:
        wrong = entries.count(None)
        log.warning("ignoring %d of %d entries of the kernel table %s", wrong, len(rows), path)
    return empty.updated(good)


@functools.cache
def generators_version() -> str:
    """Hex SHA-256 of the kernels that a table's measurements are about."""
    digest = hashlib.sha256()
    for name in GENERATORS:
        digest.update((Path(__file__).parent / "kernels" / f"{name}.py").read_bytes())
    return digest.hexdigest()


def _rows(data: Any, wanted: KernelTable) -> list[Any]:
    """The entries of a file's contents. Raises ValueError where they are not for this device."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("it is not a kernel table of this version")
    if (data.get("adapter"), data.get("driver")) != (wanted.adapter, wanted.driver):
        raise ValueError("it was measured on another device or driver")
    if data.get("contract") != wanted.contract:
        raise ValueError("it was measured under another contract")
    if data.get("generators") != generators_version():
        raise ValueError("it was measured with other kernels")
    rows = data.get("matmul")
    if not isinstance(rows, list):
        raise ValueError("it has no entries")
    return rows


def _entry(row: Any, facts: DeviceFacts) -> tuple[MatmulKey, MatmulChoice] | None:
    """A checked entry; None where it is no product, or the device has no such kernel."""
    match row:
        case [str(layout), *extents, dict(values)] if len(extents) == 4:
            sound = layout in LAYOUTS and all(type(e) is int and e > 0 for e in extents)
            if not sound or set(values) != {field.name for field in fields(MatmulChoice)}:
                return None
            key = MatmulKey(layout, *extents)
            for choice in matmul_candidates(key, facts):
                if asdict(choice) == values:
                    return key, choice
    return None
