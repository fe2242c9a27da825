"""Saved facts from files, folders and standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cudadoctor import factfile
from cudadoctor.facts import Machine

MOST_BYTES = 32 << 20
RECORDING = "recording.json"
"""What makes a folder a recording: it is replayed as one machine."""


class SavedError(ValueError):
    """What was named with --from cannot be read, in one sentence."""


def machines(names: tuple[str, ...]) -> Iterator[tuple[str, Machine]]:
    """Every machine behind the names; a folder stands for its files, - for standard input."""
    for name in names:
        if name != "-" and (Path(name) / RECORDING).is_file():
            yield name, _replayed(name)
            continue
        for path in _files(name):
            yield path, _machine(path)


def _replayed(folder: str) -> Machine:
    """The machine that `cudadoctor record` asked; a question that it lacks becomes a gap."""
    from cudadoctor import replay

    try:
        return replay.replay(folder, strict=False)
    except replay.ReplayError as error:
        raise SavedError(f"--from {error}") from error


def _files(name: str) -> list[str]:
    if name != "-" and Path(name).is_dir():
        found = sorted(str(path) for path in Path(name).iterdir() if path.is_file())
        if not found:
            raise SavedError(f"--from {name}: the folder holds no file")
        return found
    return [name]


def _machine(name: str) -> Machine:
    data = _bytes(name)
    try:
        return factfile.loads(data)
    except factfile.FactsError as error:
        raise SavedError(
            f"--from {name}: {error}; save one with `cudadoctor facts --output FILE`"
        ) from error


def _bytes(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SavedError(f"--from {name} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise SavedError(f"--from {name} is larger than {MOST_BYTES >> 20} MiB: cut it down")
    if not data.strip():
        raise SavedError(f"--from {name} is empty")
    return data
