"""What programs use matrix units for, and that their kernels stay within a device's limits."""

import re
from dataclasses import replace

import pytest

from app.contracts import tell
from engine.compile import compile_graph
from engine.graph import Graph
from engine.kernels.attention import AttentionShape, attention, grad_keys, grad_queries, kernel
from engine.kernels.matmul import matmul
from engine.kernels.product import MatmulShape
from engine.specialize import (
    Contract,
    DeviceFacts,
    MatmulKey,
    MatrixUnits,
    choose_matmul,
    matmul_candidates,
    matrix_tiles,
)
from engine.specialize_attention import choose_attention, keep_weights
from models.zoo import WORKLOADS

UNITS = MatrixUnits(16, 16, 16, 32)
FACTS = DeviceFacts(
    max_invocations=1024,
    max_shared_bytes=49152,
    max_storage_buffers=16,
    max_binding_bytes=1 << 31,
    max_buffer_bytes=1 << 31,
    matrix_units=UNITS,
)


def shared_bytes(source: str) -> int:
    """Of all workgroup variables that a shader declares, each of whole 16 bytes."""
    sizes = {"f16": 2, "f32": 4, "atomic<u32>": 4, "vec4<f32>": 16}
    total = 0
    for name, kind in re.findall(r"var<workgroup> (\w+): ([^;]+);", source):
        array = re.fullmatch(r"array<(\S+), (\d+)>", kind)
        nbytes = sizes[array[1]] * int(array[2]) if array else {"vec4<u32>": 16}[kind]
        # Variables lie one after another, and units want rows to begin at multiples of 16.
        assert nbytes % 16 == 0, f"{name}: {kind}"
        total += nbytes
    return total


def products(graph: Graph, contract: Contract) -> list[str]:
    plan = compile_graph(graph, FACTS, contract=contract)
    return [d.kernel.source for d in plan.dispatches]


@pytest.mark.parametrize("name", ["smollm2", "whisper"])
def test_only_the_accelerated_contract_rounds(name: str) -> None:
    workload = WORKLOADS[name]
    graph = workload.training(workload.full).graph
    assert not any("f16" in source for source in products(graph, "strict"))
    rounded = sum("subgroupMatrixMultiplyAccumulate" in s for s in products(graph, "accelerated"))
    # All that is heavy, forwards and backwards: products of every layer, and long attention.
    assert rounded > 100 if name == "smollm2" else rounded > 40


def test_what_units_do_not_make_faster_stays_strict() -> None:
    assert choose_matmul(1, 50, 720, 32, FACTS, "nt").variant == "tiled"
    few = AttentionShape(9, 3, 128, 128, 64, True, 0.125)
    assert choose_attention(attention(few, lse=False).key, FACTS).variant == "tiled"


def test_weights_are_kept_where_scoring_again_is_dear() -> None:
    strict, pairs = replace(FACTS, matrix_units=None), 6 * 1536 * 1500
    assert keep_weights(pairs, strict)
    assert not keep_weights(pairs // 20, strict) and not keep_weights(2 * pairs, strict)
    others = [FACTS, replace(strict, is_cpu=True), replace(strict, max_storage_buffers=8)]
    others.append(replace(strict, max_binding_bytes=4 * pairs - 4))
    assert not any(keep_weights(pairs, facts) for facts in others)


def test_few_rows_are_bound_by_memory_and_stay_strict() -> None:
    assert choose_matmul(1, 1, 4096, 4096, FACTS, "nt").variant == "gemv"
    assert choose_matmul(1, 1500, 1536, 384, FACTS, "nt").variant == "matrix"
    assert choose_matmul(1, 12544, 64, 576, FACTS).variant == "matrix"
    # On a CPU device units are more of the same arithmetic.
    assert choose_matmul(1, 1500, 1536, 384, replace(FACTS, is_cpu=True)).variant == "direct"


def test_tables_choose_among_units_where_there_are_some() -> None:
    key, strict = MatmulKey("nt", 1, 201, 384, 384), replace(FACTS, matrix_units=None)
    usual = choose_matmul(*key[1:], FACTS, "nt")
    others = [c for c in matmul_candidates(key, FACTS) if c.units and c != usual]
    assert usual.units and len({(c.tile_m, c.tile_n, c.tile_k) for c in others}) > 3
    table = {key: others[0]}
    assert choose_matmul(*key[1:], replace(FACTS, table=table), "nt") == others[0]
    assert not any(c.units for c in matmul_candidates(key, strict))
    assert not choose_matmul(*key[1:], replace(strict, table=table), "nt").units


@pytest.mark.parametrize("units", [UNITS, MatrixUnits(8, 8, 8, 8)])
def test_kernels_declare_what_their_choice_says(units: MatrixUnits) -> None:
    facts = replace(FACTS, matrix_units=units)
    tiles = list(matrix_tiles(units))
    # Only launches with equal workgroups are merged.
    assert len(tiles) > 1 and (units != UNITS or {tile.workgroup for tile in tiles} == {256})
    for tile in tiles:
        for layout in range(4):
            shape = MatmulShape(1, 100, 90, 80, bool(layout & 1), bool(layout & 2))
            (made,) = matmul(shape, tile)
            assert shared_bytes(made.source) <= tile.shared_bytes
    heads = AttentionShape(6, 3, 500, 600, 64, True, 0.125)
    for program in (attention(heads, lse=True), grad_queries(heads), grad_keys(heads)):
        choice = choose_attention(program.key, facts)
        assert choice.variant == "matrix" and choice.fits(program.key, facts)
        declared = shared_bytes(kernel(program, choice).source)
        assert declared <= choice.shared_bytes(64, program.key.owned) <= FACTS.max_shared_bytes


def test_small_devices_stay_within_their_limits() -> None:
    small = replace(FACTS, max_invocations=256, max_shared_bytes=16384)
    for m, n, k in ((1500, 384, 384), (50, 4096, 720), (64, 576, 12544)):
        assert choose_matmul(1, m, n, k, small, "nt").fits(small)
    key = attention(AttentionShape(6, 6, 1500, 1500, 64, False, 0.125), lse=False).key
    assert choose_attention(key, small).fits(key, small)


class Opened:
    """What `tell` asks of a device."""

    implementation, name, contract = "wgpu", "a GPU", "strict"


def test_a_device_without_units_is_told_of_in_one_line() -> None:
    said: list[str] = []
    tell(Opened(), "strict", said.append)  # type: ignore[arg-type]
    assert said == []
    tell(Opened(), "accelerated", said.append)  # type: ignore[arg-type]
    assert said == [
        "--contract accelerated: no matrix units through wgpu on a GPU; computing in strict f32"
    ]
