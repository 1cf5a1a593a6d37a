import re

import pytest

from app.preview.actions import Kind
from app.xr.openxr import bindings


@pytest.mark.parametrize("profile", bindings.PROFILES, ids=lambda profile: profile.path)
def test_bindings_are_well_formed(profile: bindings.Profile) -> None:
    inputs = profile.inputs()
    known = {*bindings.TITLES, bindings.GRAB, bindings.GRIP, bindings.AIM, bindings.TICK}
    for action, path in inputs:
        assert action in known
        assert re.fullmatch(r"/user/hand/(left|right)/(input|output)(/[a-z_]+){1,2}", path)
    pressed = [path for action, path in inputs if action in bindings.TITLES]
    held = [path for action, path in inputs if action == bindings.GRAB]
    assert len(set(pressed + held)) == len(pressed + held), "one input, one meaning"
    assert len(held) == 2


def test_every_button_is_somewhere() -> None:
    for profile in bindings.PROFILES[1:-1]:
        optional = {bindings.COMPARE}  # not every controller has one more
        assert set(profile.buttons) | optional == set(bindings.TITLES)
    assert sum(bindings.COMPARE in profile.buttons for profile in bindings.PROFILES) == 3
    assert {path.path.split("/")[2] for path in bindings.PROFILES} == {
        "khr",
        "oculus",
        "valve",
        "microsoft",
        "htc",
        "ext",
    }


def test_chunks_climb_and_descend_the_ladder() -> None:
    def walk(button: str, start: int, steps: int) -> list[int]:
        visited = [start]
        for _ in range(steps):
            action = bindings.action_for_button(button, visited[-1])
            assert action is not None and action.kind is Kind.CHUNKS
            visited.append(action.value)
        return visited

    ladder = list(bindings.CHUNK_LADDER)
    assert walk(bindings.CHUNKS_UP, ladder[0], len(ladder)) == [*ladder, ladder[0]]
    assert walk(bindings.CHUNKS_DOWN, ladder[-1], len(ladder)) == [*ladder[::-1], ladder[-1]]
    assert walk(bindings.CHUNKS_UP, 5, 1) == [5, 6]
    assert walk(bindings.CHUNKS_DOWN, 5, 1) == [5, 4]


def test_other_buttons() -> None:
    kinds = {name: bindings.action_for_button(name, 4) for name in bindings.TITLES}
    assert kinds["train"].kind is Kind.TRAIN
    assert kinds["policy"].kind is Kind.POLICY
    assert kinds["record"].kind is Kind.RECORD
    assert kinds[bindings.RESET_VIEW].kind is Kind.RESET_VIEW
    assert kinds[bindings.COMPARE].kind is Kind.COMPARE
