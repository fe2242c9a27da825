"""A file with another content: all of it, or as it was."""

import os
import tempfile
from pathlib import Path

USUAL = 0o644


def replaced(path: Path, content: bytes) -> None:
    """Put a file in the place of another at once; nobody ever sees half of it. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else USUAL)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
