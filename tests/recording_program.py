"""Sessions of frames and chunks without a device, each killed at its moment, for tests.

    python -m tests.recording_program OUT MOMENT MOMENT ...

A session records into OUT/0, OUT/1, ... for a second, faster than any headset, and is killed so
many seconds after its start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from app.telemetry.frame_log import FrameLog
from app.telemetry.recorder import Recorder
from app.telemetry.rows import ChunkRow
from app.xr.driver import FrameResult, FrameTiming

HZ = 500
SECONDS = 1.0
PERIOD_NS = round(1e9 / HZ)


def record(out: Path) -> None:
    """Frames on time, a chunk in each."""
    recorder = Recorder(out, {"command": "test", "options": {"hz": HZ}})
    log = FrameLog(recorder.frame)
    start = time.perf_counter_ns()
    for number in range(1, round(HZ * SECONDS) + 1):
        while time.perf_counter_ns() < start + number * PERIOD_NS:
            time.sleep(0.0002)
        wait_ns = time.perf_counter_ns()
        display_ns = wait_ns + PERIOD_NS
        frame = log.start(FrameTiming(number, display_ns, PERIOD_NS, True, display_ns), wait_ns)
        frame.serial, frame.submit_ns = number, wait_ns
        log.count_chunks(1, "frame quota used")
        chunk = ChunkRow(
            id=number,
            job="train",
            job_id=number,
            index=0,
            of=1,
            dispatches=1,
            frame_id=number,
            submit_ns=wait_ns,
            done_ns=wait_ns,
            gpu_ms=1.0,
            in_flight=1,
            reason="frame quota",
        )
        log.chunk_known(chunk)
        recorder.chunk(chunk)
        log.completed(number, wait_ns + 1)
        log.settle([FrameResult(number, display_ns, 0, 0)])
    log.finish()
    recorder.finish("ok", {"outcome": "ok", "frames": number})


def main(out: Path, moments: list[float]) -> None:
    """Imports are done once: every session is a fork, so that even its first moments are short."""
    out.mkdir()
    for index, moment in enumerate(moments):
        child = os.fork()
        if child == 0:
            record(out / str(index))
            os._exit(0)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(moment) for moment in sys.argv[2:]])
