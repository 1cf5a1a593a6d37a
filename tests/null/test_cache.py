"""The plan cache: keys tell everything apart, and a bad folder or entry never stops a run."""

import itertools
import logging
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import assert_same_plan

from engine import cache, ops
from engine.cache import compile_cached, default_folder, fingerprint, generator_version
from engine.compile import compile_graph
from engine.errors import GraphError
from engine.graph import Graph, TensorType
from engine.op import definitions
from engine.optim import Adam, Sgd
from engine.specialize import DeviceFacts, MatrixUnits
from models.vision import training_graph


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_unwritable", set())


def small(scale: float = 2.0) -> Graph:
    graph = Graph()
    x = graph.input("x", (3, 5))
    table = graph.constant("table", np.arange(5.0))
    graph.output("y", ops.gelu(ops.add(ops.affine(x, scale), table)))
    return graph


def with_attributes(op: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any]) -> Graph:
    """A graph of one node whatever its attributes: what no op would accept must differ too."""
    graph = Graph()
    inputs = tuple(graph.input(f"x{k}", shape) for k, shape in enumerate(shapes))
    graph.output("y", graph._append(op, inputs, TensorType((1,)), attrs))
    return graph


def altered(value: Any) -> Iterator[Any]:
    """Values next to `value`: the smallest changes, and the same number of another type."""
    if isinstance(value, bool):
        yield from (not value, int(value))
    elif isinstance(value, int):
        yield from (value + 1, -value - 1, float(value), str(value))
    elif isinstance(value, float):
        yield from (math.nextafter(value, math.inf), -value, str(value))
    elif isinstance(value, str):
        yield from (value + " ", value + "\0", value.encode())
    elif isinstance(value, tuple | list):
        yield [*value] if isinstance(value, tuple) else (*value,)
        yield from ((*value, 0), (*value, ()), (value,))
        for k, element in enumerate(value):
            for other in altered(element):
                yield type(value)([*value[:k], other, *value[k + 1 :]])
    elif isinstance(value, dict):
        yield {**value, "extra": 0}
        for key, element in value.items():
            for other in altered(element):
                yield {**value, key: other}
    elif isinstance(value, np.ndarray):
        for index in {0, value.size // 2, value.size - 1}:
            other = value.copy()
            other.flat[index] += 1
            yield other


def key(graph: Graph, **options: Any) -> str:
    return fingerprint(graph, options)


@pytest.mark.parametrize("op", definitions())
def test_no_two_attribute_values_share_a_key(op: str) -> None:
    samples = list(definitions()[op].samples())
    seen: dict[str, Any] = {}
    for sample in samples:
        cases = [sample.attrs, {**sample.attrs, "extra": 0}]
        for name, value in sample.attrs.items():
            cases.append({k: v for k, v in sample.attrs.items() if k != name})
            cases += [{**sample.attrs, name: other} for other in altered(value)]
        for attrs in cases:
            content = repr((sample.shapes, sorted(attrs.items())))
            found = seen.setdefault(key(with_attributes(op, sample.shapes, attrs)), content)
            assert found == content
    assert len(seen) > len(samples) or not samples


def test_arrays_as_attributes_are_told_apart_by_every_element() -> None:
    value = np.zeros((300, 300), np.float32)
    arrays = [value, value.astype(np.uint32), value.reshape(-1), value.reshape(90_000, 1)]
    arrays += list(altered(value))
    keys = [key(with_attributes("copy", ((1,),), {"table": a})) for a in arrays]
    assert len(set(keys)) == len(arrays)
    alike = with_attributes("copy", ((1,),), {"table": np.asfortranarray(value)})
    assert key(alike) == keys[0]


def variations() -> Iterator[Graph]:
    """Graphs that differ from `small` and from each other in one respect each."""
    yield small()
    yield small(np.nextafter(np.float64(2), 3))
    for shape, dtype in (((5, 3), "f32"), ((15,), "f32"), ((3, 5), "u32")):
        graph = Graph()
        graph.output("y", graph.input("x", shape, dtype))
        yield graph
    for name, out in itertools.product(("x", "xy"), ("y", "z")):
        graph = Graph()
        graph.output(out, ops.gelu(graph.input(name, (3, 5))))
        yield graph
    for trainable, value in itertools.product((True, False), (1.0, 1.5)):
        graph = Graph()
        w = graph.parameter("w", (3,), lambda rng, s: np.ones(s), trainable=trainable)
        graph.output("y", ops.add(w, graph.constant("c", np.array([0, value, 0]))))
        yield graph
    for first in (True, False):
        graph = Graph()
        a, b = graph.input("a", (3,)), graph.input("b", (3,))
        graph.output("y", ops.sub(a, b) if first else ops.sub(b, a))
        yield graph
    for kept in ((), ("w",), ("w", "v")):
        graph = Graph()
        w = graph.input("w", (3,))
        y = ops.gelu(w)
        graph.output("y", y)
        graph.gradients.update({name: ops.copy(y) for name in ("w", "v")})
        graph.gradients = {name: graph.gradients[name] for name in kept}
        yield graph
    for optimizer in (Adam(), Adam(beta1=0.8), Sgd(), Sgd(momentum=0.5)):
        yield training_graph(optimizer, depth=1, size=16)
    dropped = training_graph(Adam(), depth=1, size=16)
    dropped.effects.clear()
    yield dropped


def test_graphs_that_differ_have_keys_that_differ() -> None:
    graphs = list(variations())
    assert len({key(graph) for graph in graphs}) == len(graphs)
    assert [key(graph) for graph in variations()] == [key(graph) for graph in graphs]


def test_options_facts_and_the_compiler_itself_are_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = DeviceFacts()
    keys = [key(small()), key(small(), facts=facts), key(small(), facts=facts, optimize=False)]
    keys.append(key(small(), facts=facts, contract="accelerated"))
    keys.append(key(small(), facts=replace(facts, matrix_units=MatrixUnits(16, 16, 16, 32))))
    for field in fields(facts):
        old = getattr(facts, field.name)
        if old is not None:
            keys.append(key(small(), facts=replace(facts, **{field.name: next(altered(old))})))
    monkeypatch.setattr(cache, "generator_version", lambda: "another")
    keys.append(key(small()))
    assert len(set(keys)) == len(keys)


def test_the_version_changes_with_any_source_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    (tmp_path / "ops").mkdir()
    versions = []
    for name, text in (("a.py", "1"), ("a.py", "2"), ("ops/b.py", ""), ("b.py", ""), ("c", "")):
        (tmp_path / name).write_text(text)
        generator_version.cache_clear()
        versions.append(generator_version())
    generator_version.cache_clear()
    assert len(set(versions)) == 4 and versions[3] == versions[4]


def test_values_without_a_canonical_form_are_refused() -> None:
    for value in ({1, 2}, object(), len, np.array([None])):
        with pytest.raises(GraphError, match="fingerprint"):
            key(small(), option=value)


def test_the_second_compilation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "new" / "folder"
    want = compile_graph(small())
    assert_same_plan(compile_cached(small(), folder=folder), want)
    monkeypatch.setattr(cache, "compile_graph", _refuse(compile_graph))
    assert_same_plan(compile_cached(small(), DeviceFacts(), folder=folder, alias=True), want)
    for other in ({"alias": False}, {"optimize": False}):
        with pytest.raises(AssertionError, match="compiled"):
            compile_cached(small(), folder=folder, **other)
    with pytest.raises(AssertionError, match="compiled"):
        compile_cached(small(3.0), folder=folder)
    assert caplog.records == []


def _refuse(original: Any) -> Any:
    import functools

    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("compiled")

    return refuse


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "foreign", "folder"])
def test_a_bad_entry_costs_one_warning_and_is_replaced(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compile_cached(small(3.0), folder=tmp_path)
    (foreign,) = tmp_path.iterdir()
    compile_cached(small(), folder=tmp_path)
    (path,) = set(tmp_path.iterdir()) - {foreign}
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[:-7])
        case "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "text":
            path.write_text("not a plan")
        case "foreign":
            path.write_bytes(foreign.read_bytes())
        case "folder":
            path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert_same_plan(compile_cached(small(), folder=tmp_path), compile_graph(small()))
        if damage != "folder":
            assert len(caplog.records) == 1
            assert path.read_bytes() == data
            compile_cached(small(), folder=tmp_path)
    (first, *_) = caplog.records
    assert path.name in first.getMessage() and "ignoring" in first.getMessage()
    assert len(caplog.records) == (2 if damage == "folder" else 1)
    assert {p.name for p in tmp_path.iterdir()} == {path.name, foreign.name}


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cache, "write_atomic", refuse)
    for scale in (1.0, 2.0, 1.0):
        plan = compile_cached(small(scale), folder=tmp_path)
        assert_same_plan(plan, compile_graph(small(scale)))
    assert len(caplog.records) == 1 and "not kept" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("kept")
    for _ in range(2):
        compile_cached(small(), folder=tmp_path / "file")
        compile_cached(small(), folder=tmp_path / "file" / "below")
    assert len(caplog.records) == 2
    assert (tmp_path / "file").read_text() == "kept"


