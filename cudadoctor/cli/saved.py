"""Machines out of files, folders and standard input: saved facts, recordings and pasted reports."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.cli.speech import say, spoken
from cudadoctor.model import factfile
from cudadoctor.model.machine import Gap, Machine, OptStr, Strings
from cudadoctor.model.trust import Foreign, foreign

MOST_BYTES = factfile.MOST_BYTES
_END_BYTES = 4 << 20
_PART_BYTES = 1 << 16
"""Of what is larger, this much of the beginning and of the end is read."""
RECORDING = "recording.json"
"""What makes a folder a recording: it is replayed as one machine."""
_START = re.compile(r'\{\s{0,20}"(?:schema|cudadoctor)"\s{0,5}:')
_QUOTED = re.compile(r"(?m)^[ \t]{0,8}>[ ]?")
MOST_STARTS = 20
"""Beginnings that are tried: a document is one of the first, or there is none."""
_FACTS = re.compile(rb'\s*\{\s*"(?:schema|cudadoctor)"')
_MARK = b"\xef\xbb\xbf"
"""What Windows' editors write at the beginning of UTF-8."""


class SavedError(ValueError):
    """What was named with --from cannot be read, in one sentence."""


class Saved(Struct, frozen=True):
    """A machine behind --from, or why there is none. name: the file it came from."""

    name: str
    machine: Foreign | None = None
    error: OptStr = None


def are_many(names: Strings) -> bool:
    """Whether the names stand for more than one machine: several of them, or a folder."""
    return len(names) > 1 or any(map(_is_folder, names))


def machines(names: Strings) -> Iterator[Saved]:
    """Every machine behind the names, one after the other; a folder stands for its files.

    Raises SavedError where a name leads nowhere. Of several files, one that cannot be read says so
    and does not stop the others.
    """
    for path in (path for name in names for path in _files(name)):
        try:
            yield Saved(path, foreign(_machine(path)))
        except SavedError as error:
            if not are_many(names):
                raise
            yield Saved(path, error=str(error))


def _is_folder(name: str) -> bool:
    return name != "-" and Path(name).is_dir() and not _is_recording(name)


def _is_recording(name: str) -> bool:
    return name != "-" and (Path(name) / RECORDING).is_file()


def _files(name: str) -> Iterator[str]:
    if not _is_folder(name):
        yield name
        return
    found = False
    for folder, folders, files in os.walk(name):
        recordings = [name for name in folders if _is_recording(f"{folder}/{name}")]
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in recordings)
        for file in sorted([*files, *recordings]):
            path = Path(folder, file)
            if file[0] != "." and (file in recordings or path.is_file()):
                found = True
                yield str(path)
    if not found:
        raise SavedError(say("{path} is empty; specify a folder that contains reports", path=name))


def _machine(name: str) -> Machine:
    if _is_recording(name):
        from cudadoctor.host import recording

        try:  # a question that was not recorded becomes a gap
            return recording.replay(name, strict=False)
        except recording.ReplayError as error:
            raise SavedError(spoken(str(error))) from error
    data, whole = _bytes(name)
    if not _FACTS.match(data.removeprefix(_MARK)):
        return _embedded(data) or _reported(name, data, whole=whole)
    if not whole:
        raise SavedError(f"{name}: {spoken(factfile.TOO_LONG)}")
    try:
        return factfile.loads(data.removeprefix(_MARK))
    except factfile.FactsError as error:
        if machine := _embedded(data):
            return machine
        save = say("To save the facts, run: cudadoctor facts -o FILE")
        raise SavedError(f"{name}: {spoken(str(error)).rstrip('.')}. {save}") from error


def _embedded(data: bytes) -> Machine | None:
    """The facts that stand in other text, or in another encoding."""
    from cudadoctor.reports.document import NotTextError

    try:
        return facts_in(data)
    except NotTextError:
        return None


def facts_in(data: bytes) -> Machine | None:
    """The machine of the first facts document, or check, in a text; None where there is none.

    Several documents one behind the other are a list of reports, not one.
    """
    if b'"schema"' not in data.replace(b"\0", b""):
        return None
    from cudadoctor.reports.document import decoded

    text = decoded(data)
    return _first(text) or (_first(_QUOTED.sub("", text)) if ">" in text else None)


def _first(text: str) -> Machine | None:
    decoder = json.JSONDecoder()
    for found in list(_START.finditer(text))[:MOST_STARTS]:
        try:
            plain, end = decoder.raw_decode(text, found.start())
            machine = factfile.from_document(plain)
        except (ValueError, RecursionError):
            continue
        return None if _START.match(text[end : end + 80].lstrip()) else machine
    return None


def _reported(name: str, data: bytes, *, whole: bool) -> Machine:
    from cudadoctor import knowledge
    from cudadoctor.reports.document import NotTextError
    from cudadoctor.reports.reading import read_report

    try:
        machine = read_report(data, knowledge.load())
    except NotTextError as error:
        raise SavedError(
            say(
                "{path} contains neither text nor saved facts; provide the output of a program",
                path=name,
            )
        ) from error
    if whole:
        return machine
    cut = (
        f"the report is larger than {MOST_BYTES >> 20} MiB, so the middle of the report was not "
        "read"
    )
    return replace(machine, gaps=(*machine.gaps, Gap(fact="symptoms", why=cut, asked=False)))


def _bytes(name: str) -> tuple[bytes, bool]:
    """The contents of the file, and whether that is all of it."""
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            data, whole = _ends(file)
    except OSError as error:
        raise SavedError(
            say("cannot read {path}: {reason}", path=name, reason=error.strerror)
        ) from error
    if not data.strip():
        raise SavedError(say("{path} is empty; provide the output of a program", path=name))
    return data, whole


def _ends(file: Any) -> tuple[bytes, bool]:
    """Read in parts: Python handles a signal between them, but not within one long read."""
    parts = iter(lambda: file.read1(_PART_BYTES), b"")
    data = bytearray()
    for part in parts:
        data += part
        if len(data) > MOST_BYTES:
            break
    else:
        return bytes(data), True
    tail = bytes(data[-_END_BYTES:])
    for part in parts:
        tail = (tail + part)[-_END_BYTES:]
    return bytes(data[:_END_BYTES]) + b"\n" + tail, False
