"""Which button of which controller does what: one table, and no more knowledge of OpenXR than that.

Names of profiles and inputs are those of the OpenXR 1.1 specification, 6.4 Interaction Profile
Paths. Left and right differ: the left hand sets the cut, the right hand the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.preview.actions import Action, Kind

LEFT, RIGHT = "/user/hand/left/", "/user/hand/right/"
HANDS = (LEFT, RIGHT)

CHUNKS_UP, CHUNKS_DOWN = "chunks_up", "chunks_down"
RESET_VIEW, COMPARE = "reset_view", "compare"
TITLES = {
    CHUNKS_UP: "More chunks per job",
    CHUNKS_DOWN: "Fewer chunks per job",
    "policy": "Next chunk policy",
    "train": "Training on or off",
    "record": "Start or stop recording",
    COMPARE: "Painted before learning, or after",
    RESET_VIEW: "Reset the view",
}
"""Buttons and what a runtime's settings call them."""

CHUNK_LADDER = (1, 2, 3, 4, 6, 8, 12, 16)


def action_for_button(name: str, chunks: int) -> Action:
    """What a pressed button asks the application for, which now cuts jobs into `chunks`."""
    if name == CHUNKS_UP:
        return Action(Kind.CHUNKS, next((n for n in CHUNK_LADDER if n > chunks), CHUNK_LADDER[0]))
    if name == CHUNKS_DOWN:
        fewer = [n for n in CHUNK_LADDER if n < chunks]
        return Action(Kind.CHUNKS, fewer[-1] if fewer else CHUNK_LADDER[-1])
    return Action(Kind(name))


GRAB, GRIP, AIM, TICK = "grab", "grip", "aim", "tick"


@dataclass(frozen=True)
class Profile:
    """Suggested bindings of one controller. `grab` and `haptic` are inputs that each hand has."""

    path: str
    grab: str
    buttons: dict[str, str] = field(default_factory=dict)
    haptic: str | None = "output/haptic"
    extension: str | None = None
    """The extension without which the runtime does not know the profile."""

    def inputs(self) -> list[tuple[str, str]]:
        """(action, full path) of every binding."""
        each = {GRAB: self.grab, GRIP: "input/grip/pose", AIM: "input/aim/pose"}
        if self.haptic:
            each[TICK] = self.haptic
        of_hands = [(action, hand + path) for action, path in each.items() for hand in HANDS]
        return [*of_hands, *self.buttons.items()]


PROFILES = (
    Profile(
        "/interaction_profiles/khr/simple_controller",
        grab="input/select/click",
        buttons={CHUNKS_UP: LEFT + "input/menu/click", "train": RIGHT + "input/menu/click"},
    ),
    Profile(
        "/interaction_profiles/oculus/touch_controller",
        grab="input/squeeze/value",
        buttons={
            CHUNKS_UP: LEFT + "input/y/click",
            CHUNKS_DOWN: LEFT + "input/x/click",
            "record": LEFT + "input/thumbstick/click",
            COMPARE: LEFT + "input/menu/click",
            "policy": RIGHT + "input/b/click",
            "train": RIGHT + "input/a/click",
            RESET_VIEW: RIGHT + "input/thumbstick/click",
        },
    ),
    Profile(
        "/interaction_profiles/valve/index_controller",
        grab="input/trigger/click",
        buttons={
            CHUNKS_UP: LEFT + "input/b/click",
            CHUNKS_DOWN: LEFT + "input/a/click",
            "record": LEFT + "input/thumbstick/click",
            COMPARE: LEFT + "input/trackpad/force",
            "policy": RIGHT + "input/b/click",
            "train": RIGHT + "input/a/click",
            RESET_VIEW: RIGHT + "input/thumbstick/click",
        },
    ),
    Profile(
        "/interaction_profiles/microsoft/motion_controller",
        grab="input/squeeze/click",
        buttons={
            CHUNKS_UP: LEFT + "input/trackpad/click",
            CHUNKS_DOWN: LEFT + "input/thumbstick/click",
            "record": LEFT + "input/menu/click",
            COMPARE: LEFT + "input/trigger/value",
            "policy": RIGHT + "input/menu/click",
            "train": RIGHT + "input/trackpad/click",
            RESET_VIEW: RIGHT + "input/thumbstick/click",
        },
    ),
    Profile(
        "/interaction_profiles/htc/vive_controller",
        grab="input/trigger/click",
        buttons={
            CHUNKS_UP: LEFT + "input/trackpad/click",
            CHUNKS_DOWN: LEFT + "input/squeeze/click",
            "record": LEFT + "input/menu/click",
            "policy": RIGHT + "input/menu/click",
            "train": RIGHT + "input/trackpad/click",
            RESET_VIEW: RIGHT + "input/squeeze/click",
        },
    ),
    Profile(
        "/interaction_profiles/ext/hand_interaction_ext",
        grab="input/pinch_ext/value",
        haptic=None,
        extension="XR_EXT_hand_interaction",
    ),
)
