"""Errors of the compiler and its runtime; every message is one line that says what to do."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class GraphError(EngineError):
    """A graph is ill-formed: wrong shapes, dtypes, attributes or order."""


class PlanError(EngineError):
    """A graph cannot be turned into a plan, or a plan breaks one of its own rules."""


class KernelTooLong(EngineError):  # noqa: N818
    """A kernel exceeds the cap on kernel time and cannot be split enough."""


class CheckpointError(EngineError):
    """A checkpoint is unreadable, incomplete or belongs to another model."""


class GpuError(EngineError):
    """No usable adapter, or the device was lost."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type when it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
