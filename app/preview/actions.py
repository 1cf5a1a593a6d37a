"""What the viewer may ask for, and the one table of keys that ask for it.

Knows nothing of the window: a controller may send the same actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an action changes."""

    CHUNKS = "chunks"
    """Cut each job into `value` chunks."""
    IN_FLIGHT = "in_flight"
    """Change the in-flight bound by `value`."""
    POLICY = "policy"
    """Next chunk policy."""
    TRAIN = "train"
    """Training on or off."""
    JOB = "job"
    """Next job: train, infer, both."""
    COMPARE = "compare"
    """Paint with the weights of the start, or with the newest ones."""
    VIEW = "view"
    """Both eyes or the left one in the window."""
    HUD = "hud"
    """HUD on or off."""
    RECORD = "record"
    """Start or stop recording."""
    SAVE = "save"
    """Save a checkpoint."""
    HELP = "help"
    """Key help on or off."""
    RESET_VIEW = "reset_view"
    """Panels back to their places."""
    QUIT = "quit"
    """Leave."""


@dataclass(frozen=True, slots=True)
class Action:
    """One wish of the viewer. `value` has a meaning for `CHUNKS` and `IN_FLIGHT` only."""

    kind: Kind
    value: int = 0


@dataclass(frozen=True)
class Row:
    """A line of the key table: each key's action, and one help text for all of them.

    Keys are named by the character they type, in lower case, or as "f1" and "escape".
    """

    keys: dict[str, Action]
    help: str

    @property
    def label(self) -> str:
        """The keys as they are printed on a keyboard: "P", "1-8"."""
        names = [{"escape": "Esc"}.get(key, key.upper()) for key in self.keys]
        return f"{names[0]}-{names[-1]}" if len(names) > 2 else " ".join(names)


KEY_TABLE = (
    Row({str(n): Action(Kind.CHUNKS, n) for n in range(1, 9)}, "chunks per job"),
    Row({"9": Action(Kind.CHUNKS, 12), "0": Action(Kind.CHUNKS, 16)}, "12 or 16 chunks per job"),
    Row({"[": Action(Kind.IN_FLIGHT, -1), "]": Action(Kind.IN_FLIGHT, +1)}, "in-flight bound - +"),
    Row({"p": Action(Kind.POLICY)}, "next chunk policy"),
    Row({"t": Action(Kind.TRAIN)}, "training on or off"),
    Row({"j": Action(Kind.JOB)}, "next job: train, infer, both"),
    Row({"v": Action(Kind.COMPARE)}, "painted before learning, or after"),
    Row({"m": Action(Kind.VIEW)}, "mirror both eyes or the left one"),
    Row({"h": Action(Kind.HUD)}, "HUD on or off"),
    Row({"r": Action(Kind.RECORD)}, "start or stop recording"),
    Row({"s": Action(Kind.SAVE)}, "save a checkpoint"),
    Row({"c": Action(Kind.RESET_VIEW)}, "panels back to their places"),
    Row({"f1": Action(Kind.HELP)}, "this help on or off"),
    Row({"escape": Action(Kind.QUIT)}, "quit"),
)

_ACTIONS = {key: action for row in KEY_TABLE for key, action in row.keys.items()}


def action_for_key(key: str) -> Action | None:
    """The action of a key, named as in the table, case aside; None when it has none."""
    return _ACTIONS.get(key.lower())


def help_lines() -> list[str]:
    """One line per row of the table, for the screen and for `--help`."""
    return [f"{row.label}: {row.help}" for row in KEY_TABLE]
