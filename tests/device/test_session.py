"""Sessions and readbacks: what steady state may do, and what bad use is told."""

import os

import numpy as np
import pytest

from engine import ops
from engine.compile import compile_graph
from engine.errors import GpuError, PlanError
from engine.gpu import BufferRange, Gpu, Launch
from engine.graph import Graph
from engine.implementations import VARIABLE
from engine.optim import HYPER, Adam, minimize
from engine.pipelines import Program
from engine.readback import Readback
from engine.session import Session

pytestmark = pytest.mark.gpu

FILL = """@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(1) fn main() { y[0] = 1.0; }"""


def regression(gpu: Gpu) -> Session:
    """A layer fitted to targets, with an Adam update inside the plan."""
    graph = Graph()
    x, target = graph.input("x", (9, 6)), graph.input("target", (9, 5))
    weight = graph.parameter("weight", (5, 6), lambda rng, shape: np.zeros(shape))
    error = ops.sub(ops.linear(x, weight), target)
    loss = ops.reduce_mean(ops.square(error), range(2))
    graph.output("loss", loss)
    minimize(loss, Adam())
    return Session(gpu, compile_graph(graph, gpu.facts))


def test_steady_state_creates_nothing(gpu: Gpu, rng: np.random.Generator) -> None:
    session, optimizer = regression(gpu), Adam(rate=0.1)
    readback = Readback(gpu, 4)
    x = rng.uniform(-1, 1, (9, 6)).astype(np.float32)
    target = (x @ rng.uniform(-1, 1, (6, 5))).astype(np.float32)
    session.load({"x": x, "target": target})
    half = len(session.commands) // 2
    before, losses = gpu.objects_created, []
    for step in range(1, 41):
        session.write(HYPER, optimizer.hyper(step))
        session.write("x", x)
        for first, last in ((0, half), (half, None)):
            encoder = gpu.device.create_command_encoder()
            session.encode(encoder, first, last)
            if last is None and readback.idle:
                readback.record(encoder, session.range("loss"))
                readback.arm(gpu.submit(encoder))
            else:
                gpu.submit(encoder)
        gpu.wait()
        data = readback.take()
        assert data is not None
        losses.append(float(data.view(np.float32)[0]))
    assert gpu.objects_created == before
    assert losses[-1] < 0.2 * losses[0]
    assert losses[-1] == session.read("loss")[0]


def test_the_count_sees_every_kind_of_creation(gpu: Gpu) -> None:
    before = gpu.objects_created
    buffer = gpu.storage_buffer(64)
    assert gpu.objects_created > before
    before = gpu.objects_created
    gpu.queue.read_buffer(buffer)
    assert gpu.objects_created > before, "queue reads hide a temporary buffer"
    before = gpu.objects_created
    whole = BufferRange(buffer, 0, 64)
    gpu.command(FILL, [], [whole], (1, 1, 1))
    assert gpu.objects_created - before >= 3, "module, pipeline, bind group"
    before = gpu.objects_created
    gpu.command(FILL, [], [whole], (1, 1, 1))
    assert gpu.objects_created - before == 1, "equal sources share all but the bind group"
    before = gpu.objects_created
    gpu.command(FILL + " // another", [], [whole], (1, 1, 1))
    assert gpu.objects_created - before == 3, "equal bindings share their layouts"


def test_readbacks_return_what_was_there_and_can_be_used_again(gpu: Gpu) -> None:
    buffer = gpu.storage_buffer(1024)
    readback = Readback(gpu, 16)
    assert readback.idle and readback.take() is None
    for turn in range(3):
        values = np.arange(8, dtype=np.float32) + 100 * turn
        gpu.queue.write_buffer(buffer, 512, values)
        encoder = gpu.device.create_command_encoder()
        readback.record(encoder, BufferRange(buffer, 512 + 8, 16))
        serial = gpu.submit(encoder)
        readback.arm(serial)
        assert not readback.idle
        gpu.wait()
        assert gpu.completed >= serial
        data = readback.take()
        assert data is not None and data.dtype == np.uint8
        gpu.queue.write_buffer(buffer, 512, np.zeros(8, np.float32))
        assert data.view(np.float32).tolist() == values[2:6].tolist()
        assert readback.idle and readback.take() is None, "the bytes come once"


