"""Who looks at the mirror: the window, and the video file of a recording."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import wgpu

from app.preview.window import PreviewWindow
from app.scene.mirror import Mirror
from engine.gpu import Gpu
from engine.readback import Readback

VIDEO_SIZE = (1280, 640)
VIDEO_FPS = 15
COLOUR_FORMAT = "rgba8unorm-srgb"

log = logging.getLogger(__name__)


class WindowViewer:
    """Mirrors every frame into the preview window."""

    def __init__(self, window: PreviewWindow, mirror: Mirror) -> None:
        self.window, self.mirror = window, mirror

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """See Viewer."""
        view = self.window.begin()
        if view is None:
            return False
        self.mirror.encode(encoder, view, self.window.size)
        self.window.record(encoder)
        return True

    def submitted(self, serial: int) -> None:
        """See Viewer."""
        self.window.present(serial)

    def poll(self) -> None:
        """Nothing to take."""


class VideoViewer:
    """Mirrors into an mp4 file while one is being recorded, at 15 pictures per second.

    All GPU objects are made at set-up, so a recording can start at any time. Encoding happens in
    a thread; when that cannot keep up, pictures are left out, never waited for.
    """

    def __init__(self, gpu: Gpu, eyes: wgpu.GPUTextureView) -> None:
        width, height = VIDEO_SIZE
        self.mirror = Mirror(gpu.device, eyes, COLOUR_FORMAT)
        self._texture = gpu.device.create_texture(
            size=(width, height, 1),
            format=COLOUR_FORMAT,
            usage=wgpu.TextureUsage.RENDER_ATTACHMENT | wgpu.TextureUsage.COPY_SRC,
        )
        self._view = self._texture.create_view()
        self._readback = Readback(gpu, width * height * 4)
        self._file: VideoFile | None = None
        self._next_ns = 0

    @property
    def recording(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def start(self, path: Path) -> None:
        """Record to `path` from now on; ends an earlier recording."""
        self.stop()
        self._file = VideoFile(path)
        self._next_ns = 0

    def stop(self) -> None:
        """Finish the file, if any."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """See Viewer."""
        now_ns = time.perf_counter_ns()
        if self._file is None or now_ns < self._next_ns or not self._readback.idle:
            return False
        self._next_ns = max(self._next_ns + 10**9 // VIDEO_FPS, now_ns - 10**9 // VIDEO_FPS)
        self.encode(encoder)
        return True

    def encode(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record drawing and download of one picture."""
        self.mirror.encode(encoder, self._view, VIDEO_SIZE)
        width, height = VIDEO_SIZE
        encoder.copy_texture_to_buffer(
            {"texture": self._texture},
            {"buffer": self._readback.buffer, "bytes_per_row": 4 * width, "rows_per_image": height},
            (width, height, 1),
        )

    def submitted(self, serial: int) -> None:
        """See Viewer."""
        self._readback.arm(serial)

    def poll(self) -> None:
        """Hand an arrived picture to the encoding thread."""
        data = self._readback.take()
        if data is not None and self._file is not None:
            width, height = VIDEO_SIZE
            self._file.put(data.reshape(height, width, 4), time.perf_counter_ns())


class VideoFile:
    """An mp4 file written by a thread, in real time: a slow source repeats its pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # OpenCV would say of every single picture that the disk is full.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        self._queue: queue.Queue[tuple[np.ndarray, int] | None] = queue.Queue(maxsize=4)
        self._thread = threading.Thread(target=self._write, name="video", daemon=True)
        self._thread.start()

    def put(self, rgba: np.ndarray, taken_ns: int) -> None:
        """Queue a picture uint8 [h, w, 4]; dropped when the encoder is behind."""
        if not self._queue.full():
            self._queue.put_nowait((rgba, taken_ns))

    def close(self) -> None:
        """Write what is queued and close the file; waits at most 10 s."""
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _write(self) -> None:
        four_cc = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(self.path), four_cc, VIDEO_FPS, VIDEO_SIZE)
        if not writer.isOpened():
            log.warning("cannot write the video %s; going on without it", self.path)
        written, start_ns, held = 0, None, None
        while (item := self._queue.get()) is not None:
            rgba, taken_ns = item
            start_ns = start_ns or taken_ns
            bgr = cv2.cvtColor(rgba, cv2.COLOR_RGBA2BGR)
            wanted = 1 + round((taken_ns - start_ns) * VIDEO_FPS / 1e9)
            for number in range(written + 1, wanted + 1):
                writer.write(bgr if number == wanted or held is None else held)
            written, held = max(written, wanted), bgr
        writer.release()
