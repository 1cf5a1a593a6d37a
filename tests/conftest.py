"""Shared fixtures: the one device of the run, and random numbers that depend on the test only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:
    from engine.gpu import Gpu

# Examples are a function of the test, like the numbers of `rng`; time is never asserted.
hypothesis.settings.register_profile("reproducible", deadline=None, derandomize=True)
hypothesis.settings.load_profile("reproducible")


@pytest.fixture(scope="session", autouse=True)
def own_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user's tuned kernels and compiled plans must not decide what is tested, nor be changed."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            patch.setenv(variable, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The device that all device tests share. Without an adapter they fail; they never skip."""
    from engine.errors import GpuError
    from engine.gpu import Gpu

    try:
        return Gpu.open()
    except GpuError as error:
        pytest.fail(f"tests/device needs a wgpu adapter: {error}", pytrace=False)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers seeded from the test's name."""
    return np.random.default_rng([*request.node.name.encode()])