def test_old_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    (tmp_path / "other.txt").write_text("")
    for age, scale in enumerate((1.0, 2.0, 3.0)):
        before = set(tmp_path.iterdir())
        compile_cached(small(scale), folder=tmp_path)
        for path in set(tmp_path.iterdir()) - before:
            cache.os.utime(path, (age, age))
        compile_cached(small(1.0), folder=tmp_path)  # stays: it is used again and again
    monkeypatch.setattr(cache, "compile_graph", _refuse(compile_graph))
    compile_cached(small(1.0), folder=tmp_path)
    compile_cached(small(3.0), folder=tmp_path)
    with pytest.raises(AssertionError, match="compiled"):
        compile_cached(small(2.0), folder=tmp_path)
    assert (tmp_path / "other.txt").exists()


@pytest.mark.parametrize(
    ("platform", "environment", "want"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/h/.cache"),
        ("linux", {}, "/h/.cache"),
        ("darwin", {"XDG_CACHE_HOME": "/c"}, "/h/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local"),
        ("win32", {}, "/h/AppData/Local"),
    ],
)
def test_the_folder_is_where_the_platform_wants_it(
    platform: str, environment: dict[str, str], want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.sys, "platform", platform)
    monkeypatch.setattr(cache.Path, "home", lambda: Path("/h"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_folder() == Path(want) / "dinovision" / "plans"


def test_ops_from_elsewhere_are_compiled_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(definitions()["gelu"]), "__module__", "somewhere.else")
    compile_cached(small(), folder=tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
