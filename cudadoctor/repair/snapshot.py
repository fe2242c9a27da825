"""What an environment held before a repair: recorded, kept beside it, and brought back."""

import base64
import csv
import hashlib
import io
import json
import os
import posixpath
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from os.path import dirname, isdir, join, lexists
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.cli.speech import say
from cudadoctor.model.machine import OptInt, OptStr, Strings
from cudadoctor.repair.journal import FOLDER, Root, synced_folder

Kind = Literal["linked", "copied", "symlink", "folder", "special"]
"""How it was kept. linked: as one more name of the same file. special: a socket or a pipe, which is
neither brought back nor removed."""
Key = tuple[int, str]
"""The root that something lies in, and its path below it."""

LARGE_BYTES = 1 << 20
_EDITED_IN_PLACE = (".pth", ".egg-link", ".conf", ".cfg", ".json", ".txt")
"""Lists and settings directly in site-packages."""
_EDITED_FOLDERS = ("bin", "Scripts", "conda-meta", "etc")


class Entry(Struct, frozen=True, array_like=True):
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
    sha256: OptStr = None
    target: OptStr = None

    @property
    def key(self) -> Key:
        return self.root, self.path

    @property
    def face(self) -> tuple[object, ...]:
        """What tells two states of one thing apart without reading it."""
        kind = "linked" if self.kind == "copied" else self.kind
        return kind, self.size, self.mtime_ns, self.target


class RestoreError(ValueError):
    """Something could not be brought back; its text is a sentence for the user."""


class ManifestError(RestoreError):
    """The manifest cannot be read in full."""


def dumps(entries: Iterable[Entry]) -> bytes:
    """The manifest as lines; the last one says how many there are. Names of any bytes survive."""
    lines = [json.dumps(msgspec.to_builtins(entry)).encode("ascii") for entry in entries]
    return b"\n".join([*lines, str(len(lines)).encode(), b""])


def loads(data: bytes) -> tuple[Entry, ...]:
    """The entries of a manifest. Raises ManifestError if it is not whole."""
    *lines, count, rest = data.split(b"\n") if data.count(b"\n") else (b"?", b"?")
    if rest or not count.isdigit() or int(count) != len(lines):
        raise ManifestError(say("the list of saved files is incomplete"))
    try:
        entries = tuple(msgspec.convert(json.loads(line), Entry) for line in lines)
        _demand_sound(entries)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        why = say("the list of saved files cannot be read: {reason}", reason=error)
        raise ManifestError(why) from error
    return entries


def _demand_sound(entries: Iterable[Entry]) -> None:
    """No entry may lead out of its root: by its words, or through what is no folder of it."""
    folders = set()
    for entry in entries:
        path, above = entry.path, entry.path.rpartition("/")[0]
        of_windows = os.sep != "/" and {"\\", ":"} & set(path)
        if entry.root < 0 or {"", ".", ".."} & set(path.split("/")) or of_windows:
            raise ValueError(f"a snapshot entry points outside the folder it belongs to: {path!r}")
        if above and (entry.root, above) not in folders:
            raise ValueError(f"part of the path of a snapshot entry is not a folder: {path!r}")
        if entry.kind == "folder":
            folders.add(entry.key)


def copied_rather(path: str, size: int) -> bool:
    """Whether a file is copied and not linked: what tools write into in place.

    Nobody does that to large programs, of which a system's bin has hundreds of megabytes.
    """
    beside = path.count("/") < 4 and path.endswith(_EDITED_IN_PLACE)
    edited = "/" not in path or beside or path.partition("/")[0] in _EDITED_FOLDERS
    return ".dist-info/" in path or ".egg-info" in path or (edited and size < LARGE_BYTES)


def differing(before: Iterable[Entry], now: Iterable[Entry]) -> list[str]:
    """Paths that came, went or changed from one manifest to another, byte code left out."""
    old, new = (
        {(entry.key, entry.face) for entry in entries if not is_byte_code(entry.path)}
        for entries in (before, now)
    )
    return [path for _, path in sorted({key for key, _ in old ^ new})]


def is_byte_code(path: str) -> bool:
    """Whether Python makes it anew by itself."""
    return path.endswith((".pyc", "__pycache__")) or "/__pycache__/" in path


def packages_of(paths: Iterable[str]) -> Strings:
    """The installed packages that such differences are about, by their metadata folders."""
    folders = {folder for path in paths for folder in path.split("/")}
    names = {name.partition("-")[0] for name in folders if name.endswith(".dist-info")}
    return tuple(sorted(name.removesuffix(".dist-info") for name in names))


