"""A thread that reads a camera and keeps only the newest frame."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

from app.camera.images import centre_square
from app.camera.source import CameraError, CameraSource, Frame

RETRY_NS = 1_000_000_000
JOIN_SECONDS = 2.0

log = logging.getLogger(__name__)


class CaptureThread:
    """Reads `source` at its own rate from construction until `close`; owns the source.

    A source that fails keeps its last frame and is retried every second. `error` is the reason
    while it fails, else None. `clock` gives nanoseconds, `sleep` takes seconds.
    """

    def __init__(
        self,
        source: CameraSource,
        size: int = 224,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.error: str | None = None
        self._source = source
        self._size = size
        self._clock = clock
        self._stop = threading.Event()
        # Waiting on the event, so that `close` ends a sleep.
        self._sleep = sleep or self._stop.wait
        self._frame: Frame | None = None
        self._outcome = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._thread.start()

    def latest(self) -> Frame | None:
        """The newest frame, None before the first; never blocks."""
        return self._frame

    def wait_first(self, timeout_s: float) -> Frame:
        """Block until there is a frame. Raises `CameraError` on failure or after `timeout_s`."""
        self._outcome.wait(timeout_s)
        if self._frame is not None:
            return self._frame
        late = f"{self._source.name} gave no image within {timeout_s:g} s: try --camera photos"
        raise CameraError(self.error or late)

    def age_ms(self, now_ns: int) -> float:
        """Milliseconds from the newest frame's arrival to `now_ns`; inf before the first."""
        frame = self._frame
        return math.inf if frame is None else (now_ns - frame.captured_ns) / 1e6

    def close(self) -> None:
        """Stop reading and release the source; gives up waiting after 2 s; safe to call twice."""
        self._stop.set()
        self._thread.join(JOIN_SECONDS)

    def __enter__(self) -> CaptureThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        due = self._clock()
        try:
            while not self._stop.is_set():
                due = self._read_once(due)
                wait_ns = due - self._clock()
                if wait_ns > 0 and not self._stop.is_set():
                    self._sleep(wait_ns / 1e9)
        finally:
            # Here, not in `close`: releasing a device while a read is stuck in it can crash.
            self._source.close()

    def _read_once(self, due: int) -> int:
        """Read one image; return when the next one is due, on the clock."""
        try:
            image = self._source.read()
            now = self._clock()
            if image is None:
                self._stop.set()
                return self._fail(f"{self._source.name} has ended", now)
            square = centre_square(image, self._size)
        except Exception as error:  # A thread that died would leave a frozen image unexplained.
            lines = str(error).split("\n")
            known = isinstance(error, CameraError)
            text = lines[0] if known else f"{self._source.name} failed: {lines[0]}"
            return self._fail(text, self._clock())
        sequence = 0 if self._frame is None else self._frame.sequence + 1
        self._frame = Frame(square, now, sequence)
        self.error = None
        self._outcome.set()
        # A late reader skips what it missed: it does not rush to catch up.
        return max(due + round(1e9 / self._source.fps), now)

    def _fail(self, reason: str, now: int) -> int:
        if self.error != reason:
            log.warning("camera: %s", reason)
        self.error = reason
        self._outcome.set()
        return now + RETRY_NS
