"""What the user changed since a repair: moved aside before the state before it comes back."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.repair.manifest import Entry, face, is_byte_code
from cudadoctor.repair.restore import ASIDE, made_writable
from cudadoctor.repair.snapshot import Snapshot, sha256_of

SOON_NS = 60_000_000_000
"""So long after the last word of a repair that was cut off, its own files may still be dated."""
_RECORD = ".dist-info/RECORD"


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were moved away. folder: where they lie now. paths: where they lay."""

    folder: str = ""
    paths: tuple[str, ...] = ()


def set_aside(snapshot: Snapshot, since_ns: int) -> Aside:
    """Move what belongs to nobody but the user out of the way of the state before.

    since_ns: the last word of the repair, where it is not known how that left the environment.
    Raises OSError or ManifestError; what was moved until then stays aside.
    """
    mine = list(_theirs(snapshot, since_ns))
    if not mine:
        return Aside()
    folder = _new_folder(snapshot)
    for entry in mine:
        place = os.path.join(folder, str(entry.root), *entry.path.split("/"))
        live = snapshot.live(entry)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with made_writable(os.path.dirname(live)):
            shutil.move(live, place)
    return Aside(folder=folder, paths=tuple(snapshot.live(entry) for entry in mine))


def _theirs(snapshot: Snapshot, since_ns: int) -> Iterator[Entry]:
    before = {(one.root, one.path): one for one in snapshot.entries()}
    left = snapshot.left()
    after = None if left is None else {(one.root, one.path): face(one) for one in left}
    present = tuple(snapshot.present())
    changed = []
    for one in present:
        key = one.root, one.path
        old = before.get(key)
        if one.kind in ("folder", "special") or is_byte_code(one.path):
            continue
        if old is not None and face(old) == face(one):
            continue
        late = _late(snapshot, one, since_ns) if after is None else after.get(key) != face(one)
        if late and not _is_kept(snapshot, one, old):
            changed.append(one)
    packaged = _packaged(snapshot, present) if changed else {}
    for one in changed:
        if not _can_be_had_again(snapshot, one, packaged.get((one.root, one.path))):
            yield one


def _late(snapshot: Snapshot, entry: Entry, since_ns: int) -> bool:
    """Whether it came after the last word of the repair. The kernel's own time of the change
    cannot be set by a tool that unpacks."""
    now = os.lstat(snapshot.live(entry))
    return max(now.st_mtime_ns, now.st_ctime_ns) > since_ns + SOON_NS


def _is_kept(snapshot: Snapshot, entry: Entry, old: Entry | None) -> bool:
    """Whether it is one file with the kept one, which stays as it is."""
    if old is None or old.kind != "linked":
        return False
    with contextlib.suppress(OSError):
        return os.path.samefile(snapshot.live(entry), snapshot.path(old))
    return False


def _packaged(
    snapshot: Snapshot, present: Iterable[Entry]
) -> dict[tuple[int, str], tuple[str, int | None]]:
    """What the installed packages say of their files: digest and size."""
    found: dict[tuple[int, str], tuple[str, int | None]] = {}
    for one in present:
        if not one.path.endswith(_RECORD):
            continue
        found[one.root, one.path] = ("", None)
        site = one.path.rpartition("/")[0].rpartition("/")[0]
        with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error):
            with open(snapshot.live(one), encoding="utf-8", newline="") as file:
                told = parse_record(file.read())
            for path, digest, size in told:
                found[one.root, posixpath.normpath(posixpath.join(site, path))] = (digest, size)
            found[one.root, one.path] = ("", None)
    return found


def parse_record(text: str) -> Iterator[tuple[str, str, int | None]]:
    """Path, SHA-256 (hexadecimal, "" where there is none) and size of a RECORD; pure."""
    for row in _rows(text):
        path, digest, size = (*row, "", "", "")[:3]
        kind, _, value = digest.partition("=")
        with contextlib.suppress(ValueError):
            plain = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
            yield path, plain if kind == "sha256" else "", int(size) if size.isdigit() else None


def _rows(text: str) -> Iterator[list[str]]:
    """The rows up to the first that is none: a RECORD is not longer than its damage lets it be."""
    with contextlib.suppress(csv.Error):
        yield from csv.reader(io.StringIO(text, newline=""))


def _can_be_had_again(
    snapshot: Snapshot, entry: Entry, packaged: tuple[str, int | None] | None
) -> bool:
    """Whether it is, byte for byte, what a package brought."""
    if packaged is None or entry.kind == "symlink":
        return False
    digest, size = packaged
    if not digest:
        return entry.path.endswith(_RECORD)
    return size in (None, entry.size) and sha256_of(snapshot.live(entry)) == digest


def _new_folder(snapshot: Snapshot) -> str:
    above, name = os.path.split(snapshot.folder)
    stem = ASIDE + name.removeprefix("before-")
    number = 1
    while True:
        folder = os.path.join(above, stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            return folder
        number += 1
