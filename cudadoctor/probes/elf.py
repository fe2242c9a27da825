"""What the dynamic loader reads of a shared library: a few hundred bytes, however large the file.

Files come from sick machines: cut off, empty, of another processor, or no libraries at all. None
of that raises; every read is bounded, and what cannot be understood is `Broken` with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from cudadoctor.host.local import Host

ReadAt = Callable[[int, int], bytes]
"""Bytes of a file: (offset, size) -> at most that many bytes, fewer at its end."""

MOST_HEADERS = 4096
MOST_DYNAMIC = 1 << 16
MOST_TEXT = 1 << 16
MOST_SECTIONS = 1 << 20

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_FLAGS_1, _NODEFLIB = 0x6FFFFFFB, 0x800


class Elf(msgspec.Struct, frozen=True, kw_only=True):
    """The dynamic section in the loader's terms. machine: e_machine (62 is x86-64)."""

    bits: int
    little: bool
    machine: int
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    runpath: str | None = None
    interpreter: str | None = None
    no_default: bool = False

    @property
    def kind(self) -> tuple[int, bool, int]:
        """What must be equal for two files to live in one process."""
        return self.bits, self.little, self.machine


class Broken(msgspec.Struct, frozen=True):
    """No library that a loader would take, and why."""

    why: str


class Section(NamedTuple):
    """A section of the file: where it lies and how long it is."""

    offset: int
    size: int


class _Layout(NamedTuple):
    """The shapes of the structures: they depend on word size and byte order."""

    header: struct.Struct
    program: struct.Struct
    section: struct.Struct
    dynamic: struct.Struct
    little: bool
    bits: int


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def read_elf(host: Host, path: str) -> Elf | Broken | None:
    """The dynamic section of a file; None where it is not there or not readable."""
    first = host.read(path, 1024)
    if first.missing or (first.why or "").startswith("EACCES"):
        return None
    if first.why:
        return Broken(f"cannot read file data: {first.why}")

    def at(offset: int, size: int) -> bytes:
        if offset + size <= len(first.data):
            return first.data[offset : offset + size]
        return host.read(path, size, offset).data

    return parse(at)


def find_section(host: Host, path: str, name: str) -> Section | None:
    """Where the section of that name lies in a file; None where there is none."""
    return section(lambda offset, size: host.read(path, size, offset).data, name)


def parse(at: ReadAt) -> Elf | Broken:
    """The dynamic section behind a reader."""
    try:
        return _parse(at)
    except ValueError as error:
        return Broken(str(error))  # the words of the dynamic loader
    except (struct.error, OverflowError):
        return Broken("file too short")


def section(at: ReadAt, name: str) -> Section | None:
    """Where the section of that name lies behind a reader; None where there is none."""
    try:
        return _section(at, name.encode())
    except (ValueError, struct.error, OverflowError):
        return None


@lru_cache(maxsize=4)
def _layout(bits: int, little: bool) -> _Layout:
    order = "<" if little else ">"
    if bits == 64:
        shapes = ("16xHHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "qQ")
    else:
        shapes = ("16xHHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "iI")
    header, program, sections, dynamic = (struct.Struct(order + shape) for shape in shapes)
    return _Layout(header, program, sections, dynamic, little, bits)


def _start(at: ReadAt) -> tuple[_Layout, tuple[int, ...]]:
    ident = at(0, 64)
    if len(ident) < 16:
        raise ValueError("file too short")
    if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ValueError("invalid ELF header")
    layout = _layout(64 if ident[4] == 2 else 32, ident[5] == 1)
    return layout, layout.header.unpack_from(ident)


def _parse(at: ReadAt) -> Elf | Broken:
    layout, header = _start(at)
    segments = _segments(at, layout, header)
    dynamic = next((one for one in segments if one.kind == _DYNAMIC), None)
    if dynamic is None:
        return Broken("object file has no dynamic section")
    needed, last = _tags(at(dynamic.offset, min(dynamic.size, MOST_DYNAMIC)), layout)
    strings = _offset(segments, last.get(_STRTAB, 0))
    text = _texts(at, strings)
    interp = next((one for one in segments if one.kind == _INTERP), None)
    return Elf(
        bits=layout.bits,
        little=layout.little,
        machine=header[1],
        soname=text(last[_SONAME]) if _SONAME in last else None,
        needed=tuple(map(text, needed)),
        rpath=text(last[_RPATH]) if _RPATH in last else None,
        runpath=text(last[_RUNPATH]) if _RUNPATH in last else None,
        interpreter=_name(at(interp.offset, min(interp.size, 4096))) if interp else None,
        no_default=bool(last.get(_FLAGS_1, 0) & _NODEFLIB),
    )


def _segments(at: ReadAt, layout: _Layout, header: tuple[int, ...]) -> list[_Segment]:
    offset, size, count = header[4], header[8], header[9]
    if size != layout.program.size or count > MOST_HEADERS:
        raise ValueError("ELF file's phentsize not the expected size")
    data = at(offset, size * count)
    whole = data[: len(data) // size * size]
    late = int(layout.bits == 64)  # there the flags stand before the offset, not at the end
    rows = layout.program.iter_unpack(whole)
    return [_Segment(p[0], p[1 + late], p[2 + late], p[4 + late]) for p in rows]


def _tags(data: bytes, layout: _Layout) -> tuple[list[int], dict[int, int]]:
    """All DT_NEEDED in order, and of every other tag the last, which is what the loader keeps."""
    needed: list[int] = []
    last: dict[int, int] = {}
    size = layout.dynamic.size
    for tag, value in layout.dynamic.iter_unpack(data[: len(data) // size * size]):
        if tag == 0:
            break
        if tag == _NEEDED:
            needed.append(value)
        else:
            last[tag] = value
    return needed, last


def _offset(segments: list[_Segment], address: int) -> int:
    for one in segments:
        if one.kind == _LOAD and one.address <= address < one.address + one.size:
            return address - one.address + one.offset
    raise ValueError("its string table lies in no segment")


def _texts(at: ReadAt, table: int) -> Callable[[int], str]:
    """Looks strings up in a table of any size: names lie close together, so windows are kept."""
    windows: list[tuple[int, bytes]] = []

    def text(index: int) -> str:
        for begin, data in windows:
            end = data.find(b"\0", index - begin) if begin <= index < begin + len(data) else -1
            if end >= 0:
                return data[index - begin : end].decode("utf-8", "surrogateescape")
        data = at(table + index, 2048)
        if b"\0" not in data:
            data = at(table + index, MOST_TEXT)
        windows.append((index, data))
        return _name(data)

    return text


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _section(at: ReadAt, name: bytes) -> Section | None:
    layout, header = _start(at)
    offset, size, count, names_at = header[5], header[10], header[11], header[12]
    if size != layout.section.size or not offset:
        return None
    data = at(offset, min(size * count, MOST_SECTIONS))
    rows = list(layout.section.iter_unpack(data[: len(data) // size * size]))
    if names_at >= len(rows):
        return None
    names = at(rows[names_at][4], min(rows[names_at][5], MOST_SECTIONS))
    for row in rows:
        if names[row[0] : row[0] + len(name) + 1] == name + b"\0":
            return Section(row[4], row[5])
    return None
