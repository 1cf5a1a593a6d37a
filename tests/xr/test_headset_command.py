"""`run.py headset` as its users run it, against the real Monado."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.telemetry.folder import open_run
from app.telemetry.rows import ChunkRow, FrameRow
from tests.xr.monado import (
    NULL_COMPOSITOR,
    REMOTE,
    SIMULATED,
    X11_COMPOSITOR,
    HeadsetProgram,
    Monado,
)
from tests.xr.remote_wearer import RemoteHand, RemoteWearer
from tests.xvfb import Xvfb, xvfb  # noqa: F401

Start = Callable[..., Monado]
Launch = Callable[..., HeadsetProgram]

PATIENCE_S = 90.0
SMALL = ("--render-scale", "0.12", "--held-out", "0")


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`. Fails when there is none in time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"never saw {what}")


def chunks(out: Path) -> list[ChunkRow]:
    return list(open_run(out).chunks()) if (out / "chunks.jsonl").exists() else []


def frames(out: Path) -> list[FrameRow]:
    return list(open_run(out).frames()) if (out / "frames.jsonl").exists() else []


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())  # type: ignore[no-any-return]


def start(launch: Launch, service: Monado, out: Path, *options: str, **env: str) -> HeadsetProgram:
    return launch(service, "headset", "--out", str(out), *SMALL, *options, module="run", **env)


def test_it_learns_while_it_renders(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = start(launch, service, tmp_path, "--seconds", "12", "--chunks", "3")
    assert program.finish() == 0, program.errors()
    told = summary(tmp_path)
    assert told["outcome"] == "ok" and told["objects_created_in_loop"] == 0
    assert told["train_steps"] >= 2 and told["loss_first"] is not None
    rows = frames(tmp_path)
    assert [row.id for row in rows] == list(range(1, len(rows) + 1))
    rendered = [row for row in rows if row.submit_ns is not None]
    assert len(rendered) >= 20
    presented = [row for row in rendered if row.presenter_ms is not None]
    assert len(presented) >= len(rendered) - 3
    assert (tmp_path / "trace.pftrace").stat().st_size > 1000
    assert json.loads((tmp_path / "run.json").read_text())["config"]["command"] == "headset"


def test_buttons_change_the_chunk_count(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, REMOTE)
    wearer = RemoteWearer()
    wearer.send()
    program = start(launch, service, tmp_path, "--chunks", "4", "--seconds", "300")
    wait_for(lambda: chunks(tmp_path), "a chunk")

    def pressed() -> bool:
        for buttons in ({"b_click"}, set()):
            wearer.left = RemoteHand((-0.3, 1.2, -0.5), frozenset(buttons))
            wearer.send()
            time.sleep(1.0)
        return {row.of for row in chunks(tmp_path)} >= {4, 6}

    wait_for(pressed, "runs of 6 chunks after runs of 4")
    wearer.close()
    program.process.terminate()
    assert program.finish() == 0, program.errors()
    assert summary(tmp_path)["outcome"] == "interrupted"


def test_a_lost_runtime_is_waited_for(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = start(launch, service, tmp_path, "--seconds", "300", "--chunks", "2")
    wait_for(lambda: any(row.submit_ns for row in frames(tmp_path)), "a rendered frame")
    service.kill()
    wait_for(lambda: "waiting up to" in program.errors(), "that it says so")
    before = len(chunks(tmp_path))
    wait_for(lambda: len(chunks(tmp_path)) > before + 3, "training while nobody is there")
    service.restart()
    wait_for(lambda: "the headset is back" in program.errors(), "its return")
    count = len(frames(tmp_path))
    wait_for(
        lambda: any(row.submit_ns for row in frames(tmp_path)[count + 1 :]), "frames once more"
    )
    program.process.terminate()
    assert program.finish() == 0, program.errors()
    rows = frames(tmp_path)
    assert [row.id for row in rows] == list(range(1, len(rows) + 1))
    drawn = [row.submit_ns is not None for row in rows]
    first, last = drawn.index(True), len(drawn) - 1 - drawn[::-1].index(True)
    assert not all(drawn[first:last])  # those in between were for nobody
    ids = [row.id for row in chunks(tmp_path)]
    assert ids == list(range(1, len(ids) + 1))


def test_a_runtime_that_stays_away_ends_it(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    program = start(launch, service, tmp_path, "--seconds", "300", "--wait", "2")
    wait_for(lambda: any(row.submit_ns for row in frames(tmp_path)), "a rendered frame")
    service.kill()
    assert program.finish() == 1
    assert "it did not come back within 2 s" in program.errors().strip().splitlines()[-1]
    assert "Traceback" not in program.errors()
    assert summary(tmp_path)["outcome"].startswith("error: ")
    assert len(frames(tmp_path)) > 0


def test_no_runtime_is_one_line(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    gone = str(tmp_path / "gone.json")
    program = start(launch, service, tmp_path / "out", XR_RUNTIME_JSON=gone)
    assert program.finish() == 1
    assert "error: " in program.errors().strip().splitlines()[-1]
    assert "gone.json" in program.errors() and "Traceback" not in program.errors()
    assert not (tmp_path / "out").exists()


def test_headless_driver(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    options = ("--driver", "headless", "--eye-size", "64", "--held-out", "0", "--seconds", "4")
    program = launch(service, "headset", "--out", str(tmp_path), *options, module="run")
    assert program.finish() == 0, program.errors()
    assert summary(tmp_path)["outcome"] == "ok" and len(frames(tmp_path)) > 10


def test_mirror_beside_the_compositor(
    monado: Start,
    launch: Launch,
    tmp_path: Path,
    xvfb: Xvfb,  # noqa: F811
) -> None:
    service = monado(X11_COMPOSITOR, SIMULATED, {"DISPLAY": xvfb.display})
    program = start(launch, service, tmp_path, "--mirror", "--seconds", "300", DISPLAY=xvfb.display)
    wait_for(lambda: any(row.submit_ns for row in frames(tmp_path)), "a rendered frame")
    xvfb.find_window(program.process.pid)
    xvfb.press("3")
    wait_for(lambda: 3 in {row.of for row in chunks(tmp_path)}, "the key's chunk count")
    shown = xvfb.screenshot()
    assert shown.std() > 5  # looked at: the mirror's window over the compositor's
    xvfb.press("Escape")
    assert program.finish() == 0, program.errors()
    assert summary(tmp_path)["outcome"] == "ok"


def test_a_sweep_gives_the_same_tables(monado: Start, launch: Launch, tmp_path: Path) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    options = ("--chunks", "1,2", "--in-flight", "1", "--seconds", "2", "--warm-up", "0.3")
    program = launch(
        service,
        *("sweep", "--driver", "openxr", "--repeats", "1", "--eye-size", "96"),
        *(*options, "--out", str(tmp_path)),
        module="run",
    )
    assert program.finish() == 0, program.errors()
    told = summary(tmp_path)
    assert told["headset"] == "openxr" and told["outcome"] == "ok"
    assert {arm["chunks"] for arm in told["arms"]} == {1, 2}
    for arm in told["arms"]:
        assert arm["frames"] > 0 and arm["missed_per_1000"] is not None
        assert arm["frame_p99_ms"] > 0 and arm["isolated_worker_ms"] is not None
    assert told["baselines"]["solo_render"][0]["frames"] > 10