def test_readbacks_wait_for_the_submission_that_carries_them(gpu: Gpu) -> None:
    buffer, readback = gpu.storage_buffer(16), Readback(gpu, 16)
    gpu.queue.write_buffer(buffer, 0, np.full(4, 7, np.uint32))
    encoder = gpu.device.create_command_encoder()
    readback.record(encoder, BufferRange(buffer, 0, 16))
    copied = gpu.submit(encoder)
    gpu.wait()
    readback.arm(copied + 1)
    assert readback.take() is None and not readback.idle
    gpu.submit(gpu.device.create_command_encoder())
    gpu.wait()
    data = readback.take()
    assert data is not None and data.view(np.uint32).tolist() == [7] * 4


def test_readbacks_in_flight_do_not_mix(gpu: Gpu) -> None:
    buffer = gpu.storage_buffer(256)
    readbacks = [Readback(gpu, 4) for _ in range(4)]
    for number, readback in enumerate(readbacks):
        gpu.queue.write_buffer(buffer, 0, np.full(1, number, np.uint32))
        encoder = gpu.device.create_command_encoder()
        readback.record(encoder, BufferRange(buffer, 0, 4))
        readback.arm(gpu.submit(encoder))
    gpu.wait()
    got = [readback.take() for readback in reversed(readbacks)]
    assert [data.view(np.uint32)[0] for data in got if data is not None] == [3, 2, 1, 0]


def test_serials_count_submissions_and_complete_in_order(gpu: Gpu) -> None:
    gpu.wait()
    gpu.take_completions()
    serials = [gpu.submit(gpu.device.create_command_encoder()) for _ in range(5)]
    assert serials == list(range(serials[0], serials[0] + 5))
    gpu.wait()
    assert gpu.completed == serials[-1]
    completions = gpu.take_completions()
    assert [serial for serial, _ in completions] == serials
    stamps = [stamp for _, stamp in completions]
    assert stamps == sorted(stamps)
    assert gpu.take_completions() == []


def test_bad_writes_and_names_are_refused(gpu: Gpu) -> None:
    session = regression(gpu)
    with pytest.raises(PlanError, match=r"'weight' has shape \[5, 6\], got \[6, 5\]"):
        session.write("weight", np.zeros((6, 5)))
    for use in (session.read, session.range, session.type):
        with pytest.raises(PlanError, match="no tensor 'nothing'"):
            use("nothing")


def test_writes_take_any_layout_and_float_type(gpu: Gpu) -> None:
    session = regression(gpu)
    value = np.arange(30.0).reshape(6, 5).T
    session.write("weight", value)
    assert session.read("weight").dtype == np.float32
    assert np.array_equal(session.read("weight"), value)
    assert session.snapshot(["parameter"]).keys() == {"weight"}


def test_a_fresh_session_starts_at_zero_and_poison_spares_what_persists(gpu: Gpu) -> None:
    session = regression(gpu)
    for name in ("weight", "adam_m.weight", "adam_v.weight", "x"):
        assert not session.read(name).any()
    session.write("weight", np.ones((5, 6)))
    session.poison()
    assert np.isnan(session.read("loss")).all()
    assert np.isnan(session.read("gradient:weight")).all()
    assert (session.read("weight") == 1).all()
    assert not session.read("adam_m.weight").any()


def test_packs_cover_every_tensor_of_their_kind(gpu: Gpu) -> None:
    session = regression(gpu)
    (pack,) = session.pack("parameter")
    where = session.range("weight")
    assert pack.buffer is where.buffer
    assert pack.offset <= where.offset and where.offset + where.size <= pack.size
    assert session.pack("frozen") == []


