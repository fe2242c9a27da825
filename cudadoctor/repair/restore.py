"""Bringing back what a snapshot kept. It can be cut off at any moment and begun anew."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.repair.journal import FOLDER
from cudadoctor.repair.manifest import Entry, ManifestError
from cudadoctor.repair.records import Root
from cudadoctor.repair.snapshot import Snapshot, sha256_of, walked

ASIDE = "set-aside-"
"""Folders beside the journal with what the user had changed, which nothing removes."""
_SUFFIX = ".cudadoctor-new"
_WRITABLE = 0o700


class RestoreError(Exception):
    """Something could not be brought back; its text is a sentence for the user."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. brought: files put back. removed: what had been added. edited: files that
    some tool wrote into in place, so that their old content is nowhere."""

    brought: int = 0
    removed: int = 0
    edited: tuple[str, ...] = ()


def restore(snapshot: Snapshot) -> Restored:
    """Bring back what was there, and prove it.

    Raises RestoreError where that is not possible; ManifestError where the record is not whole.
    """
    entries = snapshot.entries()
    if any(entry.root >= len(snapshot.roots) for entry in entries):
        raise ManifestError("the record of what was there belongs to another repair")
    try:
        _make_roots(snapshot, entries)
        brought = sum(_brought(snapshot, entry) for entry in entries)
        removed = _removed_new(snapshot, entries)
        _modes(snapshot, entries)
        edited = tuple(_proven(snapshot, entries))
    except OSError as error:
        raise RestoreError(told_of(error)) from error
    return Restored(brought=brought, removed=removed, edited=edited)


def told_of(error: OSError) -> str:
    """The file, and what is wrong with it."""
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def _make_roots(snapshot: Snapshot, entries: Iterable[Entry]) -> None:
    """The folders of the environment itself, where even those are gone."""
    for number in {entry.root for entry in entries}:
        os.makedirs(snapshot.roots[number].path, exist_ok=True)


def _brought(snapshot: Snapshot, entry: Entry) -> bool:
    """Put one thing back where it is not as it was; whether anything was done."""
    live = snapshot.live(entry)
    now = _stat(live)
    if entry.kind == "special" or (now is not None and _is_as_kept(snapshot, entry, live, now)):
        return False
    if now is not None and (stat.S_ISDIR(now.st_mode) or entry.kind == "folder"):
        _remove(live)
    if entry.kind == "folder":
        os.mkdir(live, _WRITABLE)
        return True
    with _writable(os.path.dirname(live)):
        _put(snapshot, entry, live)
    return True


def _is_as_kept(snapshot: Snapshot, entry: Entry, live: str, now: os.stat_result) -> bool:
    if entry.kind == "folder":
        return stat.S_ISDIR(now.st_mode)
    if entry.kind == "symlink":
        return stat.S_ISLNK(now.st_mode) and os.readlink(live) == entry.target
    if not stat.S_ISREG(now.st_mode):
        return False
    if entry.kind == "linked":
        return os.path.samestat(now, os.lstat(snapshot.path(entry)))
    same = now.st_size == entry.size and now.st_mtime_ns == entry.mtime_ns
    return same and sha256_of(live) == entry.sha256


def _put(snapshot: Snapshot, entry: Entry, live: str) -> None:
    """Put it there under another name, then in one move under its own."""
    new = live + _SUFFIX
    if len(os.fsencode(os.path.basename(new))) > 255:
        new = os.path.join(os.path.dirname(live), _SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    if entry.kind == "symlink":
        os.symlink(entry.target or "", new)
    else:
        _again(snapshot.path(entry), new, linked=entry.kind == "linked")
    os.replace(new, live)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # two names of one file: then a move does nothing


def _again(kept: str, new: str, *, linked: bool) -> None:
    if linked:
        with contextlib.suppress(OSError):
            os.link(kept, new)
            return
    shutil.copy2(kept, new)


def _removed_new(snapshot: Snapshot, entries: Iterable[Entry]) -> int:
    """Remove what was not there, also what tools left behind under names of their own."""
    known = {(entry.root, entry.path) for entry in entries}
    count = 0
    for number, root in enumerate(snapshot.roots):
        for path in reversed(_new(number, root, known)):
            live = os.path.join(root.path, *path.split("/"))
            with _writable(os.path.dirname(live)):
                _remove_one(live)
            count += 1
    return count


def _new(number: int, root: Root, known: set[tuple[int, str]]) -> list[str]:
    """What was not there, but for sockets and pipes and the folders that they lie in."""
    held: set[str] = set()
    found = []
    for path, now in walked(root):
        if (number, path) in known:
            continue
        if _ours_to_remove(now):
            found.append(path)
            continue
        above = path.rpartition("/")[0]
        while above:
            held.add(above)
            above = above.rpartition("/")[0]
    return [path for path in found if path not in held]


def _ours_to_remove(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)


def _remove_one(live: str) -> None:
    now = _stat(live)
    if now is None:
        return
    if stat.S_ISDIR(now.st_mode):
        os.rmdir(live)
    else:
        os.unlink(live)


def _remove(live: str) -> None:
    """Remove what stands in the way of something else: a folder, a link, a file."""
    now = _stat(live)
    with _writable(os.path.dirname(live)):
        if now is not None and stat.S_ISDIR(now.st_mode):
            shutil.rmtree(live)
        elif now is not None:
            os.unlink(live)


def _modes(snapshot: Snapshot, entries: tuple[Entry, ...]) -> None:
    """The permissions that were there, those of folders last and from the inside out."""
    for entry in reversed(entries):
        if entry.kind in ("symlink", "special"):
            continue
        live = snapshot.live(entry)
        if stat.S_IMODE(os.lstat(live).st_mode) != entry.mode:
            os.chmod(live, entry.mode)


def _proven(snapshot: Snapshot, entries: tuple[Entry, ...]) -> Iterator[str]:
    """Compare all with the record; yields what was written into in place."""
    for entry in entries:
        live = snapshot.live(entry)
        now = _stat(live)
        if entry.kind == "special":
            continue
        if now is None or not _is_as_kept(snapshot, entry, live, now):
            raise RestoreError(f"{live} is not as it was")
        changed = (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime_ns)
        if entry.kind == "linked" and changed:
            yield live
    known = {(entry.root, entry.path) for entry in entries}
    for number, root in enumerate(snapshot.roots):
        for path in _new(number, root, known):
            raise RestoreError(f"{path} has come back while it was being removed")


@contextlib.contextmanager
def _writable(folder: str) -> Iterator[None]:
    """The folder made writable; `_modes` gives back the permissions that it had."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        if mode & _WRITABLE != _WRITABLE:
            os.chmod(folder, mode | _WRITABLE)
    yield


def made_writable(folder: str) -> contextlib.AbstractContextManager[None]:
    """The folder, made writable by its owner."""
    return _writable(folder)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_made(folders: tuple[str, ...]) -> None:
    """Remove the folders that the repair itself had made, the innermost first, where nothing of
    anybody's lies in them."""
    for number, path in enumerate(reversed(folders)):
        with contextlib.suppress(OSError):
            own = os.path.join(path, FOLDER)
            if number == 0 and not any(name.startswith(ASIDE) for name in os.listdir(own)):
                shutil.rmtree(own)
            os.rmdir(path)
