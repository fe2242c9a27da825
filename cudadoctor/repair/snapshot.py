"""What is there before a repair, kept beside it: hard links where a file is only ever replaced,
copies where it is written into."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator

from cudadoctor.repair.journal import FOLDER, synced_folder
from cudadoctor.repair.manifest import Entry, below, copied_rather, dumps, loads
from cudadoctor.repair.records import Root

MANIFEST = "manifest"
LEFT = "left"
CHUNK = 1 << 20


class Snapshot:
    """The folder that keeps one state: `<prefix>/.cudadoctor/before-<id>`."""

    def __init__(self, folder: str, id: str, roots: tuple[Root, ...]) -> None:  # noqa: A002
        self.folder = os.path.join(folder, f"before-{id}")
        self.roots = roots

    def path(self, entry: Entry) -> str:
        """Where the kept file of an entry lies."""
        return below(os.path.join(self.folder, str(entry.root)), entry.path)

    def live(self, entry: Entry) -> str:
        """Where it belongs."""
        return below(self.roots[entry.root].path, entry.path)

    def take(self) -> int:
        """Keep what is there now, and wait until it is on disk; the number of entries.

        Raises OSError where something cannot be read or kept.
        """
        self.remove()
        os.mkdir(self.folder, 0o700)
        entries = [kept for number in range(len(self.roots)) for kept in self._keep(number)]
        synced_system(self.folder)
        self._written(MANIFEST, dumps(entries))
        return len(entries)

    def entries(self) -> tuple[Entry, ...]:
        """What was there. Raises ManifestError or OSError where that is not known."""
        return self._read(MANIFEST)

    def note_left(self) -> None:
        """Remember how the repair left the environment, to see later what changed since."""
        self._written(LEFT, dumps(self.present()))

    def left(self) -> tuple[Entry, ...] | None:
        """How the repair left it, None where that was not noted."""
        try:
            return self._read(LEFT)
        except (OSError, ValueError):
            return None

    def present(self) -> Iterator[Entry]:
        """What is there now, nothing of it read."""
        for number, root in enumerate(self.roots):
            for path, found in walked(root):
                yield described(number, path, found, below(root.path, path))

    def remove(self) -> None:
        """Remove what was kept; the environment itself is not touched."""
        _removed(self.folder)

    def held_bytes(self) -> int:
        """Disk that only the snapshot holds: copies, and links whose other name has gone."""
        total = 0
        for entry in self.entries():
            if entry.sha256 is None and entry.kind != "linked":
                continue
            with contextlib.suppress(OSError):
                kept = os.lstat(self.path(entry))
                total += kept.st_size if kept.st_nlink == 1 else 0
        return total

    def _keep(self, number: int) -> Iterator[Entry]:
        root = self.roots[number]
        os.mkdir(os.path.join(self.folder, str(number)), 0o700)
        for path, found in walked(root):
            live = below(root.path, path)
            entry = described(number, path, found, live)
            yield self._kept(entry, live)

    def _kept(self, entry: Entry, live: str) -> Entry:
        place = self.path(entry)
        if entry.kind == "folder":
            os.mkdir(place, 0o700)
        if entry.kind != "linked":
            return entry
        if not copied_rather(entry.path, entry.size):
            with contextlib.suppress(OSError):  # another file system, too many links, not ours
                os.link(live, place)
                return entry
        digest = copied(live, place)
        return _as_copy(described(entry.root, entry.path, os.lstat(place), place), digest)

    def _written(self, name: str, data: bytes) -> None:
        path = os.path.join(self.folder, name)
        with open(f"{path}.new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        synced_folder(self.folder)

    def _read(self, name: str) -> tuple[Entry, ...]:
        with open(os.path.join(self.folder, name), "rb") as file:
            return loads(file.read())


def _as_copy(entry: Entry, sha256: str) -> Entry:
    return Entry(
        entry.root, entry.path, "copied", entry.mode, entry.size, entry.mtime_ns, sha256=sha256
    )


def walked(root: Root) -> Iterator[tuple[str, os.stat_result]]:
    """All that lies in a root, folders before what is in them; no link is followed."""
    if not os.path.isdir(root.path):
        return
    yield from _walked(root.path, "", root)


def _walked(folder: str, path: str, root: Root) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda one: one.name)
    for one in inside:
        if not path and (one.name == FOLDER or not root.has(one.name)):
            continue
        name = f"{path}/{one.name}" if path else one.name
        yield name, one.stat(follow_symlinks=False)
        if one.is_dir(follow_symlinks=False):
            yield from _walked(one.path, name, root)


def described(number: int, path: str, found: os.stat_result, live: str) -> Entry:
    """An entry for what stands at a path; a file counts as linked until it is copied."""
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return Entry(number, path, "folder", mode)
    if stat.S_ISLNK(found.st_mode):
        return Entry(number, path, "symlink", target=os.readlink(live))
    if stat.S_ISREG(found.st_mode):
        return Entry(number, path, "linked", mode, found.st_size, found.st_mtime_ns)
    return Entry(number, path, "special", mode)


def copied(source: str, place: str) -> str:
    """Copy a file with its times and mode; the SHA-256 of its bytes."""
    digest = hashlib.sha256()
    with open(source, "rb") as old, open(place, "wb") as new:
        while part := old.read(CHUNK):
            digest.update(part)
            new.write(part)
    shutil.copystat(source, place)
    return digest.hexdigest()


def sha256_of(path: str) -> str:
    """The SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    return digest.hexdigest()


def _removed(folder: str) -> None:
    """Remove a folder of ours; folders in it are made writable by their owner first."""
    if not os.path.isdir(folder) or os.path.islink(folder):
        return
    # Its manifest first: what is half removed must not pass for whole.
    for name in (MANIFEST, LEFT):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    shutil.rmtree(folder)


def synced_system(folder: str) -> None:
    """Wait until what was written is on disk: all of that file system, since it is thousands."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            number = os.open(folder, os.O_RDONLY)
            try:
                ctypes.CDLL(None).syncfs(number)
            finally:
                os.close(number)
            return
    if hasattr(os, "sync"):
        os.sync()
