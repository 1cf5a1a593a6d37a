"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8) in one step.

    A reader, or a crash at any moment, sees the old file or the new one. Raises `OSError`; then
    the old file is whole and no temporary file is left.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