MANIFEST = "manifest"
LEFT = "left"
ASIDE = "set-aside-"
"""Folders beside the journal with what the user had changed, which nothing removes."""
SOON_NS = 60_000_000_000
"""So long after the last word of a repair that was cut off, its own files may still be dated."""
_RECORD = ".dist-info/RECORD"
_NEW = ".cudadoctor-new"
_WRITABLE = 0o700


class Restored(Struct, frozen=True, kw_only=True):
    """What was done. brought: files put back. removed: what had been added. edited: files that
    some tool wrote into in place, so that their old content is nowhere."""

    brought: int = 0
    removed: int = 0
    edited: Strings = ()


class Snapshot:
    """The folder that keeps one state: `<prefix>/.cudadoctor/before-<id>`."""

    def __init__(self, folder: str, id: str, roots: tuple[Root, ...]) -> None:  # noqa: A002
        self.folder = join(folder, f"before-{id}")
        self.aside = join(folder, f"{ASIDE}{id}")
        self.roots = roots

    def path(self, entry: Entry) -> str:
        """Where the kept file of an entry lies."""
        return join(self.folder, str(entry.root), *entry.path.split("/"))

    def live(self, entry: Entry) -> str:
        """Where it belongs."""
        return join(self.roots[entry.root].path, *entry.path.split("/"))

    def take(self) -> int:
        """Keep what is there now, and wait until it is on disk; the number of entries.

        Raises OSError where something cannot be read or kept.
        """
        self.remove()
        for folder in ("", *map(str, range(len(self.roots)))):
            os.mkdir(join(self.folder, folder), 0o700)
        entries = [self._kept(entry) for entry in self.present()]
        synced_system(self.folder)
        self._written(MANIFEST, entries)
        return len(entries)

    def entries(self) -> tuple[Entry, ...]:
        """What was there. Raises ManifestError or OSError where that is not known."""
        return loads(Path(self.folder, MANIFEST).read_bytes())

    def note_left(self) -> None:
        """Remember how the repair left the environment, to see later what changed since."""
        self._written(LEFT, self.present())

    def left(self) -> tuple[Entry, ...] | None:
        """How the repair left it, None where that was not noted."""
        with suppress(OSError, ValueError):
            return loads(Path(self.folder, LEFT).read_bytes())
        return None

    def present(self) -> Iterator[Entry]:
        """What is there now, nothing of it read."""
        for number, root in enumerate(self.roots):
            if isdir(root.path):
                yield from _walked(number, root, root.path)

    def remove(self) -> None:
        """Remove what was kept; the environment itself is not touched."""
        if not isdir(self.folder) or os.path.islink(self.folder):
            return
        # Its manifest first: what is half removed must not pass for whole.
        for name in (MANIFEST, LEFT):
            Path(self.folder, name).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def held_bytes(self) -> int:
        """Disk that only the snapshot holds: copies, and links whose other name has gone."""
        total = 0
        for entry in self.entries():
            if entry.kind in ("copied", "linked"):
                with suppress(OSError):
                    kept = os.lstat(self.path(entry))
                    total += kept.st_size if kept.st_nlink == 1 else 0
        return total

    def _kept(self, entry: Entry) -> Entry:
        live, place = self.live(entry), self.path(entry)
        if entry.kind == "folder":
            os.mkdir(place, 0o700)
        if entry.kind != "linked":
            return entry
        if not copied_rather(entry.path, entry.size):
            with suppress(OSError):  # another file system, too many links, not ours
                os.link(live, place)
                return entry
        shutil.copy2(live, place)
        return replace(described(*entry.key, place), kind="copied", sha256=sha256_of(place))

    def _written(self, name: str, entries: Iterable[Entry]) -> None:
        path = join(self.folder, name)
        with open(f"{path}.new", "wb") as file:
            file.write(dumps(entries))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        synced_folder(self.folder)

    # --- bringing it back --------------------------------------------------------------------

    def restore(self) -> Restored:
        """Bring back what was there, and prove it.

        Raises RestoreError where that is not possible; ManifestError where the record is not whole.
        """
        try:
            entries = self.entries()
            roots = {entry.root for entry in entries}
            if max(roots, default=-1) >= len(self.roots):
                raise ManifestError(say("the list of saved files belongs to a different fix"))
            for number in roots:  # even those may be gone
                os.makedirs(self.roots[number].path, exist_ok=True)
            brought = sum(map(self._brought, entries))
            added = self._new(entries)
            for entry in reversed(added):  # also what tools left behind under names of their own
                live = self.live(entry)
                _make_writable(live)
                with suppress(FileNotFoundError):
                    (os.rmdir if entry.kind == "folder" else os.unlink)(live)
            # The permissions that were there, those of folders last and from the inside out.
            for entry in reversed(entries):
                live = self.live(entry)
                known = entry.kind not in ("symlink", "special")
                if known and stat.S_IMODE(os.lstat(live).st_mode) != entry.mode:
                    os.chmod(live, entry.mode)
            edited = tuple(self._proven(entries))
        except OSError as error:
            raise RestoreError(file_and_reason(error)) from error
        return Restored(brought=brought, removed=len(added), edited=edited)

    def _brought(self, entry: Entry) -> bool:
        """Put one thing back where it is not as it was; whether anything was done."""
        live, now = self.live(entry), self._now(entry)
        if entry.kind == "special" or self._is_as_kept(entry, now):
            return False
        _make_writable(live)
        if now and now.kind == "folder":
            shutil.rmtree(live)
        elif now and entry.kind == "folder":
            os.unlink(live)
        if entry.kind == "folder":
            os.mkdir(live, _WRITABLE)
        else:
            self._put(entry, live)
        return True

    def _now(self, entry: Entry) -> Entry | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return described(*entry.key, self.live(entry))
        return None

    def _is_as_kept(self, entry: Entry, now: Entry | None) -> bool:
        if now is None:
            return False
        live = self.live(entry)
        if entry.kind == "linked":  # as one file with the kept one
            same = now.kind == "linked"
            return same and os.path.samestat(os.lstat(live), os.lstat(self.path(entry)))
        same = entry.face == now.face
        return same and (entry.kind != "copied" or sha256_of(live) == entry.sha256)

    def _put(self, entry: Entry, live: str) -> None:
        """Put it there under another name, then in one move under its own."""
        new = join(dirname(live), _NEW)
        Path(new).unlink(missing_ok=True)
        if entry.kind == "symlink":
            os.symlink(entry.target or "", new)
        elif entry.kind == "linked":
            with suppress(OSError):
                os.link(self.path(entry), new)
        if not lexists(new):
            shutil.copy2(self.path(entry), new)
        os.replace(new, live)
        Path(new).unlink(missing_ok=True)  # two names of one file: then a move does nothing

    def _new(self, entries: Iterable[Entry]) -> list[Entry]:
        """What was not there, but for sockets and pipes and the folders that they lie in."""
        known = {entry.key for entry in entries}
        added = [entry for entry in self.present() if entry.key not in known]
        special = [entry for entry in added if entry.kind == "special"]
        held = {
            (entry.root, str(folder))
            for entry in special
            for folder in PurePosixPath(entry.path, "x").parents
        }
        return [entry for entry in added if entry.key not in held]

    def _proven(self, entries: tuple[Entry, ...]) -> Iterator[str]:
        """Compare all with the record; yields what was written into in place."""
        for entry in entries:
            now = self._now(entry)
            if entry.kind == "special":
                continue
            if not self._is_as_kept(entry, now):
                raise RestoreError(say("{path} could not be restored", path=self.live(entry)))
            if now and now.face != entry.face:
                yield self.live(entry)
        for entry in self._new(entries):
            raise RestoreError(say("{path} reappeared while it was being removed", path=entry.path))

    # --- what the user changed since ---------------------------------------------------------

    def set_aside(self, since_ns: int) -> tuple[str, list[str]]:
        """Move what belongs to nobody but the user out of the way of the state before.

        since_ns: the last word of the repair, where it is not known how that left the environment.
        Returns the folder where it lies now, and the paths where it lay. Raises OSError or
        ManifestError; what was moved until then stays aside.
        """
        mine = list(self._changed_since(since_ns))
        folder, number = self.aside, 1
        while lexists(folder):
            number += 1
            folder = f"{self.aside}-{number}"
        if mine:
            os.mkdir(folder, 0o700)
        for entry in mine:
            place, live = Path(folder, str(entry.root), entry.path), self.live(entry)
            place.parent.mkdir(parents=True, exist_ok=True)
            _make_writable(live)
            shutil.move(live, place)
        return folder, list(map(self.live, mine))

    def _changed_since(self, since_ns: int) -> Iterator[Entry]:
        before = {entry.key: entry for entry in self.entries()}
        left = self.left()
        after = {entry.key: entry.face for entry in left or ()}
        present = tuple(self.present())
        changed = []
        for entry in present:
            old = before.get(entry.key)
            if entry.kind in ("folder", "special") or is_byte_code(entry.path):
                continue
            if old and old.face == entry.face:
                continue
            changed_since = after.get(entry.key) != entry.face
            if left is None:
                changed_since = self._is_late(entry, since_ns)
            if changed_since and not (old and self._is_as_kept(old, entry)):
                changed.append(entry)
        packaged = self._packaged(present) if changed else {}
        for entry in changed:
            digest, size = packaged.get(entry.key, (None, None))
            # What is, byte for byte, what a package brought can be had again.
            own = digest == "" and entry.path.endswith(_RECORD)
            same = digest and size in (None, entry.size) and entry.kind != "symlink"
            if not (own or (same and sha256_of(self.live(entry)) == digest)):
                yield entry

    def _is_late(self, entry: Entry, since_ns: int) -> bool:
        """Whether it came after the last word of the repair. The kernel's own time of the change
        cannot be set by a tool that unpacks."""
        now = os.lstat(self.live(entry))
        return max(now.st_mtime_ns, now.st_ctime_ns) > since_ns + SOON_NS

    def _packaged(self, present: Iterable[Entry]) -> dict[Key, tuple[str, OptInt]]:
        """What the installed packages say of their files: digest and size."""
        found = {}
        for record in (entry for entry in present if entry.path.endswith(_RECORD)):
            site = posixpath.dirname(posixpath.dirname(record.path))
            with suppress(OSError, UnicodeDecodeError):
                text = Path(self.live(record)).read_text(encoding="utf-8")
                for path, digest, size in parse_record(text):
                    place = posixpath.normpath(posixpath.join(site, path))
                    found[record.root, place] = digest, size
            found[record.key] = ("", None)
        return found


