import io

import pytest
from rich.console import Console

from app.doctor import run_doctor, smoke_error
from engine.errors import GpuError
from engine.gpu import ADAPTER_VARIABLE, Gpu
from engine.session import Session

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's OpenXR runtime, if it has one, is not to be started."""
    monkeypatch.setattr("app.doctor_openxr.find_runtime", lambda: None)


def report() -> tuple[int, list[str]]:
    file = io.StringIO()
    code = run_doctor(Console(file=file, force_terminal=False))
    return code, file.getvalue().splitlines()


def test_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, lines = report()
    assert code == 0
    assert lines[-1].startswith("  verdict: ready")
    assert not any("not known" in line for line in lines)
    for label in ("adapter 0", "  driver", "  timestamp-query", "  shared memory", "device"):
        assert any(line.startswith(f"  {label}: ") for line in lines)


def test_slow_device_is_called_slow_exactly_when_it_is_a_cpu(gpu: Gpu) -> None:
    verdict = report()[1][-1]
    assert ("correct but slow" in verdict) == gpu.facts.is_cpu


def test_smoke_test_sees_a_kernel_that_did_not_run(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smoke_error(gpu) < 1e-5
    monkeypatch.setattr(Session, "run", lambda self: None)
    assert smoke_error(gpu) > 0.1
    code, lines = report()
    assert code == 1
    assert "computes wrong numbers" in lines[-1]


def test_adapters_are_chosen_by_number_or_name(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(line for line in report()[1] if line.startswith("  adapter 0: "))
    for wanted in ("0", first.removeprefix("  adapter 0: ")[:6].upper()):
        monkeypatch.setenv(ADAPTER_VARIABLE, wanted)
        assert Gpu.open().name.startswith(first.removeprefix("  adapter 0: "))
    monkeypatch.setenv(ADAPTER_VARIABLE, "99")
    with pytest.raises(GpuError, match=r"no such adapter. Here: 0 "):
        Gpu.open()
