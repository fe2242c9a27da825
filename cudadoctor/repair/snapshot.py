"""What an environment held before a repair: recorded, kept beside it, and brought back."""

import base64
import contextlib
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
from typing import Literal

import msgspec

from cudadoctor.repair.journal import FOLDER, Root, synced_folder

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

    @property
    def key(self) -> tuple[int, str]:
        return self.root, self.path


class ManifestError(ValueError):
    """The manifest cannot be read in full."""


def dumps(entries: Iterable[Entry]) -> bytes:
    """The manifest as lines; the last one says how many there are. Names of any bytes survive."""
    lines = [json.dumps(msgspec.to_builtins(entry)).encode("ascii") for entry in entries]
    return b"\n".join([*lines, str(len(lines)).encode(), b""])


def loads(data: bytes) -> tuple[Entry, ...]:
    """The entries of a manifest. Raises ManifestError if it is not whole."""
    *lines, count, rest = data.split(b"\n") if data.count(b"\n") else (b"?", b"?")
    if rest or not count.isdigit() or int(count) != len(lines):
        raise ManifestError("the record of what was there is not whole")
    try:
        entries = tuple(msgspec.convert(json.loads(line), Entry) for line in lines)
        _demand_sound(entries)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ManifestError(f"the record of what was there cannot be read: {error}") from error
    return entries


def _demand_sound(entries: Iterable[Entry]) -> None:
    """No entry may lead out of its root: by its words, or through what is no folder of it."""
    folders: set[tuple[int, str]] = set()
    for entry in entries:
        path = entry.path
        above = path.rpartition("/")[0]
        of_windows = os.sep != "/" and {"\\", ":"} & set(path)
        if entry.root < 0 or {"", ".", ".."} & set(path.split("/")) or of_windows:
            raise ValueError(f"it leads elsewhere: {path!r}")
        if above and (entry.root, above) not in folders:
            raise ValueError(f"it leads through what is no folder: {path!r}")
        if entry.kind == "folder":
            folders.add((entry.root, path))


def copied_rather(path: str, size: int) -> bool:
    """Whether a file is copied and not linked: what tools write into in place.

    Nobody does that to large programs, of which a system's bin has hundreds of megabytes.
    """
    if ".dist-info/" in path or ".egg-info" in path:
        return True
    beside = path.count("/") < 4 and path.endswith(_EDITED_IN_PLACE)
    edited = "/" not in path or beside or path.partition("/")[0] in _EDITED_FOLDERS
    return edited and size < LARGE_BYTES


def differing(before: Iterable[Entry], now: Iterable[Entry]) -> Iterator[str]:
    """Paths that came, went or changed from one manifest to another, byte code left out."""
    old, new = (
        {entry.key: face(entry) for entry in entries if not is_byte_code(entry.path)}
        for entries in (before, now)
    )
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
            yield self._kept(described(number, path, found, live), live)

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
        shutil.copy2(live, place)
        copy = described(*entry.key, os.lstat(place), place)
        return msgspec.structs.replace(copy, kind="copied", sha256=sha256_of(place))

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


def walked(root: Root, path: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """All that lies in a root, folders before what is in them; no link is followed."""
    folder = below(root.path, path)
    if not os.path.isdir(root.path):
        return
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda entry: entry.name)
    for entry in inside:
        if not path and (entry.name == FOLDER or not root.has(entry.name)):
            continue
        name = f"{path}/{entry.name}" if path else entry.name
        yield name, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from walked(root, name)


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
        for number in {entry.root for entry in entries}:  # even those may be gone
            os.makedirs(snapshot.roots[number].path, exist_ok=True)
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


def _brought(snapshot: Snapshot, entry: Entry) -> bool:
    """Put one thing back where it is not as it was; whether anything was done."""
    live = snapshot.live(entry)
    now = _stat(live)
    if entry.kind == "special" or (now is not None and _is_as_kept(snapshot, entry, live, now)):
        return False
    if now is not None and (stat.S_ISDIR(now.st_mode) or entry.kind == "folder"):
        with _writable(os.path.dirname(live)):
            if stat.S_ISDIR(now.st_mode):
                shutil.rmtree(live)
            else:
                os.unlink(live)
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
        kept = snapshot.path(entry)
        if entry.kind == "linked":
            with contextlib.suppress(OSError):
                os.link(kept, new)
        if not os.path.lexists(new):
            shutil.copy2(kept, new)
    os.replace(new, live)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # two names of one file: then a move does nothing


