"""The rules of glibc's dynamic loader: which file answers when a library asks for another.

The order, for a name without a slash: what is loaded already; DT_RPATH of the library that asks
and of those that brought it in, unless it has DT_RUNPATH; LD_LIBRARY_PATH; its own DT_RUNPATH,
which is not passed on; the cache of ldconfig; the default folders. ld.so(8) tells the same story.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import msgspec

from cudadoctor.host.local import Host
from cudadoctor.probes.elf import Broken, Elf, read_elf

MOST_FOLDERS = 4096
CACHE = "/etc/ld.so.cache"

# Flags of a cache entry by (word size, e_machine): sysdeps/generic/ldconfig.h of glibc.
_CACHE_FLAGS = {(64, 62): 0x0303, (64, 183): 0x0A03, (64, 21): 0x0503, (64, 22): 0x0403}
_PLATFORMS = {62: "x86_64", 183: "aarch64"}
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))


class Mapped(msgspec.Struct, eq=False):
    """A library in the process. path: as it was opened; real: without symbolic links.

    by: the library that asked for it first, whose DT_RPATH it inherits.
    """

    name: str
    path: str
    real: str
    elf: Elf | Broken
    by: Mapped | None = None
    how: str = "path"
    via: str | None = None

    @property
    def rpath(self) -> str | None:
        """DT_RPATH, which counts only where there is no DT_RUNPATH beside it."""
        return self.elf.rpath if isinstance(self.elf, Elf) and self.elf.runpath is None else None

    @property
    def runpath(self) -> str | None:
        return self.elf.runpath if isinstance(self.elf, Elf) else None

    @property
    def title(self) -> str:
        soname = self.elf.soname if isinstance(self.elf, Elf) else None
        return soname or self.path.rpartition("/")[2]


class Hit(NamedTuple):
    """A file that the loader takes. how: by which rule; via: whose tag decided, or who asked."""

    path: str
    elf: Elf | Broken
    how: str
    via: str | None


class Place(NamedTuple):
    """Folders to search, by one rule."""

    folders: tuple[str, ...]
    how: str
    via: str | None


class CacheEntry(NamedTuple):
    """One line of `ldconfig -p`."""

    name: str
    path: str
    flags: int


@lru_cache(maxsize=2)
def parse_cache(data: bytes) -> tuple[CacheEntry, ...]:
    """The entries of ld.so.cache, in its order; nothing where it is no such file."""
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0 or len(data) < start + 48:
        return ()
    base = memoryview(data)[start:]
    count = int.from_bytes(base[20:24], "little")
    rows = bytes(base[48 : 48 + min(count, 1 << 20) * 24])
    entries = (
        CacheEntry(_text(data, start + key), _text(data, start + value), flags)
        for flags, key, value, _, _ in struct.iter_unpack("<iIIIQ", rows[: len(rows) // 24 * 24])
    )
    return tuple(one for one in entries if one.name and one.path)


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    return data[at:end].decode("utf-8", "surrogateescape") if end > at else ""


class Search:
    """Where one machine's loader looks for libraries, for one executable and environment.

    named: the folders of LD_LIBRARY_PATH; path: those that hold anything. too_many: not all were
    looked at.
    """

    def __init__(self, host: Host, executable: Mapped, env: Mapping[str, str]) -> None:
        self.host = host
        self.executable = executable
        self.env = env
        self.folders: dict[str, frozenset[str] | None] = {}
        self.files: dict[str, Elf | Broken | None] = {}
        self.reals: dict[str, str] = {}
        self._levels: tuple[str, ...] | None = None
        self._expanded: dict[tuple[str, str], tuple[str, ...]] = {}
        self._cache: dict[str, list[str]] | None = None
        self.interpreter = self._interpreter()
        self.lib, self.default = _system_folders(self.interpreter)
        self.named = self.split(env.get("LD_LIBRARY_PATH", ""), executable, ":;")
        self.too_many = len(self.named) >= MOST_FOLDERS
        self.path = tuple(folder for folder in self.named if self.names(folder) != frozenset())

    def find(self, name: str, asking: Mapped) -> Hit | None:
        """The file that the loader takes for a name that is not loaded yet."""
        name = self.expand(name, asking)
        if "/" in name:
            elf = self.elf(name)
            return None if elf is None else Hit(name, elf, "path", asking.title)
        for place in self._places(asking):
            for folder in place.folders:
                hit = self._look(folder, name, place)
                if hit is not None:
                    return hit
        return self._cached(name, asking) or self._last(name, asking)

    def _places(self, asking: Mapped) -> Iterator[Place]:
        if asking.runpath is None:
            yield from self._inherited(asking)
        yield Place(self.path, "LD_LIBRARY_PATH", asking.title)
        if asking.runpath is not None:
            yield Place(self.split(asking.runpath, asking), "DT_RUNPATH", asking.title)

    def _inherited(self, asking: Mapped) -> Iterator[Place]:
        one: Mapped | None = asking
        seen_main = False
        while one is not None:
            if one.rpath is not None:
                yield Place(self.split(one.rpath, one), "DT_RPATH", one.title)
            seen_main |= one is self.executable
            one = one.by
        main = self.executable
        if not seen_main and main.rpath is not None:
            yield Place(self.split(main.rpath, main), "DT_RPATH", main.title)

    def _cached(self, name: str, asking: Mapped) -> Hit | None:
        for path in self.cache.get(name, ()):
            if _no_default(asking) and path.rpartition("/")[0] in self.default:
                continue
            elf = self.elf(path)
            if elf is not None and self.fits(elf):
                return Hit(path, elf, "ld.so.cache", asking.title)
        return None

    def _last(self, name: str, asking: Mapped) -> Hit | None:
        if _no_default(asking):
            return None
        place = Place(self.default, "default", asking.title)
        hits = (self._look(folder, name, place) for folder in self.default)
        return next((hit for hit in hits if hit is not None), None)

    def _look(self, folder: str, name: str, place: Place) -> Hit | None:
        """A file of that name in a folder, in its folders for newer processors first."""
        names = self.names(folder)
        if names is not None and name not in names and "glibc-hwcaps" not in names:
            return None
        for deeper in (*self._capable(folder, names), folder):
            found = self.names(deeper)
            # A folder that cannot be listed may still be searched by name.
            if found is not None and name not in found:
                continue
            path = f"{deeper}/{name}"
            elf = self.elf(path)
            if elf is not None and self.fits(elf):
                return Hit(path, elf, place.how, place.via)
        return None

    def _capable(self, folder: str, names: frozenset[str] | None) -> tuple[str, ...]:
        if names is None or "glibc-hwcaps" not in names:
            return ()
        return tuple(f"{folder}/glibc-hwcaps/{level}" for level in self.levels)

    def fits(self, elf: Elf | Broken) -> bool:
        """Another word size or processor is passed over; a broken file is taken and fails."""
        main = self.executable.elf
        return not isinstance(elf, Elf) or not isinstance(main, Elf) or elf.kind == main.kind

    def names(self, folder: str) -> frozenset[str] | None:
        """The names in a folder; None where it is there and cannot be listed."""
        if folder not in self.folders:
            listing = self.host.listing(folder)
            known = listing.why is None or not listing.why.startswith("EACCES")
            self.folders[folder] = frozenset(listing.names) if known else None
        return self.folders[folder]

    def elf(self, path: str) -> Elf | Broken | None:
        """What is in a file; each is read once."""
        if path not in self.files:
            self.files[path] = read_elf(self.host, path)
        return self.files[path]

    def real(self, path: str) -> str:
        """A file without symbolic links; its folder is resolved once."""
        folder, _, name = path.rpartition("/")
        if folder not in self.reals:
            self.reals[folder] = self.host.stat(folder or "/").real or folder
        whole = f"{self.reals[folder].rstrip('/')}/{name}"
        if whole not in self.reals:
            self.reals[whole] = self.host.stat(whole).real or whole
        return self.reals[whole]

    def split(self, text: str, owner: Mapped, separators: str = ":") -> tuple[str, ...]:
        """The folders of a search path; an empty one is the working folder."""
        key = text, owner.path
        if key not in self._expanded:
            for other in separators[1:]:
                text = text.replace(other, separators[0])
            parts = dict.fromkeys(text.split(separators[0])) if text else {}
            first = islice(parts, MOST_FOLDERS)
            self._expanded[key] = tuple(self.expand(part, owner) or "." for part in first)
        return self._expanded[key]

    def expand(self, text: str, owner: Mapped) -> str:
        """$ORIGIN is the folder of the library (the real one of an executable)."""
        if "$" not in text:
            return text
        origin = (owner.real if owner is self.executable else owner.path).rpartition("/")[0]
        machine = owner.elf.machine if isinstance(owner.elf, Elf) else 0
        platform = _PLATFORMS.get(machine, "")
        for token, value in (("ORIGIN", origin), ("LIB", self.lib), ("PLATFORM", platform)):
            text = text.replace("${" + token + "}", value).replace("$" + token, value)
        return text

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the glibc-hwcaps folders that this processor may use, newest first."""
        if self._levels is None:
            flags = set(_cpu_flags(self.host.read("/proc/cpuinfo", 1 << 16).text))
            self._levels = tuple(name for name, wants in _LEVELS if wants <= flags)
        return self._levels

    @property
    def cache(self) -> dict[str, list[str]]:
        """What ldconfig knows for this processor: name -> files, in the order of preference."""
        if self._cache is None:
            self._cache = {}
            if not self.interpreter.startswith(("/nix/store/", "/gnu/store/")):
                for entry in parse_cache(self.host.read(CACHE, 16 << 20).data):
                    if self._usable(entry):
                        self._cache.setdefault(entry.name, []).append(entry.path)
                for files in self._cache.values():
                    files.sort(key=lambda path: -_level(path))
        return self._cache

    def _usable(self, entry: CacheEntry) -> bool:
        main = self.executable.elf
        wants = _CACHE_FLAGS.get((main.bits, main.machine)) if isinstance(main, Elf) else None
        if wants is not None and entry.flags != wants:
            return False
        level = _level(entry.path)
        return level == 0 or f"x86-64-v{level}" in self.levels

    def _interpreter(self) -> str:
        elf = self.executable.elf
        name = elf.interpreter if isinstance(elf, Elf) else None
        return self.host.stat(name or "/lib64/ld-linux-x86-64.so.2").real or name or ""


