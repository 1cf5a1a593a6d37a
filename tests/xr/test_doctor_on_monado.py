"""The doctor's OpenXR section on the real Monado: running, gone, and not answering."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.xr.monado import NULL_COMPOSITOR, SIMULATED, HeadsetProgram, Monado

Start = Callable[..., Monado]
Doctor = Callable[[Monado], HeadsetProgram]


@pytest.fixture
def doctor(launch: Callable[..., HeadsetProgram], tmp_path: Path) -> Doctor:
    """Starts the doctor as a client of a service."""

    def start(service: Monado) -> HeadsetProgram:
        python = tmp_path / "python"
        command = shlex.join([*service.linker(), "--argv0", sys.executable])
        python.write_text(f'#!/bin/sh\nexec {command} {os.path.realpath(sys.executable)} "$@"\n')
        python.chmod(0o755)
        return launch(service, str(python), module="tests.xr.doctor_program")

    return start


def test_running_service(monado: Start, doctor: Doctor) -> None:
    program = doctor(monado(NULL_COMPOSITOR, SIMULATED))
    lines = {event["label"]: event["value"] for event in program.events("frames")}
    assert program.finish() == 0, program.errors()
    assert lines["runtime"] == "Monado" and "XR_RUNTIME_JSON" in lines["manifest"]
    assert lines["library"].endswith("libopenxr_monado.so")
    assert lines["answers as"].startswith("Monado") and "25." in lines["answers as"]
    assert "Simulated" in lines["headset"]
    width, height = (int(word) for word in lines["view size"].split() if word.isdigit())
    assert width > 100 and height > 100
    assert "XR_KHR_vulkan_enable2, " in lines["extensions"]
    assert lines["frames"].startswith("can be presented")


def test_service_that_is_gone(monado: Start, doctor: Doctor) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    service.kill()
    program = doctor(service)
    assert "does not answer" in program.event("problem")["value"]
    assert "monado-service" in program.event("to start it")["value"]
    assert program.finish() == 0


def test_service_that_hangs(monado: Start, doctor: Doctor) -> None:
    service = monado(NULL_COMPOSITOR, SIMULATED)
    service.process.send_signal(signal.SIGSTOP)
    try:
        program = doctor(service)
        assert "no answer within" in program.event("problem")["value"]
        assert program.finish() == 0
    finally:
        service.process.send_signal(signal.SIGCONT)
