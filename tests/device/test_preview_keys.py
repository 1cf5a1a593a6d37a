"""A viewer at the real keys: `run.py preview` in a window on an X server without a screen."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from app.scene.hud_canvas import TEXT, WARN
from engine.checkpoint import load_checkpoint
from tests.command_line import ROOT
from tests.xvfb import PATIENCE_S, Program, Xvfb

pytestmark = [pytest.mark.display, pytest.mark.gpu]

SCREEN = (1280, 640)
HUD_ROWS = slice(385, 640)


@pytest.fixture
def screen() -> Iterator[Xvfb]:
    server = Xvfb(SCREEN)
    yield server
    server.close()


class Viewer:
    """A running preview, its screen and the records it writes."""

    def __init__(self, screen: Xvfb, out: Path, camera: Path) -> None:
        self.screen, self.out = screen, out
        options = "--eye-size 256 --held-out 0 --hz 30 --chunks 2".split()
        options += ["--out", str(out), "--camera", str(camera), "--encoder", "random"]
        options += ["--policy", "fixed", "--in-flight", "1"]
        self.program = Program(screen, [sys.executable, str(ROOT / "run.py"), "preview", *options])

    def open(self) -> None:
        """Wait for the window, and give it the keys."""
        self.wait_for("a window", lambda: "compiling" in self.program.errors())
        self.screen.find_window(self.program.process.pid)

    def rows(self) -> list[dict[str, Any]]:
        """Chunks recorded so far; a line may still be in the making."""
        path = self.out / "chunks.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, what: str, accept: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not accept():
            assert self.program.process.poll() is None, self.program.errors()
            assert time.monotonic() < deadline, f"never came: {what}"
            time.sleep(0.1)

    def wait_for_row(self, what: str, accept: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until a chunk submitted from now on is as `accept` wants it."""
        now_ns = time.perf_counter_ns()
        self.wait_for(what, lambda: any(r["submit_ns"] > now_ns and accept(r) for r in self.rows()))

    def shows(self, colour: tuple[int, int, int]) -> bool:
        """Whether the lower half of the screen has some of a colour, blurred as it may be."""
        return int(close_to(self.screen.screenshot()[HUD_ROWS], colour).sum()) > 150

    def wait_for_hud(self, *, text: bool, note: bool) -> None:
        """The dashboard has text and the encoder's note; the help has text only."""
        self.wait_for(
            f"a HUD with {text=} {note=}",
            lambda: (self.shows(TEXT), self.shows(WARN)) == (text, note),
        )


def close_to(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.abs(image.astype(int) - colour).max(axis=-1) < 90


@pytest.fixture
def viewer(screen: Xvfb, tmp_path: Path) -> Iterator[Viewer]:
    camera = tmp_path / "dark.png"
    cv2.imwrite(str(camera), np.full((64, 64, 3), 40, np.uint8))
    opened = Viewer(screen, tmp_path / "out", camera)
    try:
        opened.open()
        yield opened
    finally:
        opened.program.close()


def test_a_viewer_at_the_keys(viewer: Viewer) -> None:
    press = viewer.screen.press
    viewer.wait_for_row("training", lambda r: (r["job"], r["of"]) == ("train", 2))
    viewer.wait_for_hud(text=True, note=True)

    press("F1")
    viewer.wait_for_hud(text=True, note=False)
    press("h")  # hides the dashboard, not the help
    press("F1")
    viewer.wait_for_hud(text=False, note=False)
    press("F1")
    viewer.wait_for_hud(text=True, note=False)
    press("F1")
    viewer.wait_for_hud(text=False, note=False)
    press("h")
    viewer.wait_for_hud(text=True, note=True)

    press("8")
    viewer.wait_for_row("8 chunks", lambda r: r["of"] == 8)
    press("bracketright", "bracketright")
    viewer.wait_for_row("3 in flight", lambda r: r["in_flight"] == 3)
    press("bracketleft")
    press("p")
    viewer.wait_for_row("the greedy policy", lambda r: r["reason"] == "room in flight")

    press("s")
    saved = viewer.out / "decoder.safetensors"
    viewer.wait_for("a checkpoint", saved.exists)

    press("t")
    viewer.wait_for(
        "two inferences without a step between",
        lambda: [r["job"] for r in viewer.rows()[-17:]] == ["infer"] * 17,
    )
    press("t")
    viewer.wait_for_row("training again", lambda r: r["job"] == "train")
    press("v", "v")
    press("j")
    press("Escape")
    assert viewer.program.finish() == 0, viewer.program.errors()

    summary = json.loads((viewer.out / "summary.json").read_text())
    assert summary["outcome"] == "ok" and summary["objects_created_in_loop"] == 0
    assert (summary["chunks"], summary["in_flight"], summary["policy"]) == (8, 2, "greedy")
    assert summary["job"] == "train"  # both, then the first of the three
    rows = viewer.rows()
    assert [row["of"] for row in rows] == sorted(row["of"] for row in rows)  # 2, then 8
    assert {row["of"] for row in rows} == {2, 8}
    for row in rows:  # every run is whole
        run = [r for r in rows if (r["job"], r["job_id"]) == (row["job"], row["job_id"])]
        assert [r["index"] for r in run] == list(range(row["of"]))
    step = int(load_checkpoint(saved).metadata["step"])
    assert 1 <= step <= summary["train_steps"]