def _no_default(asking: Mapped) -> bool:
    return isinstance(asking.elf, Elf) and asking.elf.no_default


def _level(path: str) -> int:
    _, found, rest = path.partition("/glibc-hwcaps/x86-64-v")
    return int(rest[0]) if found and rest[:1] in "234" and rest else 0


def _cpu_flags(text: str) -> list[str]:
    lines = (line for line in text.splitlines() if line.startswith("flags"))
    return next(lines, "").partition(":")[2].split()


def _system_folders(interpreter: str) -> tuple[str, tuple[str, ...]]:
    """What $LIB means and the default folders: they follow from where the loader itself lies."""
    folder = interpreter.rpartition("/")[0]
    if folder.startswith(("/nix/store/", "/gnu/store/")):
        return "lib", (folder,)
    lib = folder.removeprefix("/usr").strip("/") or "lib64"
    folders = (f"/{lib}", f"/usr/{lib}", "/lib", "/usr/lib")
    return lib, tuple(dict.fromkeys(folders if "/" in lib else folders[:2]))


# --- a process as it fills with libraries: what is loaded decides what is searched for ne-----


class Opened(msgspec.Struct):
    """How one opening ended. missing: names that nothing answers; broken: files that fail."""

    missing: list[str] = []
    broken: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.missing and not self.broken


