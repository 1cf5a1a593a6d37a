"""The desktop window on an X server without a screen: seen by screenshots, driven by real keys."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.preview_program import EYES, SIZE
from tests.xvfb import Program, Xvfb, xvfb

__all__ = ["xvfb"]  # a fixture

pytestmark = [pytest.mark.display, pytest.mark.gpu]

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


class Preview:
    """The test program's window, at the screen's upper left corner."""

    def __init__(self, screen: Xvfb, way: str, **environment: str) -> None:
        self.screen = screen
        command = [sys.executable, "-m", "tests.preview_program", way]
        self.program = Program(screen, command, **environment)
        self.opened = self.program.wait_for_line("open").split(" ", 5)
        self.window = screen.find_window(self.program.process.pid)

    def expect_action(self, action: str) -> None:
        assert self.program.wait_for_line("action") == f"action {action}"

    def objects_created(self) -> int:
        self.screen.press("h")
        return int(self.program.wait_for_line("created").split()[1])

    def wait_for(self, size: tuple[int, int], left_only: bool = False) -> None:
        """Wait until the window of this size shows the eyes, letterboxed; white lies around it."""
        self.screen.wait_for_picture(lambda image: shows_eyes(image, size, left_only))


@pytest.fixture(params=["surface", "blit"])
def preview(request: pytest.FixtureRequest, xvfb: Xvfb) -> Iterator[Preview]:
    opened = Preview(xvfb, request.param)
    yield opened
    opened.program.close()


def shows_eyes(image: np.ndarray, size: tuple[int, int], left_only: bool) -> bool:
    width, height = size
    columns = 1 if left_only else 2
    scale = min(width / columns, height)  # an eye is square
    left, top = (width - columns * scale) / 2, (height - scale) / 2

    def close(x: float, y: float, colour: object) -> bool:
        seen = image[int(y), int(x)].astype(int)
        return bool(np.abs(seen - np.array(colour, int)).max() <= 2)

    quarters = all(
        close(left + (column + u) * scale, top + (row + v) * scale / 2, EYES[row, column])
        for column in range(columns)
        for row in range(2)
        for u in (0.1, 0.5, 0.9)
        for v in (0.2, 0.8)
    )
    bars = (left < 3 or close(left / 2, height / 2, BLACK)) and (
        top < 3 or close(width / 2, height - top / 2, BLACK)
    )
    outside = close(width + 2, height / 2, WHITE) and close(width / 2, height + 2, WHITE)
    return quarters and bars and outside


def test_shows_the_eyes_in_their_colours(preview: Preview) -> None:
    way, form, width, height = preview.opened[1:5]
    assert way == preview.program.process.args[-1]  # type: ignore[index]
    assert form.removesuffix("-srgb") in ("bgra8unorm", "rgba8unorm")
    assert (int(width), int(height)) == SIZE
    preview.wait_for(SIZE)
    preview.screen.press("m")
    preview.wait_for(SIZE, left_only=True)


def test_keys_become_actions_in_order(preview: Preview) -> None:
    struck = {
        "1": "chunks 1",
        "8": "chunks 8",
        "9": "chunks 12",
        "0": "chunks 16",
        "KP_3": "chunks 3",  # on the number pad
        "bracketleft": "in_flight -1",
        "bracketright": "in_flight 1",
        "p": "policy 0",
        "shift+t": "train 0",
        "q": None,
        "ctrl+j": None,
        "j": "job 0",
        "F1": "help 0",
        "Escape": "quit 0",
    }
    preview.screen.press(*struck)
    for action in filter(None, struck.values()):
        preview.expect_action(action)
    preview.program.wait_for_line("closed")
    assert preview.program.finish() == 0
    assert preview.program.errors() == ""


def test_follows_resizes_and_creates_nothing_between_them(preview: Preview) -> None:
    preview.wait_for(SIZE)
    for size in ((150, 160), (310, 90), (7, 5), (233, 201)):
        preview.screen.resize(preview.window, size)
        assert preview.program.wait_for_line("resized") == f"resized {size[0]} {size[1]}"
        if min(size) > 20:
            preview.wait_for(size)
        before = preview.objects_created()
        preview.screen.press("m")
        if min(size) > 20:
            preview.wait_for(size, left_only=True)
        preview.screen.press("m")
        assert preview.objects_created() == before


def test_survives_a_storm_of_resizes(preview: Preview) -> None:
    for step in range(40):
        preview.screen.resize(preview.window, (20 + 37 * step % 301, 20 + 53 * step % 203))
    preview.screen.resize(preview.window, (180, 90))
    preview.wait_for((180, 90))


def test_a_hidden_window_comes_back(preview: Preview) -> None:
    preview.wait_for(SIZE)
    preview.screen.hide(preview.window)
    preview.screen.wait_for_picture(lambda image: bool((image[50, 50] == WHITE).all()))
    preview.screen.show(preview.window)
    preview.wait_for(SIZE)


def test_the_close_button_quits(preview: Preview) -> None:
    preview.screen.click_close(preview.window)
    preview.expect_action("quit 0")
    preview.program.wait_for_line("closed")
    assert preview.program.finish() == 0


@pytest.mark.parametrize("preview", ["surface"], indirect=True)
@pytest.mark.parametrize("key", ["r", "s"])
def test_a_lost_surface_is_made_again(preview: Preview, key: str) -> None:
    preview.wait_for(SIZE)
    preview.screen.press(key)
    preview.program.wait_for_line("recovered")
    preview.screen.press("m")
    preview.wait_for(SIZE, left_only=True)
    before = preview.objects_created()
    assert preview.objects_created() == before


def run_script(xvfb: Xvfb, script: str, **environment: str) -> tuple[int, list[str], str]:
    """Exit status, lines printed and errors of a script that has a `gpu`."""
    head = (
        "from app.preview.target import PreviewError\n"
        "from app.preview.window import PreviewWindow\n"
        "from engine.gpu import Gpu\n"
        "gpu = Gpu.open()\n"
    )
    program = Program(xvfb, [sys.executable, "-c", head + script + "\nprint('end')"], **environment)
    try:
        lines: list[str] = []
        while not lines or lines[-1] != "end":
            lines.append(program.wait_for_line(""))
        return program.finish(), lines[:-1], program.errors()
    finally:
        program.close()


@pytest.mark.parametrize("surface", [True, False])
def test_leaves_frames_out_while_the_gpu_is_behind(xvfb: Xvfb, surface: bool) -> None:
    script = f"""
