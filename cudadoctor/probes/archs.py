"""The GPU architectures that a torch was compiled for, read from its library without importing it.

torch keeps the list as one text for `torch.cuda.get_arch_list()`: "sm_75 sm_80 compute_90". It
lies among the constants of its Python binding, which take one or two milliseconds to read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from cudadoctor.host.local import Host
from cudadoctor.probes.elf import Section, find_section

MOST_CONSTANTS = 32 << 20
MOST_FILE = 256 << 20
_CHUNK = 8 << 20
_LONGEST = 1024

_NAME = rb"(?:(?:sm|compute)_\d{2,3}[a-z]?|gfx[0-9a-f]{3,5}(?:[:+-][a-z+:-]+)?)"
_LOOSE = re.compile(_NAME + rb"(?:[ ;,]" + _NAME + rb")+(?![\w.-])")
_FLAGS = re.compile(rb"\0(" + _NAME + rb"(?:[ ;,]" + _NAME + rb")*)[ ;]?\0")


def read_archs(host: Host, torch_dir: str, prefix: str | None = None) -> tuple[str, ...] | None:
    """What the torch in that folder has machine code (sm_90) and PTX (compute_90) for.

    None where the library is not there or holds no such list.
    """
    path = binding(host, torch_dir, prefix)
    return archs_of(host, path) if path else None


def binding(host: Host, torch_dir: str, prefix: str | None = None) -> str | None:
    """torch's Python binding: beside torch, or in the lib folder of conda or of the system."""
    places = [f"{torch_dir}/lib/libtorch_python.so", f"{torch_dir}/lib/torch_python.dll"]
    if prefix:
        places += [f"{prefix}/lib/libtorch_python.so", f"{prefix}/Library/bin/torch_python.dll"]
    if torch_dir.startswith("/usr/lib/python3/"):
        places += host.glob("/usr/lib/*/libtorch_python.so*")
    return next((one for one in places if host.stat(one).exists), None)


def archs_of(host: Host, path: str) -> tuple[str, ...] | None:
    """The list in one library: from its constants, else from wherever it lies in the file.

    The last resort is a list of at least two names within a longer text. torch 2.8 and 2.9 have
    a constant without an end right before the list: its first name begins inside of a word.
    """
    for part in _constants(host, path):
        data = host.read(path, min(part.size, MOST_CONSTANTS), part.offset).data
        if found := flags_in(data):
            return found
    loose = b""
    for data in _whole(host, path):
        if found := flags_in(data):
            return found
        if b"sm_" in data or b"gfx" in data:
            loose = max([loose, *_LOOSE.findall(data)], key=len)
    return _names(loose) if loose else None


def flags_in(data: bytes) -> tuple[str, ...] | None:
    """The longest list of architectures that stands in these bytes as a text of its own."""
    # Every name is searched in C first: the pattern alone would look at each byte.
    for mark in (b"sm_", b"compute_", b"gfx"):
        lists = []
        at = data.find(mark)
        while at >= 0:
            if found := _FLAGS.match(data, max(0, at - 1), at + _LONGEST):
                lists.append(found[1])
            at = data.find(mark, at + 1)
        if lists:
            return _names(max(lists, key=len))
    return None


def _names(flags: bytes) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.decode("ascii") for one in re.split(rb"[ ;,]", flags)))


def _constants(host: Host, path: str) -> tuple[Section, ...]:
    if path.endswith(".dll"):
        found = pe_section(host.read(path, 4096).data, b".rdata")
    else:
        found = find_section(host, path, ".rodata")
    return (found,) if found else ()


def pe_section(data: bytes, name: bytes) -> Section | None:
    """Where the section of that name lies in a Windows library, from the library's first bytes."""
    try:
        start = int(struct.unpack_from("<I", data, 0x3C)[0])
        count, optional = struct.unpack_from("<H12xH", data, start + 6)
        if data[start : start + 4] != b"PE\0\0":
            return None
        for row in range(min(count, 96)):
            at = start + 24 + optional + 40 * row
            if data[at : at + 8].rstrip(b"\0") == name:
                size, offset = struct.unpack_from("<II", data, at + 16)
                return Section(offset, size)
    except struct.error:
        return None
    return None


def _whole(host: Host, path: str) -> Iterator[bytes]:
    """The file in pieces that overlap, so that no list is cut in two."""
    size = min(host.stat(path).size, MOST_FILE)
    for offset in range(0, size, _CHUNK):
        data = host.read(path, _CHUNK + _LONGEST, offset).data
        if not data:
            return
        yield data
