"""Finding where a plan's numbers stop being finite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from engine.session import Session

EXPONENT = np.uint32(0x7F800000)
"""An f32 with all of these bits set is infinite or NaN."""


class NonFinite(NamedTuple):
    """A tensor that holds an infinite or NaN element, and the launch that wrote it.

    `launch` is -1 and `label` the tensor's class when it was so before the first launch.
    """

    launch: int
    label: str
    name: str

    def __str__(self) -> str:
        what = f"'{self.name}'" if self.name else "an intermediate result"
        if self.launch < 0:
            return f"{self.label} {what} is not finite from the start"
        return f"launch {self.launch} ({self.label}) is the first to write a non-finite {what}"


def first_nonfinite(session: Session) -> NonFinite | None:
    """Run the plan once, launch by launch, and look at every result; None if all are finite.

    What the plan starts from (parameters, inputs, state, constants) is looked at first. Waits for
    the device and creates temporary buffers: not for the frame loop. Parameters and state are
    updated as by any run.
    """
    plan = session.plan
    sources = [b.id for b in plan.buffers if b.kind not in ("transient", "output", "gradient")]
    bad = _nonfinite(session, sources)
    if bad is not None:
        return NonFinite(-1, plan.buffers[bad].kind, plan.buffers[bad].name)
    for launch in plan.launches():
        encoder = session.gpu.device.create_command_encoder()
        session.encode(encoder, launch.start, launch.stop)
        session.gpu.submit(encoder)
        dispatch = plan.dispatches[launch.start]
        bad = _nonfinite(session, sorted(dispatch.write_ids()))
        if bad is not None:
            return NonFinite(launch.start, dispatch.kernel.label, plan.buffers[bad].name)
    return None


def _nonfinite(session: Session, buffers: Iterable[int]) -> int | None:
    """The first of the buffers that holds a non-finite f32."""
    for b in buffers:
        if session.plan.buffers[b].type.dtype == "f32":
            bits = session.read_buffer(b).view(np.uint32)
            if np.any(bits & EXPONENT == EXPONENT):
                return b
    return None
