"""The OpenXR binding, loaded with a clear error, and its exceptions in this program's words."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.xr.driver import Pose, XrError, XrLost

# The loader would write its own complaints beside ours.
os.environ.setdefault("XR_LOADER_DEBUG", "none")
try:
    import xr
except Exception as error:  # it opens libraries of the system, and fails in as many ways
    raise XrError(
        f"OpenXR cannot be loaded ({str(error).strip().splitlines()[0]}): pip install pyopenxr"
        + ("; apt install libgl1" if sys.platform.startswith("linux") else "")
    ) from error

if sys.platform == "win32":
    from xr.platform import windows as platform
else:
    from xr.platform import linux as platform

__all__ = [
    "STEREO",
    "address",
    "checked",
    "function",
    "platform",
    "pose_of",
    "told",
    "xr",
    "xr_pose",
]

STEREO = xr.ViewConfigurationType.PRIMARY_STEREO


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turn the binding's exceptions into `XrLost` or `XrError` that name what was being done."""
    try:
        yield
    except (xr.InstanceLostError, xr.SessionLostError, xr.SessionLossPending) as error:
        raise XrLost(
            f"the OpenXR runtime went away ({doing}): is its service still running?"
        ) from error
    except xr.XrException as error:
        reason = str(error).strip().rstrip(".")
        raise XrError(f"OpenXR: {doing} failed: {reason or type(error).__name__}") from error


def function(instance: Any, name: str, prototype: Any) -> Any:
    """A function that the loader does not export, as a ctypes callable that returns XrResult."""
    return ctypes.cast(xr.get_instance_proc_addr(instance, name), prototype)


def checked(result: Any) -> None:
    """Raise the binding's exception for a failed raw call; other than errors are left to it."""
    outcome = xr.check_result(xr.Result(result))
    if isinstance(outcome, xr.exception.ErrorResult):
        raise outcome


def address(pointer: Any) -> int:
    """The address in a ctypes pointer or handle; 0 for null."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def pose_of(pose: Any) -> Pose:
    """An XrPosef as the application's pose."""
    p, q = pose.position, pose.orientation
    return Pose((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))


def xr_pose(pose: Pose) -> Any:
    """The application's pose as an XrPosef."""
    return xr.Posef(xr.Quaternionf(*pose.orientation), xr.Vector3f(*pose.position))
