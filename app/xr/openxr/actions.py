"""Controllers and hands: one action set, its suggested bindings, and what they say each frame."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

from app.xr.driver import XrError
from app.xr.hands import Hand
from app.xr.openxr.binding import told, xr
from app.xr.openxr.bindings import AIM, GRAB, GRIP, HANDS, PROFILES, TICK, TITLES, Profile
from app.xr.openxr.instance import XrInstance, quietly
from app.xr.openxr.session import XrSession
from app.xr.openxr.spaces import locate

LOG = logging.getLogger(__name__)

TICK_NS, TICK_AMPLITUDE = 15_000_000, 0.6


class ActionInput:
    """The action set of one session; attached for good when it is made."""

    def __init__(self, instance: XrInstance, session: XrSession) -> None:
        self._instance, self._session = instance, session
        self._hands = [self._path(hand.rstrip("/")) for hand in HANDS]
        with told("creating the actions"):
            self._set: Any = xr.create_action_set(
                instance.handle, xr.ActionSetCreateInfo("dinovision", "DinoVision", 0)
            )
            kinds = xr.ActionType
            self._actions = {
                name: self._create(name, title, kinds.BOOLEAN_INPUT)
                for name, title in TITLES.items()
            }
            self._actions |= {
                GRAB: self._create(GRAB, "Grab", kinds.BOOLEAN_INPUT, self._hands),
                GRIP: self._create(GRIP, "Hand", kinds.POSE_INPUT, self._hands),
                AIM: self._create(AIM, "Pointer", kinds.POSE_INPUT, self._hands),
                TICK: self._create(TICK, "Tick", kinds.VIBRATION_OUTPUT, self._hands),
            }
        for profile in PROFILES:
            if profile.extension is None or instance.has(profile.extension):
                self._suggest(profile)
        with told("attaching the actions"):
            xr.attach_session_action_sets(
                session.handle, xr.SessionActionSetsAttachInfo(action_sets=[self._set])
            )
            self._spaces = [
                {
                    name: xr.create_action_space(
                        session.handle,
                        xr.ActionSpaceCreateInfo(self._actions[name], subaction_path=hand),
                    )
                    for name in (GRIP, AIM)
                }
                for hand in self._hands
            ]
        self._active = xr.ActionsSyncInfo(
            active_action_sets=[xr.ActiveActionSet(self._set, xr.NULL_PATH)]
        )

    def _path(self, text: str) -> Any:
        with told(f"naming {text}"):
            return xr.string_to_path(self._instance.handle, text)

    def _create(self, name: str, title: str, kind: Any, hands: list[Any] | None = None) -> Any:
        return xr.create_action(
            self._set,
            xr.ActionCreateInfo(
                action_name=name,
                action_type=kind,
                subaction_paths=hands or [],
                localized_action_name=title,
            ),
        )

    def _suggest(self, profile: Profile) -> None:
        suggested = [
            xr.ActionSuggestedBinding(self._actions[name], self._path(path))
            for name, path in profile.inputs()
        ]
        try:
            with told(f"suggesting bindings for {profile.path}"):
                xr.suggest_interaction_profile_bindings(
                    self._instance.handle,
                    xr.InteractionProfileSuggestedBinding(
                        interaction_profile=self._path(profile.path),
                        suggested_bindings=suggested,
                    ),
                )
        except XrError as error:
            # A runtime need not know every controller, and the others must still work.
            if not isinstance(error.__cause__, xr.PathUnsupportedError):
                raise
            LOG.debug("%s", error)

    def sync(self) -> list[str]:
        """The buttons (see `TITLES`) pressed since the last call; none without input focus.

        A press is answered with a tick in both hands.
        """
        if not self._session.life.focused:
            return []
        try:
            with told("asking for input"):
                xr.sync_actions(self._session.handle, self._active)
        except XrError as error:
            if isinstance(error.__cause__, xr.SessionNotFocused):
                return []
            raise
        pressed = [name for name in TITLES if self._pressed(name)]
        if pressed:
            self._tick()
        return pressed

    def hands(self, space: Any, xr_time: int) -> tuple[Hand, Hand]:
        """Left and right hand in `space` at a positive XrTime, as of the last `sync`."""
        left, right = (
            Hand(
                locate(spaces[GRIP], space, xr_time),
                locate(spaces[AIM], space, xr_time),
                bool(self._state(GRAB, hand).current_state),
            )
            for spaces, hand in zip(self._spaces, self._hands, strict=True)
        )
        return left, right

    def _pressed(self, name: str) -> bool:
        state = self._state(name, xr.NULL_PATH)
        return bool(state.is_active and state.changed_since_last_sync and state.current_state)

    def _state(self, name: str, hand: Any) -> Any:
        with told("reading an action"):
            return xr.get_action_state_boolean(
                self._session.handle, xr.ActionStateGetInfo(self._actions[name], hand)
            )

    def _tick(self) -> None:
        """A short buzz in both hands: the press was understood."""
        buzz = xr.HapticVibration(duration=TICK_NS, frequency=0.0, amplitude=TICK_AMPLITUDE)
        with told("ticking"):
            xr.apply_haptic_feedback(
                self._session.handle,
                xr.HapticActionInfo(self._actions[TICK], xr.NULL_PATH),
                ctypes.cast(ctypes.pointer(buzz), ctypes.POINTER(xr.HapticBaseHeader)).contents,
            )

    def close(self) -> None:
        """Destroy the action set; safe to call twice."""
        if self._set is not None:
            quietly(xr.destroy_action_set, self._set)
        self._set = None