class Process:
    """A process of an executable as it fills with libraries, without running anything."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.loaded: list[Mapped] = []
        self.start = Opened()
        self._names: dict[str, Mapped] = {}
        self._start()

    def _start(self) -> None:
        main = self.search.executable
        self._add(main, ())
        roots = [main]
        for name in self._preloads():
            hit = self.search.find(name, main)
            if hit is not None and isinstance(hit.elf, Elf) and self.search.fits(hit.elf):
                roots.append(self._map(name, hit._replace(how="LD_PRELOAD"), main))
        if isinstance(main.elf, Elf) and main.elf.interpreter:
            self._map_loader(main, main.elf.interpreter)
        self._needs(roots, self.start)

    def _preloads(self) -> Iterator[str]:
        text = self.search.env.get("LD_PRELOAD", "")
        yield from text.replace(":", " ").split()[:MOST_FOLDERS]
        yield from self.search.host.read("/etc/ld.so.preload", 1 << 16).text.split()

    def _map_loader(self, main: Mapped, path: str) -> None:
        elf = self.search.elf(path) or Broken("not there")
        one = Mapped(path, path, self.search.real(path), elf, main)
        self._add(one, (path, one.title))

    def loaded_as(self, name: str) -> Mapped | None:
        """The library that answers to a name because it is loaded already."""
        return self._names.get(name)

    def open(
        self, name: str, asking: Mapped, *, keep: bool = False, how: str | None = None
    ) -> Opened:
        """What dlopen does: map the library and all it needs, or nothing at all.

        keep: go on where the loader would give up, to see everything that is wrong.
        """
        count, names = len(self.loaded), dict(self._names)
        opened = Opened()
        root = self._one(name, asking, opened, how)
        if root is not None:
            self._needs([root], opened)
        if not opened.ok and not keep:
            del self.loaded[count:]
            self._names = names
        return opened

    def _needs(self, roots: list[Mapped], opened: Opened) -> None:
        """Breadth first through DT_NEEDED, as the loader goes."""
        queue = list(roots)
        seen = {id(one) for one in queue}
        for one in queue:
            for name in one.elf.needed if isinstance(one.elf, Elf) else ():
                found = self._one(name, one, opened)
                if found is not None and id(found) not in seen:
                    seen.add(id(found))
                    queue.append(found)

    def _one(
        self, name: str, asking: Mapped, opened: Opened, how: str | None = None
    ) -> Mapped | None:
        known = self._names.get(name)
        if known is not None:
            return known
        hit = self.search.find(name, asking)
        if hit is None:
            opened.missing.append(name)
            return None
        if isinstance(hit.elf, Broken):
            opened.broken.append(hit.path)
        return self._map(name, hit if how is None else hit._replace(how=how), asking)

    def _map(self, name: str, hit: Hit, asking: Mapped) -> Mapped:
        """Map a file, or take the mapping of the same file under another name."""
        real = self.search.real(hit.path)
        for one in self.loaded:
            if one.real == real:
                self._names.setdefault(name, one)
                return one
        one = Mapped(name, hit.path, real, hit.elf, asking, hit.how, hit.via)
        soname = hit.elf.soname if isinstance(hit.elf, Elf) else None
        self._add(one, (name, hit.path, *((soname,) if soname else ())))
        return one

    def _add(self, one: Mapped, names: Iterable[str]) -> None:
        self.loaded.append(one)
        for name in names:
            self._names.setdefault(name, one)
