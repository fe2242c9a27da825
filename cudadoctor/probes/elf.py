"""What the dynamic loader reads of a shared library: a few hundred bytes, however large the file.

Files come from sick machines: cut off, empty, of another processor, or no libraries at all. None
of that raises; every read is bounded, and of what cannot be understood `Elf.why` says the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import takewhile
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from cudadoctor.host.local import Host
from cudadoctor.model.machine import OptInt, OptStr, Strings

ReadAt = Callable[[int, int], bytes]
"""Bytes of a file: (offset, size) -> at most that many bytes, fewer at its end."""

MOST_HEADERS = 4096
MOST_DYNAMIC = 1 << 16
MOST_TEXT = 1 << 16
MOST_SECTIONS = 1 << 20

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_FLAGS_1, _NODEFLIB = 0x6FFFFFFB, 0x800


class Elf(Struct, frozen=True, kw_only=True):
    """The dynamic section in the loader's terms. machine: e_machine (62 is x86-64).

    why: of a file that no loader would take, what is wrong with it; the rest is not known then.
    """

    bits: int = 0
    little: bool = False
    machine: int = 0
    soname: OptStr = None
    needed: Strings = ()
    rpath: OptStr = None
    runpath: OptStr = None
    interpreter: OptStr = None
    no_default: bool = False
    why: OptStr = None

    @property
    def kind(self) -> tuple[int, bool, int]:
        """What must be equal for two files to live in one process."""
        return self.bits, self.little, self.machine


class Section(NamedTuple):
    """A section of the file: where it lies and how long it is."""

    offset: int
    size: int


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def read_elf(host: Host, path: str) -> Elf | None:
    """The dynamic section of a file; None where it is not there or not readable."""
    first = host.read(path, 1024)
    if first.missing or (first.why or "").startswith("EACCES"):
        return None
    if first.why:
        return Elf(why=f"cannot read file data: {first.why}")

    def at(offset: int, size: int) -> bytes:
        if offset + size <= len(first.data):
            return first.data[offset : offset + size]
        return host.read(path, size, offset).data

    return parse(at)


def find_section(host: Host, path: str, name: str) -> Section | None:
    """Where the section of that name lies in a file; None where there is none."""
    return section(lambda offset, size: host.read(path, size, offset).data, name)


def parse(at: ReadAt) -> Elf:
    """The dynamic section behind a reader."""
    try:
        return _parse(_File(at))
    except ValueError as error:
        return Elf(why=str(error))  # the words of the dynamic loader
    except (struct.error, OverflowError):
        return Elf(why="file too short")


def section(at: ReadAt, name: str) -> Section | None:
    """Where the section of that name lies behind a reader; None where there is none."""
    try:
        return _section(_File(at), name.encode() + b"\0")
    except (ValueError, struct.error, OverflowError):
        return None


@lru_cache(maxsize=4)
def _shapes(bits: int, little: bool) -> tuple[struct.Struct, ...]:
    """Of the header, a segment, a section and a dynamic tag."""
    shapes = ("16xHHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "iI")
    if bits == 64:
        shapes = ("16xHHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "qQ")
    return tuple(struct.Struct(("<" if little else ">") + shape) for shape in shapes)


class _File:
    """A file whose word size and byte order are known."""

    def __init__(self, at: ReadAt) -> None:
        ident = at(0, 64)
        if len(ident) < 16:
            raise ValueError("file too short")
        if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise ValueError("invalid ELF header")
        self.at = at
        self.bits, self.little = 32 * ident[4], ident[5] == 1
        header, self.segment, self.section, self.tag = _shapes(self.bits, self.little)
        self.header: tuple[int, ...] = header.unpack_from(ident)

    def rows(self, shape: struct.Struct, offset: int, size: int) -> Iterator[tuple[int, ...]]:
        """The structures that lie there one after the other."""
        data = self.at(offset, size)
        return shape.iter_unpack(data[: len(data) // shape.size * shape.size])


def _parse(file: _File) -> Elf:
    offset, size, count = file.header[4], file.header[8], file.header[9]
    if size != file.segment.size or count > MOST_HEADERS:
        raise ValueError("ELF file's phentsize not the expected size")
    late = int(file.bits == 64)  # there the flags stand before the offset, not at the end
    rows = file.rows(file.segment, offset, size * count)
    segments = [_Segment(row[0], row[1 + late], row[2 + late], row[4 + late]) for row in rows]
    first = {segment.kind: segment for segment in reversed(segments)}
    if (dynamic := first.get(_DYNAMIC)) is None:
        raise ValueError("object file has no dynamic section")
    found = file.rows(file.tag, dynamic.offset, min(dynamic.size, MOST_DYNAMIC))
    tags = [(row[0], row[1]) for row in takewhile(itemgetter(0), found)]
    last = dict(tags)  # of every tag but DT_NEEDED the loader keeps the last
    text = _texts(file.at, _place_of(segments, last.get(_STRTAB, 0)))
    interp = first.get(_INTERP)
    return Elf(
        bits=file.bits,
        little=file.little,
        machine=file.header[1],
        soname=text(last.get(_SONAME)),
        needed=tuple(text(value) or "" for tag, value in tags if tag == _NEEDED),
        rpath=text(last.get(_RPATH)),
        runpath=text(last.get(_RUNPATH)),
        interpreter=_name(file.at(interp.offset, min(interp.size, 4096))) if interp else None,
        no_default=bool(last.get(_FLAGS_1, 0) & _NODEFLIB),
    )


def _place_of(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _LOAD and 0 <= address - segment.address < segment.size:
            return address - segment.address + segment.offset
    raise ValueError("the ELF string table is not in any segment")


def _texts(at: ReadAt, table: int) -> Callable[[OptInt], OptStr]:
    """Looks strings up in a table of any size: names lie close together, so windows are kept."""
    windows: list[tuple[int, bytes]] = []

    def text(index: OptInt) -> OptStr:
        if index is None:
            return None
        for begin, data in windows:
            if begin <= index < begin + len(data) and b"\0" in data[index - begin :]:
                return _name(data[index - begin :])
        data = at(table + index, 2048)
        if b"\0" not in data:
            data = at(table + index, MOST_TEXT)
        windows.append((index, data))
        return _name(data)

    return text


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _section(file: _File, name: bytes) -> Section | None:
    offset, size, count, names_at = file.header[5], *file.header[10:13]
    if size != file.section.size or not offset:
        return None
    rows = list(file.rows(file.section, offset, min(size * count, MOST_SECTIONS)))
    if names_at >= len(rows):
        return None
    names = file.at(rows[names_at][4], min(rows[names_at][5], MOST_SECTIONS))
    found = (row for row in rows if names.startswith(name, row[0]))
    return next((Section(row[4], row[5]) for row in found), None)
