"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8) in one step.

    A reader, or a crash at any moment, sees the old file or the new one. Raises `OSError`; then
    the old file is whole and no temporary file is left.
    """
    with open_atomic(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece; it replaces `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
