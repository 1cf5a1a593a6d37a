import pytest

from app.preview.actions import KEY_TABLE, Action, Kind, Row, action_for_key, help_lines


def test_no_key_has_two_meanings() -> None:
    keys = [key for row in KEY_TABLE for key in row.keys]
    assert len(keys) == len(set(keys))
    assert all(key == key.lower() for key in keys)


def test_every_kind_of_action_has_a_key() -> None:
    assert {action.kind for row in KEY_TABLE for action in row.keys.values()} == set(Kind)


@pytest.mark.parametrize(
    ("key", "action"),
    [
        *((str(n), Action(Kind.CHUNKS, n)) for n in range(1, 9)),
        ("9", Action(Kind.CHUNKS, 12)),
        ("0", Action(Kind.CHUNKS, 16)),
        ("[", Action(Kind.IN_FLIGHT, -1)),
        ("]", Action(Kind.IN_FLIGHT, 1)),
        ("p", Action(Kind.POLICY)),
        ("t", Action(Kind.TRAIN)),
        ("j", Action(Kind.JOB)),
        ("v", Action(Kind.COMPARE)),
        ("m", Action(Kind.VIEW)),
        ("h", Action(Kind.HUD)),
        ("r", Action(Kind.RECORD)),
        ("s", Action(Kind.SAVE)),
        ("f1", Action(Kind.HELP)),
        ("escape", Action(Kind.QUIT)),
    ],
)
def test_keys_ask_for_what_is_promised(key: str, action: Action) -> None:
    assert action_for_key(key) == action
    assert action_for_key(key.upper()) == action


@pytest.mark.parametrize("key", ["", "q", "f2", "10", " ", "\x13"])
def test_other_keys_ask_for_nothing(key: str) -> None:
    assert action_for_key(key) is None


def test_help_names_every_key_and_says_what_it_does() -> None:
    lines = help_lines()
    assert len(lines) == len(KEY_TABLE)
    for row, line in zip(KEY_TABLE, lines, strict=True):
        label, _, text = line.partition(": ")
        assert text == row.help != ""
        if "-" in label:
            first, last = label.split("-")
            named = [chr(code) for code in range(ord(first), ord(last) + 1)]
        else:
            named = [{"Esc": "escape"}.get(name, name.lower()) for name in label.split()]
        assert named == list(row.keys)


def test_a_new_row_shows_up_by_itself() -> None:
    row = Row({"a": Action(Kind.HELP), "b": Action(Kind.HUD), "c": Action(Kind.SAVE)}, "things")
    assert row.label == "A-C"
