"""Types of the WebGPU library's header are found without parsing, and are the parsed ones."""

from typing import Any

import pytest
from cffi import FFI

from engine.header_types import know_types

HEADER = """
typedef struct Extent { int width; char name[8]; } Extent;
typedef struct TextureImpl *Texture;
typedef enum Kind { First = 3 } Kind;
"""


def test_known_types_are_those_that_parsing_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    ffi = FFI()
    ffi.cdef(HEADER)
    know_types(ffi)
    made = {
        "Extent *": ffi.new("Extent *", {"width": 7}),
        "Extent[]": ffi.new("Extent[]", 2),
        "Texture[]": ffi.new("Texture[]", [ffi.NULL] * 3),
        "uintptr_t": ffi.cast("uintptr_t", 2**40),
        "uint8_t *": ffi.cast("uint8_t *", 64),
    }
    for text, value in made.items():
        assert ffi.typeof(value) is ffi.typeof(text)
    assert made["Extent *"].width == 7 and len(made["Texture[]"]) == 3
    data = bytearray(b"\1\2\3")
    assert list(ffi.from_buffer("uint8_t []", data)) == [1, 2, 3]
    assert len(ffi.from_buffer(data)) == 3, "the type may be left out"

    def refuse(*_: Any) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("cffi.cparser.Parser._parse", refuse)
    know_types(ffi)
    for text in ("Texture *", "Extent *", "char[]", "uint8_t[]"):
        ffi.new(text, *([4] if text.endswith("[]") else []))
    with pytest.raises(AssertionError, match="parsed"):
        ffi.new("Kind *")
