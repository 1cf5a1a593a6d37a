"""Types of the WebGPU library's header, all parsed at once.

cffi parses the name of a type with the header's hundreds of type names before it, about 15 ms for
each name that a process uses, and opening a device and a session takes forty of them. A single
signature that has them all costs as much as two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN = ("char", "uint8_t", "uintptr_t")


def know_types(ffi: Any) -> None:
    """Let `ffi` find pointers to and arrays of the header's structs and handles, and of bytes,
    without parsing; harmless when called again. Other types are parsed as before.
    """
    if "new" in vars(ffi):
        return
    aliases, tags, _ = ffi.list_types()
    names = [name for name in aliases if name in tags or f"{name}Impl" in tags] + [*PLAIN]
    signature = ffi.typeof(f"void (*)({', '.join(f'{n} *, {n} (*)[]' for n in names)})")
    known: dict[str, Any] = {}
    for name, pointer, array in zip(names, signature.args[::2], signature.args[1::2], strict=True):
        known |= {f"{name} *": pointer, f"{name}[]": array.item, f"{name} []": array.item}
    known |= {name: known[f"{name} *"].item for name in PLAIN}
    for function in ("new", "cast", "from_buffer"):
        setattr(ffi, function, _knowing(getattr(ffi, function), known))


def _knowing(function: Callable[..., Any], known: dict[str, Any]) -> Callable[..., Any]:
    def call(type: Any, *args: Any, **options: Any) -> Any:
        return function(known.get(type, type) if isinstance(type, str) else type, *args, **options)

    return call
