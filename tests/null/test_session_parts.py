"""Signals, progress and video: the small parts around a session."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console

from app.interrupt import Interrupt
from app.preview.viewers import VIDEO_FPS, VIDEO_SIZE, VideoFile
from app.progress import Progress


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_an_order(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_without_a_terminal_progress_is_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    progress, file = Progress(), io.StringIO()
    progress._console = Console(file=file, force_terminal=False, width=80)
    long = "a line :smile: with [brackets] that is longer than eighty columns " * 2
    progress.say(long)
    asked = 0

    def line() -> str:
        nonlocal asked
        asked += 1
        return f"state {asked}"

    for _ in range(60):
        progress.update(line)
        now_s += 0.1
    progress.close()
    assert file.getvalue() == f"{long}\nstate 1\nstate 2\n"
    assert asked == 2


def test_on_a_terminal_progress_is_rewritten_and_removed() -> None:
    progress, file = Progress(), io.StringIO()
    progress._console = Console(file=file, force_terminal=True, width=80)
    progress.update(lambda: "state 1")
    assert "state 1" in file.getvalue()
    progress.close()
    progress.close()
    progress.say("done")
    assert file.getvalue().endswith("done\n")


def levels_of(path: Path) -> list[int]:
    video = cv2.VideoCapture(str(path))
    found: list[int] = []
    while True:
        ok, image = video.read()
        if not ok:
            return found
        assert image.shape == (VIDEO_SIZE[1], VIDEO_SIZE[0], 3)
        found.append(round(float(np.asarray(image).mean()) / 50))


def test_a_slow_source_is_held_in_the_video(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "v.mp4")
    second = 10**9
    for level, at_ns in ((1, second), (2, 2 * second), (3, 2 * second + second // VIDEO_FPS)):
        picture = np.full((VIDEO_SIZE[1], VIDEO_SIZE[0], 4), 50 * level, np.uint8)
        file.put(picture, at_ns)
    file.close()
    assert levels_of(tmp_path / "v.mp4") == [1] * VIDEO_FPS + [2, 3]


def test_a_video_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "no" / "such" / "folder" / "v.mp4")
    picture = np.zeros((VIDEO_SIZE[1], VIDEO_SIZE[0], 4), np.uint8)
    for number in range(10):
        file.put(picture, number)
    file.close()
    assert list(tmp_path.iterdir()) == []
