"""A process as it fills with libraries: what is loaded decides what is searched for next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.probes.elf import Broken, Elf
from cudadoctor.probes.loader import MOST_FOLDERS, Hit, Mapped, Search


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
