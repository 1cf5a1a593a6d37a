"""An X server without a screen, and a viewer's hands and eyes on it: keys, mouse, screenshots.

Use the fixture `xvfb` by importing it. Needs Xvfb and xdotool.
"""

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import numpy as np
import pytest

PATIENCE_S = 60.0
SCREEN = (800, 600)


class Xvfb:
    """A running X server of its own display number, all white, without a window manager."""

    def __init__(self, screen: tuple[int, int] = SCREEN) -> None:
        for tool in ("Xvfb", "xdotool"):
            if shutil.which(tool) is None:
                raise RuntimeError(f"{tool} is missing: apt install xvfb xdotool")
        self._folder = tempfile.TemporaryDirectory(prefix="xvfb-")
        reader, writer = os.pipe()
        command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{screen[0]}x{screen[1]}x24"]
        self._process = subprocess.Popen(
            [*command, "-wr", "-fbdir", self._folder.name, "-nolisten", "tcp"],
            pass_fds=[writer],
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(writer)
        with os.fdopen(reader) as numbers:
            number = numbers.readline().strip()
        if not number:
            _, complaint = self._process.communicate(timeout=PATIENCE_S)
            self.close()
            raise RuntimeError(f"Xvfb does not start: {complaint.strip()}")
        self.display = f":{number}"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._folder.cleanup()

    def environment(self) -> dict[str, str]:
        """This process's environment, for programs that shall open windows here."""
        hidden = ("WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XAUTHORITY")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return kept | {"DISPLAY": self.display}

    def screenshot(self) -> np.ndarray:
        """What the screen shows, [H, W, 3] uint8: Xvfb keeps it in a file of the XWD format."""
        data = Path(self._folder.name, "Xvfb_screen0").read_bytes()
        header = struct.unpack(">25I", data[:100])
        header_size, width, height, row_size, colours = (header[i] for i in (0, 4, 5, 12, 19))
        start = header_size + 12 * colours
        rows = np.frombuffer(data, np.uint8, row_size * height, start).reshape(height, row_size)
        return rows[:, : 4 * width].reshape(height, width, 4)[..., 2::-1].copy()

    def wait_for_picture(self, accept: Callable[[np.ndarray], bool]) -> np.ndarray:
        """The first screenshot that `accept` takes. Fails when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            image = self.screenshot()
            if accept(image):
                return image
            assert time.monotonic() < deadline, "the expected picture never came to the screen"
            time.sleep(0.05)

    def find_window(self, process: int) -> int:
        """The visible window of this process id, waited for, moved to (0, 0), given the keys."""
        found = self._xdotool("search", "--sync", "--onlyvisible", "--pid", str(process))
        window = int(found.split()[0])
        self._xdotool("windowmove", str(window), "0", "0")
        self._xdotool("windowfocus", "--sync", str(window))
        return window

    def press(self, *keys: str) -> None:
        """Strike keys, named as by X: "3", "bracketleft", "F1", "Escape", "shift+p"."""
        self._xdotool("key", "--delay", "30", *keys)

    def resize(self, window: int, size: tuple[int, int]) -> None:
        self._xdotool("windowsize", str(window), *map(str, size))

    def hide(self, window: int) -> None:
        self._xdotool("windowunmap", "--sync", str(window))

    def show(self, window: int) -> None:
        self._xdotool("windowmap", "--sync", str(window))

    def click_close(self, window: int) -> None:
        """What a window manager sends when its close button is clicked."""
        send_delete_window(self.display, window)

    def _xdotool(self, *arguments: str) -> str:
        result = subprocess.run(
            ["xdotool", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert result.returncode == 0, f"xdotool {' '.join(arguments)}: {result.stderr.strip()}"
        return result.stdout


class _ClientMessage(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("serial", ctypes.c_ulong),
        ("send_event", ctypes.c_int),
        ("display", ctypes.c_void_p),
        ("window", ctypes.c_ulong),
        ("message_type", ctypes.c_ulong),
        ("format", ctypes.c_int),
        ("data", ctypes.c_long * 5),
        ("rest_of_xevent", ctypes.c_long * 24),
    )


def send_delete_window(display: str, window: int) -> None:
    x11 = ctypes.CDLL("libX11.so.6")
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XInternAtom.restype = ctypes.c_ulong
    connection = ctypes.c_void_p(x11.XOpenDisplay(display.encode()))
    assert connection, f"cannot connect to display {display}"
    protocols, delete = (
        x11.XInternAtom(connection, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW")
    )
    message = _ClientMessage(type=33, window=window, message_type=protocols, format=32)
    message.data[0] = delete
    x11.XSendEvent(connection, ctypes.c_ulong(window), 0, ctypes.c_long(0), ctypes.byref(message))
    x11.XCloseDisplay(connection)


class Program:
    """A program with a window on an X server, whose output is read line by line."""

    def __init__(self, xvfb: Xvfb, command: list[str], **environment: str) -> None:
        self._errors = tempfile.NamedTemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            env=xvfb.environment() | environment,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for_line(self, start: str) -> str:
        """The next line that begins with `start`. Fails when none comes."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no line {start!r} came: {self.errors()}") from None
            assert line is not None, f"the program ended before {start!r}: {self.errors()}"
            if line.startswith(start):
                return line

    def finish(self) -> int:
        """The exit status, waited for."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """All it has written to stderr so far."""
        # Not through our own handle: it shares its position with the program's.
        return Path(self._errors.name).read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="module")
def xvfb() -> Iterator[Xvfb]:
    server = Xvfb()
    yield server
    server.close()
