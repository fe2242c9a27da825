"""What an environment held before a repair: one entry for each file, folder and link."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Kind = Literal["linked", "copied", "symlink", "folder", "special"]
"""How it was kept. linked: as one more name of the same file. special: a socket or a pipe, which is
neither brought back nor removed."""

LARGE_BYTES = 1 << 20
_EDITED_IN_PLACE = (".pth", ".egg-link", ".conf", ".cfg", ".json", ".txt")
"""Lists and settings directly in site-packages."""
_EDITED_FOLDERS = ("bin", "Scripts", "conda-meta", "etc")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One thing in the environment.

    root: number of the root that it lies in; path: below it, with / between the folders.
    mode: permission bits. size: in bytes. mtime_ns: time of the last change, nanoseconds.
    sha256: of what was copied. target: where a symbolic link leads to.
    """

    root: int
    path: str
    kind: Kind
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    sha256: str | None = None
    target: str | None = None


class ManifestError(ValueError):
    """The manifest cannot be read in full."""


def dumps(entries: Iterable[Entry]) -> bytes:
    """The manifest as lines; the last one says how many there are."""
    encode = msgspec.json.Encoder().encode
    lines = [encode(_told(one)) for one in entries]
    return b"\n".join([*lines, str(len(lines)).encode(), b""])


def loads(data: bytes) -> tuple[Entry, ...]:
    """The entries of a manifest. Raises ManifestError where it is not whole."""
    *lines, count, rest = data.split(b"\n") if data.count(b"\n") else (b"?", b"?")
    if rest or not count.isdigit() or int(count) != len(lines):
        raise ManifestError("the record of what was there is not whole")
    decode = msgspec.json.Decoder(Entry).decode
    try:
        entries = tuple(_meant(decode(line)) for line in lines)
        _demand_sound(entries)
    except (msgspec.DecodeError, ValueError) as error:
        raise ManifestError(f"the record of what was there cannot be read: {error}") from error
    return entries


def _demand_sound(entries: Iterable[Entry]) -> None:
    """No entry may lead out of its root: by its words, or through what is no folder of it."""
    folders: set[tuple[int, str]] = set()
    for one in entries:
        parts = one.path.split("/")
        above = one.path.rpartition("/")[0]
        if one.root < 0 or {"", ".", ".."} & set(parts) or _is_windows_path(one.path):
            raise ValueError(f"it leads elsewhere: {one.path!r}")
        if above and (one.root, above) not in folders:
            raise ValueError(f"it leads through what is no folder: {one.path!r}")
        if one.kind == "folder":
            folders.add((one.root, one.path))


def _is_windows_path(path: str) -> bool:
    return os.sep != "/" and any(sign in path for sign in "\\:")


def copied_rather(path: str, size: int) -> bool:
    """Whether a file is copied and not linked: what tools write into in place.

    Nobody does that to large programs, of which a system's bin has hundreds of megabytes.
    """
    if ".dist-info/" in path or ".egg-info" in path:
        return True
    beside = path.count("/") < 4 and path.endswith(_EDITED_IN_PLACE)
    edited = "/" not in path or beside or path.partition("/")[0] in _EDITED_FOLDERS
    return edited and size < LARGE_BYTES


def _told(entry: Entry) -> Entry:
    """The entry as UTF-8 can hold it: names may be any bytes."""
    path, target = _safe(entry.path), entry.target and _safe(entry.target)
    if path is entry.path and target is entry.target:
        return entry
    return msgspec.structs.replace(entry, path=path, target=target)


def _meant(entry: Entry) -> Entry:
    path, target = _unsafe(entry.path), entry.target and _unsafe(entry.target)
    if path is entry.path and target is entry.target:
        return entry
    return msgspec.structs.replace(entry, path=path, target=target)


def _safe(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\0" + text.encode("utf-8", "surrogateescape").hex()
    return text


def _unsafe(text: str) -> str:
    if not text.startswith("\0"):
        return text
    return bytes.fromhex(text[1:]).decode("utf-8", "surrogateescape")


def differing(before: Iterable[Entry], now: Iterable[Entry]) -> Iterator[str]:
    """Paths that came, went or changed from one manifest to another, byte code left out."""
    old = {(one.root, one.path): face(one) for one in before if not is_byte_code(one.path)}
    new = {(one.root, one.path): face(one) for one in now if not is_byte_code(one.path)}
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield key[1]


def face(entry: Entry) -> tuple[object, ...]:
    """What tells two states of one thing apart without reading it."""
    if entry.kind in ("folder", "special"):
        return ("folder",)
    if entry.kind == "symlink":
        return ("symlink", entry.target)
    return ("file", entry.size, entry.mtime_ns)


def is_byte_code(path: str) -> bool:
    """Whether Python makes it anew by itself."""
    return path.endswith((".pyc", "__pycache__")) or "/__pycache__/" in path


def packages_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The installed packages that such differences are about, by their metadata folders."""
    names = {
        folder.removesuffix(".dist-info").partition("-")[0]
        for path in paths
        for folder in path.split("/")
        if folder.endswith(".dist-info")
    }
    return tuple(sorted(names))


def below(root: str, path: str) -> str:
    """The path on this system of something below a root."""
    return os.path.join(root, *path.split("/")) if path else root
