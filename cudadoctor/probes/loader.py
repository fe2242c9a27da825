"""The rules of glibc's dynamic loader: which file answers when a library asks for another.

The order, for a name without a slash: what is loaded already; DT_RPATH of the library that asks
and of those that brought it in, unless it has DT_RUNPATH; LD_LIBRARY_PATH; its own DT_RUNPATH,
which is not passed on; the cache of ldconfig; the default folders. ld.so(8) tells the same story.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from cudadoctor.host.local import Host
from cudadoctor.model.machine import OptStr, Strings, StrPair
from cudadoctor.probes import extract
from cudadoctor.probes.elf import Elf, read_elf

MOST_FOLDERS = 4096
CACHE = "/etc/ld.so.cache"
CACHED = "ld.so.cache"
HWCAPS = "glibc-hwcaps"
ABSENT = Elf(why="not there")
_STORES = ("/nix/store/", "/gnu/store/")

# Flags of a cache entry by (word size, e_machine): sysdeps/generic/ldconfig.h of glibc.
_CACHE_FLAGS = {(64, 62): 0x0303, (64, 183): 0x0A03, (64, 21): 0x0503, (64, 22): 0x0403}
_PLATFORMS = {62: "x86_64", 183: "aarch64"}
_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))


class Mapped(Struct, eq=False):
    """A library in the process. path: as it was opened; real: without symbolic links.

    by: the library that asked for it first, whose DT_RPATH it inherits.
    """

    path: str
    real: str
    elf: Elf
    by: Mapped | None = None
    how: str = "path"
    via: OptStr = None

    @property
    def rpath(self) -> OptStr:
        """DT_RPATH, which counts only where there is no DT_RUNPATH beside it."""
        return self.elf.rpath if self.elf.runpath is None else None

    @property
    def title(self) -> str:
        return self.elf.soname or self.path.rpartition("/")[2]


class Hit(NamedTuple):
    """A file that the loader takes. how: by which rule; via: whose tag decided, or who asked."""

    path: str
    elf: Elf
    how: str
    via: OptStr


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
    rows = bytes(base[48 : 48 + min(int.from_bytes(base[20:24], "little"), 1 << 20) * 24])
    entries = (
        CacheEntry(_text(data, start + key), _text(data, start + value), flags)
        for flags, key, value, _, _ in struct.iter_unpack("<iIIIQ", rows[: len(rows) // 24 * 24])
    )
    return tuple(entry for entry in entries if entry.name and entry.path)


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
        self.elf = cache(partial(read_elf, host))
        self._real = cache(lambda path: host.stat(path).real or path)
        self._expanded: dict[StrPair, Strings] = {}
        loader = executable.elf.interpreter
        self.interpreter = host.stat(loader or "/lib64/ld-linux-x86-64.so.2").real or loader or ""
        self.lib, self.default = _system_folders(self.interpreter)
        self.named = self.split(env.get("LD_LIBRARY_PATH", ""), executable, "[:;]")
        self.too_many = len(self.named) >= MOST_FOLDERS
        self.path = tuple(folder for folder in self.named if self.names(folder) != frozenset())

    def find(self, name: str, asking: Mapped) -> Hit | None:
        """The file that the loader takes for a name that is not loaded yet."""
        name = self.expand(name, asking)
        if "/" in name:
            elf = self.elf(name)
            return None if elf is None else Hit(name, elf, "path", asking.title)
        for paths, how, via in self._rules(name, asking):
            for path in paths:
                if (elf := self.elf(path)) is not None and self.fits(elf):
                    return Hit(path, elf, how, via)
        return None

    def _rules(self, name: str, asking: Mapped) -> Iterator[tuple[Iterable[str], str, str]]:
        """The files that each rule leads to, the rule, and whose tag it is or who asks."""
        title, runpath = asking.title, asking.elf.runpath
        for owner in self._inherited(asking) if runpath is None else ():
            yield self._files(self.split(owner.rpath or "", owner), name), "DT_RPATH", owner.title
        yield self._files(self.path, name), "LD_LIBRARY_PATH", title
        if runpath is not None:
            yield self._files(self.split(runpath, asking), name), "DT_RUNPATH", title
        hidden = self.default if asking.elf.no_default else ()
        cached = self.cached.get(name, ())
        yield [path for path in cached if path.rpartition("/")[0] not in hidden], CACHED, title
        if not hidden:
            yield self._files(self.default, name), "default", title

    def _inherited(self, asking: Mapped) -> Iterator[Mapped]:
        """Those whose DT_RPATH counts: who asks, who brought it in, and the executable."""
        chain: list[Mapped] = []
        owner: Mapped | None = asking
        while owner is not None:
            chain.append(owner)
            owner = owner.by
        if self.executable not in chain:
            chain.append(self.executable)
        return (mapped for mapped in chain if mapped.rpath is not None)

    def _files(self, folders: Iterable[str], name: str) -> Iterator[str]:
        """The files of that name, of each folder those for newer processors first."""
        for folder in folders:
            names = self.names(folder)
            deeper = self.levels if names is not None and HWCAPS in names else ()
            for place in (*(f"{folder}/{HWCAPS}/{level}" for level in deeper), folder):
                found = self.names(place)
                # A folder that cannot be listed may still be searched by name.
                if found is None or name in found:
                    yield f"{place}/{name}"

    def fits(self, elf: Elf) -> bool:
        """Another word size or processor is passed over; a broken file is taken and fails."""
        main = self.executable.elf
        return bool(elf.why or main.why) or elf.kind == main.kind

    def names(self, folder: str) -> frozenset[str] | None:
        """The names in a folder; None where it is there and cannot be listed."""
        if folder not in self.folders:
            listing = self.host.listing(folder)
            known = listing.why is None or not listing.why.startswith("EACCES")
            self.folders[folder] = frozenset(listing.names) if known else None
        return self.folders[folder]

    def real(self, path: str) -> str:
        """A file without symbolic links; its folder is resolved once."""
        folder, _, name = path.rpartition("/")
        return self._real(f"{self._real(folder or '/').rstrip('/')}/{name}")

    def split(self, text: str, owner: Mapped, separator: str = ":") -> Strings:
        """The folders of a search path; an empty one is the working folder."""
        key = text, owner.path
        if key not in self._expanded:
            parts = dict.fromkeys(re.split(separator, text)) if text else {}
            first = islice(parts, MOST_FOLDERS)
            self._expanded[key] = tuple(self.expand(part, owner) or "." for part in first)
        return self._expanded[key]

    def expand(self, text: str, owner: Mapped) -> str:
        """$ORIGIN is the folder of the library (the real one of an executable)."""
        if "$" not in text:
            return text
        origin = (owner.real if owner is self.executable else owner.path).rpartition("/")[0]
        platform = _PLATFORMS.get(owner.elf.machine, "")
        for token, value in (("ORIGIN", origin), ("LIB", self.lib), ("PLATFORM", platform)):
            text = text.replace("${" + token + "}", value).replace("$" + token, value)
        return text

    @cached_property
    def levels(self) -> Strings:
        """Names of the glibc-hwcaps folders that this processor may use, newest first."""
        text = self.host.read("/proc/cpuinfo", 1 << 16).text
        flags = set((extract(r"(?m)^flags[^:\n]*:(.*)", text) or "").split())
        return tuple(name for name, wants in _LEVELS if wants <= flags)

    @cached_property
    def cached(self) -> dict[str, list[str]]:
        """What ldconfig knows for this processor: name -> files, in the order of preference."""
        found: dict[str, list[str]] = {}
        if self.interpreter.startswith(_STORES):
            return found
        main = self.executable.elf
        wants = _CACHE_FLAGS.get((main.bits, main.machine))
        for entry in parse_cache(self.host.read(CACHE, 16 << 20).data):
            level = _level(entry.path)
            if wants in (None, entry.flags) and (not level or f"x86-64-v{level}" in self.levels):
                found.setdefault(entry.name, []).append(entry.path)
        for files in found.values():
            files.sort(key=_level, reverse=True)
        return found


def _level(path: str) -> int:
    return int(extract(r"/glibc-hwcaps/x86-64-v([234])", path) or 0)


def _system_folders(interpreter: str) -> tuple[str, Strings]:
    """What $LIB means and the default folders: they follow from where the loader itself lies."""
    folder = interpreter.rpartition("/")[0]
    if interpreter.startswith(_STORES):
        return "lib", (folder,)
    lib = folder.removeprefix("/usr").strip("/") or "lib64"
    folders = (f"/{lib}", f"/usr/{lib}", "/lib", "/usr/lib")
    return lib, tuple(dict.fromkeys(folders if "/" in lib else folders[:2]))


# --- a process as it fills with libraries: what is loaded decides what is searched for ne-----


class Opened(Struct):
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
        main = search.executable
        self._add(main)
        roots = [main]
        preloads = search.env.get("LD_PRELOAD", "").replace(":", " ").split()[:MOST_FOLDERS]
        for name in (*preloads, *search.host.read("/etc/ld.so.preload", 1 << 16).text.split()):
            hit = search.find(name, main)
            if hit is not None and not hit.elf.why and search.fits(hit.elf):
                roots.append(self._map(name, hit._replace(how="LD_PRELOAD"), main))
        if path := main.elf.interpreter:
            loader = Mapped(path, search.real(path), search.elf(path) or ABSENT, main)
            self._add(loader, path, loader.title)
        self._needs(roots, self.start)

    def loaded_as(self, name: str) -> Mapped | None:
        """The library that answers to a name because it is loaded already."""
        return self._names.get(name)

    def open(self, name: str, asking: Mapped, *, keep: bool = False, how: OptStr = None) -> Opened:
        """What dlopen does: map the library and all it needs, or nothing at all.

        keep: go on where the loader would give up, to see everything that is wrong.
        """
        count, names = len(self.loaded), dict(self._names)
        opened = Opened()
        root = self._load(name, asking, opened, how)
        self._needs([root] if root else [], opened)
        if not opened.ok and not keep:
            del self.loaded[count:]
            self._names = names
        return opened

    def _needs(self, queue: list[Mapped], opened: Opened) -> None:
        """Breadth first through DT_NEEDED, as the loader goes."""
        for mapped in queue:
            for name in mapped.elf.needed:
                found = self._load(name, mapped, opened)
                if found is not None and found not in queue:
                    queue.append(found)

    def _load(self, name: str, asking: Mapped, opened: Opened, how: OptStr = None) -> Mapped | None:
        if known := self._names.get(name):
            return known
        hit = self.search.find(name, asking)
        if hit is None:
            opened.missing.append(name)
            return None
        if hit.elf.why:
            opened.broken.append(hit.path)
        return self._map(name, hit._replace(how=how or hit.how), asking)

    def _map(self, name: str, hit: Hit, asking: Mapped) -> Mapped:
        """Map a file, or take the mapping of the same file under another name."""
        real = self.search.real(hit.path)
        for mapped in self.loaded:
            if mapped.real == real:
                self._names.setdefault(name, mapped)
                return mapped
        mapped = Mapped(hit.path, real, hit.elf, asking, hit.how, hit.via)
        self._add(mapped, name, hit.path, hit.elf.soname or name)
        return mapped

    def _add(self, mapped: Mapped, *names: str) -> None:
        self.loaded.append(mapped)
        for name in names:
            self._names.setdefault(name, mapped)