def test_runs_recorded_early_see_what_is_written_after_and_compute_the_same(
    gpu: Gpu, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late, optimizer = regression(gpu), regression(gpu), Adam(rate=0.1)
    x = rng.uniform(-1, 1, (9, 6)).astype(np.float32)
    early.load({"x": x, "target": x[:, :5]})
    late.load({"x": x, "target": x[:, :5]})
    losses = gpu.storage_buffer(16)
    before = gpu.objects_created
    for step in range(1, 9):
        for session in (early, late):
            session.write(HYPER, optimizer.hyper(step))
        copy = gpu.device.create_command_encoder()
        loss = early.range("loss")
        copy.copy_buffer_to_buffer(loss.buffer, loss.offset, losses, 0, loss.size)
        serial = early.run(behind=copy)
        encoder = gpu.device.create_command_encoder()
        late.encode(encoder)
        assert gpu.submit(encoder) == serial + 1
    assert gpu.objects_created == before
    gpu.wait()
    assert gpu.queue.read_buffer(losses, 0, 4) == late.read("loss").tobytes()
    assert np.array_equal(early.read("weight"), late.read("weight"))
    assert np.array_equal(early.read("loss"), late.read("loss"))

    def refuse(_: object) -> None:
        raise gpu.api.GPUError("lost")

    with monkeypatch.context() as lost:
        lost.setattr(gpu.queue, "submit", refuse)
        with pytest.raises(GpuError, match="the device refused work: lost"):
            early.run()
    early.run()
    late.run()
    assert np.array_equal(early.read("weight"), late.read("weight")), "refused work was not done"


def test_invalid_shaders_name_the_kernel(gpu: Gpu) -> None:
    sources = {"good": FILL + " // good", "broken": "fn main( {", "worse": "fn"}
    whole = BufferRange(gpu.storage_buffer(16), 0, 16)
    programs = [Program(source, 0, 1, label=label) for label, source in sources.items()]
    launches = [Launch(program, [], [whole], (1, 1, 1)) for program in programs]
    for _ in range(2):
        with pytest.raises(GpuError, match="kernel broken does not compile"):
            gpu.commands(launches)


def test_bindings_are_as_many_as_wanted_and_must_fit(gpu: Gpu) -> None:
    count = min(12, gpu.facts.max_storage_buffers)
    names = [f"b{k}" for k in range(count)]
    source = "\n".join(
        f"@group(0) @binding({k}) var<storage, read_write> {name}: array<f32>;"
        for k, name in enumerate(names)
    )
    body = " ".join(f"{name}[0] = {k + 1}.0;" for k, name in enumerate(names))
    source += f"@compute @workgroup_size(1) fn main() {{ {body} }}"
    buffer = gpu.storage_buffer(256 * count)
    ranges = [BufferRange(buffer, 256 * k, 256) for k in range(count)]
    command = gpu.command(source, [], ranges, (1, 1, 1))
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [command])
    gpu.submit(encoder)
    data = np.frombuffer(gpu.queue.read_buffer(buffer), np.float32)
    assert data[::64].tolist() == list(range(1, count + 1)) and np.count_nonzero(data) == count
    for misfit in (ranges[:-1], [*ranges[:-1], BufferRange(buffer, 4, 252)]):
        launch = Launch(Program(source, 0, count), [], misfit, (1, 1, 1))
        with pytest.raises(gpu.api.GPUError):
            gpu.commands([launch])


def test_the_variable_chooses_the_implementation(gpu: Gpu) -> None:
    assert gpu.implementation == os.environ.get(VARIABLE, "wgpu")


def test_no_adapter_is_one_clear_line(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("Request adapter failed (3): No adapters found\nmore")

    monkeypatch.setattr(gpu.api.gpu, "request_adapter_sync", refuse)
    cure = {"wgpu": "install a Vulkan driver", "dawn": "missing or too old"}[gpu.implementation]
    with pytest.raises(GpuError, match=cure) as caught:
        Gpu.open()
    assert "\n" not in str(caught.value)
