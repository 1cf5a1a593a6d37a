"""Panels in the wearer's hands: pointing at them, taking, carrying and leaving them. No GPU.

A hand takes the panel within reach of its grip, or else the first one that its aim meets, and
carries it like a thing it holds: the panel keeps its pose relative to the hand. Two hands can carry
two panels; what one hand holds the other cannot take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.scene import panels as layout
from app.scene.panels import Panel
from app.scene.rigid import compose, is_rigid, moved, relative, seen_from, unit
from app.xr.driver import Pose, Vec3
from app.xr.hands import Hand

REACH_M = 0.15
"""A panel so near to the grip is taken there, whatever the hand points at."""

HEAD_ROOM_M = 0.3
"""No part of a carried panel comes nearer to the head: it is pushed away, and slips in the hand."""

AIMED, HELD = 0.4, 1.0
"""Highlights of a panel that would be taken, and of one that is carried."""

_PLANE_M = 1e-6
"""Nearer to its plane than this, the head is taken to be in front of a panel."""


@dataclass(frozen=True)
class _Target:
    """A panel that a hand would take: by its aim, `distance_m` ahead, or by its grip (0)."""

    panel: int
    distance_m: float
    by_aim: bool


@dataclass
class _Holder:
    """What one hand does. `offset`: the held panel in the hand's frame; None: to be found anew."""

    grabbing: bool = True  # at first, so that a hand must let go before it takes
    starts: bool = False
    held: _Target | None = None
    offset: Pose | None = None
    aimed: int | None = None
    ray: float | None = None

    def begin(self, grabbing: bool, may_hold: bool) -> None:
        self.starts = grabbing and not self.grabbing
        self.grabbing = grabbing
        if not grabbing or not may_hold:
            self.held = self.offset = None


class PanelGrab:
    """Where the panels are (`poses`), and what shows that a hand is at them.

    `highlights` belongs to `poses`: 0, `AIMED` or `HELD`, per panel of `layout.MOVABLE`. `rays` are
    metres to what the left and the right hand point at: None for nothing, 0 for what is within
    reach. Both are what `SceneRenderer.set_panels` and `set_hands` take.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hang every panel where it was at first; hands that grab must let go to take again."""
        self._panels = list(layout.MOVABLE)
        self._holders = (_Holder(), _Holder())

    @property
    def poses(self) -> tuple[Pose, ...]:
        """Poses of `layout.MOVABLE`: camera, painted, components, HUD."""
        return tuple(panel.pose for panel in self._panels)

    @property
    def highlights(self) -> tuple[float, ...]:
        """How strongly each panel shows that a hand is at it."""
        glow = [0.0] * len(self._panels)
        for holder in self._holders:
            if holder.aimed is not None:
                glow[holder.aimed] = max(glow[holder.aimed], AIMED)
            if holder.held is not None:
                glow[holder.held.panel] = HELD
        return tuple(glow)

    @property
    def rays(self) -> tuple[float | None, float | None]:
        """Length of each hand's ray, in metres."""
        left, right = self._holders
        return left.ray, right.ray

    def update(self, hands: tuple[Hand, Hand], head: Vec3, *, hud_visible: bool = True) -> None:
        """Move what is carried; once a frame, with the hands and the head (metres) of that frame.

        A hand that is not tracked leaves its panel where it is, and carries it on from there when
        it is tracked again and still grabs. A HUD that is not visible is let go and not taken.
        """
        pairs = tuple(zip(self._holders, hands, strict=True))
        for holder, hand in pairs:
            holds_hud = holder.held is not None and holder.held.panel == layout.HUD_INDEX
            holder.begin(hand.grabbing, may_hold=hud_visible or not holds_hud)
        for holder, hand in pairs:
            if holder.held is None:
                self._point(holder, hand, hud_visible)
            if holder.held is not None:
                self._carry(holder, holder.held, hand, head)

    def _point(self, holder: _Holder, hand: Hand, hud_visible: bool) -> None:
        """See what the hand is at, and take it when it starts to grab; the left hand goes first."""
        target = self._target(hand, hud_visible)
        holder.ray = target.distance_m if target is not None else None
        free = target is not None and not self._is_held_by_other(target.panel, holder)
        holder.held = target if free and holder.starts else None
        holder.aimed = target.panel if target is not None and free and not holder.held else None

    def _is_held_by_other(self, panel: int, holder: _Holder) -> bool:
        return any(
            other is not holder and other.held is not None and other.held.panel == panel
            for other in self._holders
        )

    def _target(self, hand: Hand, hud_visible: bool) -> _Target | None:
        """The panel that the hand would take, held by the other one or not."""
        panels = [
            (index, panel)
            for index, panel in enumerate(self._panels)
            if hud_visible or index != layout.HUD_INDEX
        ]
        grip, aim = _tracked(hand.grip), _tracked(hand.aim)
        if grip is not None:
            near = [(_distance(panel, grip.position), index) for index, panel in panels]
            distance, index = min(near)
            if distance <= REACH_M:
                return _Target(index, 0.0, by_aim=False)
        if aim is not None:
            hits = [(_hit(panel, aim), index) for index, panel in panels]
            met = [(distance, index) for distance, index in hits if distance is not None]
            if met:
                distance, index = min(met)
                return _Target(index, distance, by_aim=True)
        return None

    def _carry(self, holder: _Holder, held: _Target, hand: Hand, head: Vec3) -> None:
        """Move the held panel with the hand, around the head."""
        frame = _tracked(hand.aim if held.by_aim else hand.grip)
        if frame is None:
            holder.offset = None
            return
        panel = self._panels[held.panel]
        if holder.offset is None:
            holder.offset = relative(panel.pose, frame)
        wanted = Panel(compose(frame, holder.offset), panel.size)
        carried = _around_head(wanted, panel.pose, head)
        if carried is not wanted:
            holder.offset = relative(carried.pose, frame)
        self._panels[held.panel] = carried
        holder.ray = _hit(carried, frame) if held.by_aim else 0.0