window = PreviewWindow(gpu, (64, 32), surface={surface})
gpu.wait()
never = 10**9
for frame in range(6):
    view = window.begin()
    print(view is not None)
    if view is not None:
        encoder = gpu.device.create_command_encoder()
        attachment = {{"view": view, "load_op": "clear", "store_op": "store"}}
        encoder.begin_render_pass(color_attachments=[attachment]).end()
        window.record(encoder)
        gpu.submit(encoder)
        window.present(never)
window.close()
"""
    status, lines, errors = run_script(xvfb, script)
    assert status == 0, errors
    accepted = lines.count("True")
    assert 1 <= accepted <= 2
    assert lines == ["True"] * accepted + ["False"] * (6 - accepted)


def test_copies_where_windows_have_no_surface(xvfb: Xvfb) -> None:
    script = """
window = PreviewWindow(gpu, (64, 32))
print(window.name, window.note != "", window.begin() is not None)
window.close()
try:
    PreviewWindow(gpu, (64, 32), surface=True)
except PreviewError as error:
    print(error)
"""
    status, lines, errors = run_script(xvfb, script, SDL_VIDEODRIVER="dummy")
    assert status == 0, errors
    assert lines[0] == "blit True True"
    assert lines[1].startswith("no surface") and "dummy" in lines[1]


def test_understands_other_keyboards(xvfb: Xvfb) -> None:
    script = """
import pygame as pg
window = PreviewWindow(gpu, (64, 32))
window.actions()
struck = [
    (pg.K_8, "[", pg.KMOD_RALT | pg.KMOD_CTRL),  # German, Windows
    (pg.K_9, "]", pg.KMOD_MODE),  # German, X11
    (pg.K_AMPERSAND, "1", pg.KMOD_LSHIFT),  # French
    (pg.K_KP_4, "4", pg.KMOD_NUM),
    (pg.K_p, "P", pg.KMOD_CAPS),
    (pg.K_F1, "s", 0),
    (pg.K_F2, "s", 0),  # the text of the next key
    (pg.K_j, "r", pg.KMOD_LCTRL),
    (pg.K_v, "v", pg.KMOD_LALT),
]
for key, unicode, mod in struck:
    pg.event.post(pg.event.Event(pg.KEYDOWN, key=key, unicode=unicode, mod=mod))
for action in window.actions():
    print(action.kind, action.value)
window.close()
"""
    status, lines, errors = run_script(xvfb, script, SDL_VIDEODRIVER="dummy")
    assert status == 0, errors
    assert lines == ["in_flight -1", "in_flight 1", "chunks 1", "chunks 4", "policy 0", "help 0"]


@pytest.mark.parametrize("display", ["", ":4242"])
def test_says_what_to_do_without_a_display(xvfb: Xvfb, display: str) -> None:
    script = """
try:
    PreviewWindow(gpu)
except PreviewError as error:
    print(error)
"""
    status, lines, errors = run_script(xvfb, script, DISPLAY=display)
    assert status == 0, errors
    assert len(lines) == 1
    assert lines[0].startswith("no display: set DISPLAY or use --headless")
