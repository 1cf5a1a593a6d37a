"""Measured kernel choices on disk: what is kept, what is refused, and where choices look."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engine import ops
from engine.cache import compile_cached, fingerprint
from engine.compile import compile_graph
from engine.graph import Graph
from engine.kernel_table import KernelTable, generators_version, read_table
from engine.specialize import (
    DeviceFacts,
    MatmulChoice,
    MatmulKey,
    MatrixUnits,
    choose_matmul,
    matmul_candidates,
    matrix_tiles,
)

BIG = DeviceFacts(max_invocations=1024, max_shared_bytes=49152)
PRODUCT = MatmulKey("nt", 1, 201, 384, 384)
VECTOR = MatmulKey("nn", 1, 1, 48, 576)
TILE = MatmulChoice("tiled", 64, 32, 32, 8, 4, 4)
WIDE = MatmulChoice("gemv", 1, 32, 64, 1, 4)
TABLE = KernelTable("Adapter", "1.0").updated({PRODUCT: TILE, VECTOR: WIDE})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kernels" / "table.json"
    TABLE.save(path)
    return path


def read(path: Path, facts: DeviceFacts = BIG) -> KernelTable:
    return read_table(path, KernelTable("Adapter", "1.0"), facts)


def test_round_trip(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(path) == TABLE and hash(read(path)) == hash(TABLE)
    KernelTable("Adapter", "1.0").save(path)
    assert read(path) == KernelTable("Adapter", "1.0")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert read(path.with_name("missing.json")) == KernelTable("Adapter", "1.0")
    assert read(path / "below a file") == KernelTable("Adapter", "1.0")
    assert not caplog.records


def test_units_keep_their_shape(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    units = MatrixUnits(16, 16, 16, 32)
    tile = next(tile for tile in matrix_tiles(units) if tile.fits(BIG))
    empty = KernelTable("Adapter", "1.0", "accelerated")
    empty.updated({PRODUCT: tile}).save(path)
    found = read_table(path, empty, replace(BIG, matrix_units=units))
    assert dict(found) == {PRODUCT: tile} and not caplog.records
    # Another device's units, or none.
    assert not read_table(path, empty, replace(BIG, matrix_units=MatrixUnits(8, 8, 8, 8)))
    assert not read_table(path, empty, BIG)


def test_it_is_a_mapping_that_does_not_change() -> None:
    assert dict(TABLE) == {PRODUCT: TILE, VECTOR: WIDE} and len(TABLE) == 2
    fewer = TABLE.updated({VECTOR: None, PRODUCT._replace(m=9): None})
    assert dict(fewer) == {PRODUCT: TILE} and len(TABLE) == 2
    assert hash(replace(BIG, table=TABLE)) == hash(replace(BIG, table={}))
    assert replace(BIG, table=TABLE) != replace(BIG, table=fewer)
    with pytest.raises(AttributeError):
        TABLE.choices = ()  # type: ignore[misc]


def test_choices_come_from_the_table_first() -> None:
    facts = replace(BIG, table=TABLE)
    for key, choice in TABLE.items():
        assert choose_matmul(*key[1:], facts, key.layout) == choice
        assert choose_matmul(*key[1:], BIG, key.layout) != choice
    for layout in ("nn", "tt", ""):
        usual = choose_matmul(*PRODUCT[1:], BIG, layout)
        assert choose_matmul(*PRODUCT[1:], facts, layout) == usual


@pytest.mark.parametrize(
    "wrong",
    [
        MatmulChoice("tiled", 128, 128, 16, 8, 8),  # too many invocations
        MatmulChoice("tiled", 64, 64, 64, 8, 8),  # no such tile
        MatmulChoice("tiled", 32, 32, 32, 4, 4, 16),  # more parts than k has use for
        MatmulChoice("gemv", 1, 64, 64, 1, 4),  # far too many rows
        MatmulChoice("magic", 32, 32, 32, 4, 4),
        replace(TILE, thread_m=0),
    ],
    ids=str,
)
def test_what_does_not_fit_is_not_used(wrong: MatmulChoice) -> None:
    small = DeviceFacts(max_invocations=128)
    key = MatmulKey("nt", 1, 201, 384, 384)
    table = TABLE.updated({key: wrong})
    chosen = choose_matmul(*key[1:], replace(small, table=table), "nt")
    assert chosen == choose_matmul(*key[1:], small, "nt") and chosen.fits(small)


def test_a_cpu_device_never_gets_a_gpu_kernel() -> None:
    facts = DeviceFacts(is_cpu=True, table=TABLE)
    assert choose_matmul(*PRODUCT[1:], facts, "nt").variant == "direct"
    assert {c.variant for c in matmul_candidates(VECTOR, facts)} == {"direct"}


def test_entries_for_a_larger_device_are_left_out_with_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = MatmulChoice("tiled", 128, 128, 16, 8, 8)
    TABLE.updated({PRODUCT: large, PRODUCT._replace(m=300): large}).save(path)
    assert dict(read(path, DeviceFacts(max_invocations=128))) == {VECTOR: WIDE}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "2 of 3 entries" in record.getMessage()


def header(change: dict[str, Any]) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | change)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: "", "ignoring"),
        (lambda text: text[: len(text) // 2], "ignoring"),
        (lambda text: "[]", "not a kernel table"),
        (lambda text: "[" * 100_000, "ignoring"),
        (lambda text: "\0\udcff", "ignoring"),
        (header({"format": 2}), "not a kernel table"),
        (header({"matmul": {}}), "no entries"),
        (header({"adapter": "Other"}), "another device"),
        (header({"driver": "1.1"}), "another device"),
        (header({"contract": "accelerated"}), "another contract"),
        (header({"generators": "0" * 64}), "other kernels"),
    ],
)
def test_damaged_foreign_and_stale_files_cost_one_warning(
    damage: Callable[[str], str], told: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = damage(path.read_text())
    path.write_text(damaged, errors="surrogateescape")
    assert read(path) == KernelTable("Adapter", "1.0")
    (record,) = caplog.records
    assert told in record.getMessage() and "tune" in record.getMessage()


ROW = ["nt", 1, 201, 384, 384]
CHOICE = asdict(TILE)


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"nt": 1},
        ROW,
        [*ROW, None],
        [*ROW[:-1], CHOICE],
        ["", *ROW[1:], CHOICE],
        ["n", *ROW[1:], CHOICE],
        [3, *ROW[1:], CHOICE],
        [*ROW[:-1], -384, CHOICE],
        [*ROW[:-1], 384.0, CHOICE],
        [*ROW[:-1], True, CHOICE],
        [*ROW, CHOICE | {"tile_m": 65}],
        [*ROW, CHOICE | {"tile_m": "64"}],
        [*ROW, CHOICE | {"extra": 1}],
        [*ROW, {k: v for k, v in CHOICE.items() if k != "split_k"}],
        [*ROW, CHOICE, CHOICE],
    ],
)
def test_a_damaged_entry_is_left_out(
    row: object, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = json.loads(path.read_text())["matmul"]
    assert [*ROW, CHOICE] in rows, "the entry that is damaged is a good one"
    path.write_text(header({"matmul": [*rows[:1], row]})(path.read_text()))
    assert dict(read(path)) == {VECTOR: WIDE}
    (record,) = caplog.records
    assert "1 of 2 entries" in record.getMessage()


def test_an_unreadable_file_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not read(tmp_path)
    assert len(caplog.records) == 1


def matrices() -> Graph:
    graph = Graph()
    a, b = graph.input("a", (201, 384)), graph.input("b", (384, 384))
    graph.output("y", ops.matmul(a, b, transpose_b=True))
    return graph


def test_the_table_is_part_of_a_plans_fingerprint(tmp_path: Path) -> None:
    other = TABLE.updated({PRODUCT: replace(TILE, split_k=2)})
    tables = [{}, TABLE, other, TABLE.updated({VECTOR: None})]
    prints = [fingerprint(matrices(), {"facts": replace(BIG, table=t)}) for t in tables]
    assert len(set(prints)) == len(tables)
    again = KernelTable("Adapter", "1.0").updated(dict(TABLE))
    assert fingerprint(matrices(), {"facts": replace(BIG, table=again)}) == prints[1]
    plans = [compile_cached(matrices(), replace(BIG, table=t), folder=tmp_path) for t in tables]
    labels = [[d.kernel.label for d in plan.dispatches] for plan in plans]
    assert "split4" in labels[1][0] and "split2" in labels[2][0]
    assert plans[1].dispatches == compile_graph(matrices(), replace(BIG, table=TABLE)).dispatches


def test_generators_are_the_modules_of_products() -> None:
    assert len(generators_version()) == 64


@pytest.mark.parametrize("facts", [BIG, DeviceFacts(), DeviceFacts(max_invocations=64)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", ""])
def test_candidates_fit_and_differ(layout: str, facts: DeviceFacts) -> None:
    for batch in (1, 12):
        for m, n, k in [(1, 1, 1), (1, 1000, 577), (4, 33, 64), (500, 1, 4096), (201, 384, 1536)]:
            key = MatmulKey(layout, batch, m, n, k)
            found = matmul_candidates(key, facts)
            assert found[0] == choose_matmul(batch, m, n, k, facts, layout)
            assert len(set(found)) == len(found) > 4
            for choice in found:
                assert choice.fits(facts) and 1 <= choice.split_k <= (1 if batch > 1 else 64)
                whole = choice.tile_m % choice.thread_m or choice.tile_n % choice.thread_n
                assert not whole and choice.tile_k % 4 == 0
            assert layout or all(choice.variant != "gemv" for choice in found)
