"""Texts and files of a system as its kernel, its packages and its loader write them."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def modules(*names: str) -> str:
    """/proc/modules with these modules and some that every machine has."""
    usual = ("ext4", "snd_hda_intel", "i2c_i801")
    return "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in (*usual, *names))


def limits(nofile: int) -> str:
    """/proc/self/limits with that many open files."""
    head = f"{'Limit':<26}{'Soft Limit':<21}{'Hard Limit':<21}Units\n"
    rows = ((f"{nofile}", "Max open files", "files"), ("8589934592", "Max locked memory", "bytes"))
    return head + "".join(f"{name:<26}{n:<21}{n:<21}{unit}\n" for n, name, unit in rows)


def dpkg(**packages: str) -> str:
    """dpkg's status file with these packages."""
    every = {"libc6": "2.39-0ubuntu8.6", **packages}
    stanza = "Package: {}\nStatus: install ok installed\nVersion: {}\n\n"
    return "".join(stanza.format(name, version) for name, version in every.items())


def loader_cache(paths: Mapping[str, str]) -> bytes:
    """An ld.so.cache that knows these libraries."""
    strings, at = b"", 48 + 24 * len(paths)
    rows = b""
    for name, path in paths.items():
        key = at + len(strings)
        strings += name.encode() + b"\0"
        rows += struct.pack("<iIIIQ", 0x303, key, at + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(paths), len(strings))
    return head.ljust(48, b"\0") + rows + strings
