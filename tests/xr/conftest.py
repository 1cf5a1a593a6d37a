"""The real runtime: fetched once, a service per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.xr.monado import HeadsetProgram, Monado
from tests.xr.monado_files import FetchError, runtime_folder


@pytest.fixture(scope="session")
def xr_runtime() -> Path:
    """The unpacked runtime. Without it these tests fail; they never skip."""
    try:
        return runtime_folder()
    except FetchError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def monado(xr_runtime: Path) -> Iterator[Callable[..., Monado]]:
    """Starts services with the given settings, and ends them with the test."""
    services: list[Monado] = []

    def start(*settings: dict[str, str]) -> Monado:
        merged = {name: value for part in settings for name, value in part.items()}
        services.append(Monado(xr_runtime, merged))
        return services[-1]

    yield start
    for service in services:
        service.close()


@pytest.fixture
def launch() -> Iterator[Callable[..., HeadsetProgram]]:
    """Starts clients of a service, and ends them with the test."""
    programs: list[HeadsetProgram] = []

    def start(
        service: Monado,
        *arguments: str,
        module: str = "tests.xr.headset_program",
        **environment: str,
    ) -> HeadsetProgram:
        programs.append(service.launch(module, *arguments, **environment))
        return programs[-1]

    yield start
    for program in programs:
        program.close()