def _walked(number: int, root: Root, folder: str, path: str = "") -> Iterator[Entry]:
    """All that lies in a root, folders before what is in them; no link is followed."""
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda entry: entry.name)
    for entry in inside:
        if path or (entry.name != FOLDER and root.has(entry.name)):
            name = f"{path}/{entry.name}" if path else entry.name
            yield described(number, name, entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _walked(number, root, entry.path, name)


def described(number: int, path: str, live: str) -> Entry:
    """An entry for what stands at a path; a file counts as linked until it is copied."""
    found = os.lstat(live)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        return Entry(number, path, "folder", mode)
    if stat.S_ISLNK(found.st_mode):
        return Entry(number, path, "symlink", target=os.readlink(live))
    if stat.S_ISREG(found.st_mode):
        return Entry(number, path, "linked", mode, found.st_size, found.st_mtime_ns)
    return Entry(number, path, "special", mode)


def sha256_of(path: str) -> str:
    """The SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def synced_system(folder: str) -> None:
    """Wait until what was written is on disk: all of that file system, since it is thousands."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            number = os.open(folder, os.O_RDONLY)
            try:
                ctypes.CDLL(None).syncfs(number)
            finally:
                os.close(number)
            return
    if hasattr(os, "sync"):
        os.sync()


def file_and_reason(error: OSError) -> str:
    """The file, and what is wrong with it."""
    return f"{error.filename or say('a file')}: {error.strerror or error}"


def _make_writable(path: str) -> None:
    """Make the folder of a path writable; `restore` gives back the permissions that it had."""
    folder = dirname(path)
    with suppress(OSError):
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        if mode & _WRITABLE != _WRITABLE:
            os.chmod(folder, mode | _WRITABLE)


def remove_made(folders: Strings) -> None:
    """Remove the folders that the repair itself had made, the innermost first, where nothing of
    anybody's lies in them."""
    for number, path in enumerate(reversed(folders)):
        with suppress(OSError):
            own = join(path, FOLDER)
            if number == 0 and not any(name.startswith(ASIDE) for name in os.listdir(own)):
                shutil.rmtree(own)
            os.rmdir(path)


def parse_record(text: str) -> Iterator[tuple[str, str, OptInt]]:
    """Path, SHA-256 (hexadecimal, "" where there is none) and size of a RECORD; pure."""
    # Up to the first row that is none: a RECORD is not longer than its damage lets it be.
    with suppress(csv.Error):
        for row in csv.reader(io.StringIO(text, newline="")):
            path, digest, size = (*row, "", "", "")[:3]
            kind, _, value = digest.partition("=")
            with suppress(ValueError):
                plain = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
                yield path, plain if kind == "sha256" else "", int(size) if size.isdigit() else None