def _removed_new(snapshot: Snapshot, entries: Iterable[Entry]) -> int:
    """Remove what was not there, also what tools left behind under names of their own."""
    added = _new(snapshot, entries)
    for entry in reversed(added):
        live = snapshot.live(entry)
        with _writable(os.path.dirname(live)), contextlib.suppress(FileNotFoundError):
            if entry.kind == "folder":
                os.rmdir(live)
            else:
                os.unlink(live)
    return len(added)


def _new(snapshot: Snapshot, entries: Iterable[Entry]) -> list[Entry]:
    """What was not there, but for sockets and pipes and the folders that they lie in."""
    known = {entry.key for entry in entries}
    added = [entry for entry in snapshot.present() if entry.key not in known]
    held: set[tuple[int, str]] = set()
    for entry in added:
        above = entry.path if entry.kind == "special" else ""
        while above:
            held.add((entry.root, above))
            above = above.rpartition("/")[0]
    return [entry for entry in added if entry.key not in held]


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
    for entry in _new(snapshot, entries):
        raise RestoreError(f"{entry.path} has come back while it was being removed")


@contextlib.contextmanager
def _writable(folder: str) -> Iterator[None]:
    """The folder made writable; `_modes` gives back the permissions that it had."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        if mode & _WRITABLE != _WRITABLE:
            os.chmod(folder, mode | _WRITABLE)
    yield


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
        place = below(os.path.join(folder, str(entry.root)), entry.path)
        live = snapshot.live(entry)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with _writable(os.path.dirname(live)):
            shutil.move(live, place)
    return Aside(folder=folder, paths=tuple(snapshot.live(entry) for entry in mine))


def _theirs(snapshot: Snapshot, since_ns: int) -> Iterator[Entry]:
    before = {entry.key: entry for entry in snapshot.entries()}
    left = snapshot.left()
    after = None if left is None else {entry.key: face(entry) for entry in left}
    present = tuple(snapshot.present())
    changed = []
    for entry in present:
        old = before.get(entry.key)
        if entry.kind in ("folder", "special") or is_byte_code(entry.path):
            continue
        if old is not None and face(old) == face(entry):
            continue
        if after is None:
            late = _late(snapshot, entry, since_ns)
        else:
            late = after.get(entry.key) != face(entry)
        if late and not _is_kept(snapshot, entry, old):
            changed.append(entry)
    packaged = _packaged(snapshot, present) if changed else {}
    for entry in changed:
        if not _can_be_had_again(snapshot, entry, packaged.get(entry.key)):
            yield entry


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
    for entry in present:
        if not entry.path.endswith(_RECORD):
            continue
        site = entry.path.rpartition("/")[0].rpartition("/")[0]
        with contextlib.suppress(OSError, UnicodeDecodeError):
            with open(snapshot.live(entry), encoding="utf-8", newline="") as file:
                rows = parse_record(file.read())
            for path, digest, size in rows:
                found[entry.root, posixpath.normpath(posixpath.join(site, path))] = (digest, size)
        found[entry.key] = ("", None)
    return found


def parse_record(text: str) -> Iterator[tuple[str, str, int | None]]:
    """Path, SHA-256 (hexadecimal, "" where there is none) and size of a RECORD; pure."""
    # Up to the first row that is none: a RECORD is not longer than its damage lets it be.
    with contextlib.suppress(csv.Error):
        for row in csv.reader(io.StringIO(text, newline="")):
            path, digest, size = (*row, "", "", "")[:3]
            kind, _, value = digest.partition("=")
            with contextlib.suppress(ValueError):
                plain = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
                yield path, plain if kind == "sha256" else "", int(size) if size.isdigit() else None


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
    stem = folder = os.path.join(above, ASIDE + name.removeprefix("before-"))
    number = 1
    while os.path.lexists(folder):
        number += 1
        folder = f"{stem}-{number}"
    os.mkdir(folder, 0o700)
    return folder
