"""What a benchmark tells: tables, markdown, HTML, and the figures that are kept."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import date
from html import escape
from pathlib import Path

import pytest
from bench_records import failed, mode, profiled, record, runs
from rich.console import Console

from app.bench.cells import make_cells
from app.bench.families import by_family, family, floor_us, worst
from app.bench.publish import publish, rows, slug
from app.bench.record import Ceilings, KernelCost, Phase
from app.bench.size import closure_bytes, engine_bytes
from app.bench.table import Bench, markdown, page

KEYS = ["workload", "contract", "phase", "engine_ms", "torch_ms", "torch_mode", "ratio", "gate"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    engine = runs(tmp_path, profiled(record("engine", mode("plan", 2.0))))
    modes = mode("eager", 8.0), mode("torch.compile", 4.0, deviation=1e-6)
    torch = runs(tmp_path, record("torch", *modes))
    cached = [record("engine", mode("plan", 1.0))]
    installed = {"engine": 70 * 10**6, "torch": 700 * 10**6}
    return Bench("torch", make_cells(engine, torch, None), [engine, torch], cached, installed)


def test_every_cell_is_told_everywhere(bench: Bench) -> None:
    bench.cells[1] = replace(bench.cells[1], gate="skipped(a | b <c>)", engine=None)
    bench.cells[2] = replace(bench.cells[2], gate="fails gate", why="loss is off by 1e-2")
    found = page(bench)
    assert found.answer == "3 cells: 1 ok, 1 fail a gate, 1 skipped"
    out = io.StringIO()
    found.print(Console(file=out))
    text, html = markdown(found), found.html()
    for phrase in ("fails gate", "loss is off by 1e-2", "minimal latency", "torch.compile"):
        assert phrase in out.getvalue() and phrase in text and phrase in html
    assert r"skipped(a \| b <c>)" in text and escape("skipped(a | b <c>)") in html
    assert '<tr class="marked">' in html
    assert "engine device (kind) via something driver 2" in text


def test_markdown_rows_have_the_columns_of_their_head(bench: Bench) -> None:
    counts = [
        {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line[:1] == "|"}
        for block in markdown(page(bench)).split("## ")
    ]
    assert all(len(found) <= 1 for found in counts) and any(counts)


def test_errors_of_runners_are_warnings(bench: Bench, tmp_path: Path) -> None:
    bench.runs.append(runs(tmp_path, failed("torch", "error: no memory")))
    assert page(bench).warnings == ["torch, smolvla: error: no memory"]
    assert "Warning: torch, smolvla: error: no memory" in markdown(page(bench))


def test_a_benchmark_without_anything_is_a_page(tmp_path: Path) -> None:
    engine = runs(tmp_path, failed("engine", "skipped: no contract"))
    found = page(Bench("none", make_cells(engine, None, None), [engine]))
    assert found.answer == "3 cells: 0 ok, 3 skipped"
    assert "skipped(engine: skipped: no contract)" in markdown(found)


def test_published_figures(bench: Bench, tmp_path: Path) -> None:
    found = rows(bench.cells, bench.runs, bench.cached)
    path = publish(tmp_path / "new", found, "NVIDIA H200 (DiscreteGPU) via Vulkan", "strict")
    assert re.fullmatch(r"nvidia-h200-strict-\d{4}-\d\d-\d\d\.json", path.name)
    assert date.fromisoformat(path.stem[-10:])
    kept = json.loads(path.read_text())
    assert [row["phase"] for row in kept] == ["inference", "minimal", "training"]
    for row in kept:
        assert not set(KEYS) - row.keys()
        assert (row["engine_ms"], row["torch_ms"], row["ratio"]) == (2.0, 4.0, 0.5)
        assert (row["torch_mode"], row["gate"]) == ("torch.compile", "ok")
        assert row["engine_compile_s"] == row["engine_compile_cached_s"] == 1.5
        assert row["torch_compile_s"] == 1.5 and row["torch_bytes"] == 1_500_000
        assert row["provenance"]["reference"]["name"] == "torch"
        assert row["provenance"]["protocol"]["samples"] > 0


def test_a_benchmark_in_parts_is_published_in_one_file(bench: Bench, tmp_path: Path) -> None:
    found = rows(bench.cells, bench.runs, bench.cached)
    other = [row | {"workload": "unet"} for row in found]
    publish(tmp_path, other, "llvmpipe", "strict")
    path = publish(tmp_path, found, "llvmpipe", "strict")
    again = [row | {"ratio": 3.0} for row in found]
    assert publish(tmp_path, again, "llvmpipe", "strict") == path
    kept = json.loads(path.read_text())
    assert [row["workload"] for row in kept] == ["unet"] * 3 + ["smolvla"] * 3
    assert [row["ratio"] for row in kept] == [0.5] * 3 + [3.0] * 3
    path.write_text('{"workload": 1}')
    with pytest.raises(OSError, match="no list of figures"):
        publish(tmp_path, found, "llvmpipe", "strict")


def test_a_profile_without_times_is_a_warning(bench: Bench, tmp_path: Path) -> None:
    record_ = bench.runs[0].first
    timeless = tuple(replace(phase, kernels=None) for phase in record_.phases)
    job = replace(record_.job, profile=True)
    bench.runs[0] = runs(tmp_path, replace(record_, job=job, phases=timeless))
    assert page(bench).warnings == [
        "smolvla: no times of kernels, the device has no timestamp queries"
    ]


def test_published_figures_of_what_was_skipped(tmp_path: Path) -> None:
    engine = runs(tmp_path, failed("engine", "skipped: no contract"))
    found = rows(make_cells(engine, None, None), [engine], [])
    assert all(not set(KEYS) - row.keys() for row in found)
    assert {row["engine_ms"] for row in found} == {None}


def test_adapters_as_file_names() -> None:
    assert slug("llvmpipe (LLVM 15.0.6, 256 bits) (CPU) via Vulkan") == "llvmpipe"
    assert slug("Intel(R) Arc") == "intel"
    assert slug("(?)") == "adapter"


def test_profiles_name_what_loses_most(bench: Bench) -> None:
    tables = {table.title: table for table in page(bench).parts}
    families = tables["SmolVLA: time by family"].rows
    assert [row[:3] for row in families[:2]] == [
        ("inference", "matrix product", "32"),
        ("inference", "data movement", "90"),
    ]
    # 4.7 GFLOP are 472 us at the ceiling, 40 MB 40 us: the small permutes lose no less.
    losers = [row[1:3] for row in tables["SmolVLA: worst kernels"].rows[:3]]
    assert losers == [("matmul_nt_1x50x2048x720", "32"), ("permute", "88"), ("permute", "2")]
    assert tables["SmolVLA: worst kernels"].rows[0][-1] == "428"


def test_kernels_by_family() -> None:
    labels = {
        "matmul_nt_1x50x720x960_split5": "matrix product",
        "matmul_sum_splits": "reduction",
        "conv2d_nt_1x784x256x2304": "convolution",
        "conv2d_weight_grad_tn_1x64x576x12544_split6": "convolution, weight gradient",
        "conv2d_input_grad_nn_1x64x256x2304": "convolution, input gradient",
        "attention_9x128x128x64": "attention",
        "attention_grad_kv_3x128x128x64": "attention gradient",
        "attention_delta": "attention gradient",
        "rms_norm": "normalisation",
        "layer_norm+gelu": "normalisation",
        "norm_affine_grad": "normalisation gradient",
        "expand+square+square_grad": "element by element",
        "expand": "data movement",
        "mul+silu+silu_grad": "element by element",
        "cross_entropy_grad": "loss",
        "scatter_add": "embedding",
        "avg_unpool2d": "pooling",
        "permute&matmul_sum_splits&matmul_tn_1x96x96x50": "matrix product",
        "permute&relu": "data movement",
    }
    assert {label: family(label) for label in labels} == labels


def test_costs_add_up_by_family_and_lose_against_ceilings() -> None:
    ceilings = Ceilings(gflops=1000.0, gbs=100.0, measured=False)
    busy = KernelCost("a", "x", 1, 11.0, 10**7, 10)
    idle = KernelCost("b", "x", 2, 9.0, 0, 10**5)
    assert floor_us(busy, ceilings) == pytest.approx(10.0)
    assert floor_us(idle, ceilings) == pytest.approx(1.0)
    assert worst([busy, idle], ceilings, 1) == [idle]
    (both,) = by_family([busy, idle])
    assert (both.label, both.launches, both.us, both.flops) == ("x", 3, 20.0, 10**7)
    assert both.nbytes == 10**5 + 10


def test_installed_sizes() -> None:
    whole, numpy = engine_bytes(), closure_bytes(["numpy"])
    assert numpy is not None and 10**6 < numpy < whole
    wgpu = closure_bytes(["wgpu"])
    assert wgpu is not None and wgpu > (closure_bytes(["cffi"]) or 0) > 0
    assert closure_bytes(["no-such-package"]) is None


def test_phases_are_named_as_published() -> None:
    assert [str(phase) for phase in Phase] == ["inference", "minimal", "training"]