def _tracked(pose: Pose | None) -> Pose | None:
    """The pose with a quaternion of length 1; None when it is not tracked or no rigid motion."""
    if pose is None or not is_rigid(pose):
        return None
    return Pose(pose.position, unit(pose.orientation))


def _nearest(panel: Panel, point: Vec3) -> Vec3:
    """The point of a panel that is nearest to `point`, both in the panel's frame."""
    right, top = panel.size[0] / 2, panel.size[1] / 2
    return (min(max(point[0], -right), right), min(max(point[1], -top), top), 0.0)


def _distance(panel: Panel, point: Vec3) -> float:
    """Metres from a point to the nearest of a panel."""
    local = seen_from(panel.pose, point)
    return math.dist(local, _nearest(panel, local))


def _hit(panel: Panel, aim: Pose) -> float | None:
    """Metres along -z of `aim` to a panel, seen from either side; None: it misses."""
    start = seen_from(panel.pose, aim.position)
    ahead = seen_from(panel.pose, moved(aim, (0.0, 0.0, -1.0)))
    step = ahead[2] - start[2]
    if abs(step) < 1e-9:
        return None
    distance = -start[2] / step
    return distance if distance >= 0 and _covers(panel, start, ahead, distance) else None


def _covers(panel: Panel, start: Vec3, end: Vec3, share: float) -> bool:
    """Whether a panel covers the point `share` of the way between two, in the panel's frame."""
    x, y = (start[axis] + share * (end[axis] - start[axis]) for axis in (0, 1))
    return abs(x) <= panel.size[0] / 2 and abs(y) <= panel.size[1] / 2


def _around_head(panel: Panel, before: Pose, head: Vec3) -> Panel:
    """The panel, or where the head pushes it on its way from `before`, straight away from itself.

    A panel that would pass through the head in one long step stays on its side of it.
    """
    was, local = seen_from(before, head), seen_from(panel.pose, head)
    if was[2] * local[2] < 0 and _covers(panel, was, local, was[2] / (was[2] - local[2])):
        return _shifted(panel, (0.0, 0.0, local[2] - math.copysign(HEAD_ROOM_M, was[2])))
    nearest = _nearest(panel, local)
    distance = math.dist(local, nearest)
    if distance >= HEAD_ROOM_M:
        return panel
    if distance < _PLANE_M:
        return _shifted(panel, (0.0, 0.0, -HEAD_ROOM_M))
    push = HEAD_ROOM_M / distance - 1.0
    x, y, z = (push * (nearest[axis] - local[axis]) for axis in range(3))
    return _shifted(panel, (x, y, z))


def _shifted(panel: Panel, step: Vec3) -> Panel:
    """The panel, moved by `step` metres of its own frame."""
    pose = panel.pose
    return Panel(Pose(moved(pose, step), pose.orientation), panel.size)
