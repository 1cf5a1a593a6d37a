"""What the wearer's hands do, whether they hold controllers or not."""

from __future__ import annotations

from dataclasses import dataclass

from app.xr.driver import Pose


@dataclass(frozen=True)
class Hand:
    """One hand. Poses are in the world's space, None while the hand is not tracked.

    `grip` is the hand itself, `aim` a ray along -z to point with; `grabbing` holds on to something.
    """

    grip: Pose | None = None
    aim: Pose | None = None
    grabbing: bool = False
