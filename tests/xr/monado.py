"""A running Monado service, and programs that use it: all with the C library it was built for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.xr.monado_files import driver, linker

PATIENCE_S = 120.0
ROOT = Path(__file__).resolve().parents[2]

SIMULATED = {"SIMULATED_ENABLE": "1", "SIMULATED_LEFT": "simple", "SIMULATED_RIGHT": "simple"}
REMOTE = {"P_OVERRIDE_ACTIVE_CONFIG": "remote"}
NULL_COMPOSITOR = {"XRT_COMPOSITOR_NULL": "1"}
X11_COMPOSITOR = {"XRT_COMPOSITOR_FORCE_XCB": "1"}


class Monado:
    """The service on the unpacked runtime in `folder`; `settings` are its environment variables."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._folder, self._settings = folder, settings
        # Short: the path of a socket may have 107 characters.
        self._session = tempfile.TemporaryDirectory(prefix="xr-", dir="/tmp")
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "WAYLAND_DISPLAY"},
            "XDG_RUNTIME_DIR": self._session.name,
            **driver(folder),
            "XR_RUNTIME_JSON": str(folder / "monado.json"),
            "PYTHONPATH": str(ROOT),
        }
        self._log = Path(self._session.name, "monado.log")
        self._start(settings)

    def _start(self, settings: dict[str, str]) -> None:
        command = [*self.linker(), str(self._folder / "usr/bin/monado-service")]
        with self._log.open("w") as log:
            # The service leaves when it can read its input.
            self.process = subprocess.Popen(
                command,
                env=self.environment | settings,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        socket = Path(self._session.name, "monado_comp_ipc")
        deadline = time.monotonic() + PATIENCE_S
        while not socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                complaint = self._log.read_text()[-600:]
                self.close()
                raise RuntimeError(f"Monado does not start: {complaint}")
            time.sleep(0.02)

    def linker(self) -> list[str]:
        """The runtime's own dynamic linker, to be followed by a program."""
        return linker(self._folder)

    def launch(self, module: str, *arguments: str, **environment: str) -> HeadsetProgram:
        """Run a Python module of this repository as a client of the service."""
        python = os.path.realpath(sys.executable)
        command = [*self.linker(), "--argv0", sys.executable, python, "-m", module, *arguments]
        return HeadsetProgram(command, self.environment | environment)

    def kill(self) -> None:
        """End the service without a word to its clients."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def restart(self) -> None:
        """Start the killed service anew, where its clients look for it."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        Path(self._session.name, "monado_comp_ipc").unlink(missing_ok=True)
        self._start(self._settings)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._session.cleanup()


class HeadsetProgram:
    """A client whose output is one JSON object a line."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._errors = tempfile.NamedTemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def events(self, until: str) -> list[dict[str, Any]]:
        """What it tells up to and with the next event of a name. Fails when that never comes."""
        assert self.process.stdout is not None
        told = []
        for line in self.process.stdout:
            if line.startswith("{"):
                told.append(json.loads(line))
                if told[-1]["event"] == until:
                    return told
        raise AssertionError(f"the program ended before {until!r}: {told[-3:]} {self.errors()}")

    def event(self, name: str) -> dict[str, Any]:
        """The next event of a name."""
        return self.events(name)[-1]

    def finish(self) -> int:
        """The exit status, waited for."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """The end of what it has written to stderr."""
        return Path(self._errors.name).read_text()[-1500:]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()
