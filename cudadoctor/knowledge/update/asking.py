"""Asks the places one after the other; a place that fails takes nothing from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from cudadoctor.knowledge.build.seen import merged
from cudadoctor.knowledge.update import companion_releases as companions
from cudadoctor.knowledge.update import torch_index, torch_release
from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, Unreachable
from cudadoctor.knowledge.update.listing import (
    IndexFile,
    completed,
    files_of,
    lacks_days,
    newest_requires,
)
from cudadoctor.knowledge.update.pages import Unreadable, text_of
from cudadoctor.knowledge.update.public import conda_forge, cuda_notes, docker_hub, release_matrix
from cudadoctor.knowledge.update.rows import Change, Reading, Tables, difference, joined, journal
from cudadoctor.knowledge.update.wheel_inside import (
    Inside,
    requirements,
    requirements_of,
    torch_inside,
)

PYPI = "https://pypi.org/simple"
TORCH_INDEX = "https://download.pytorch.org/whl"
TITLES = {
    torch_release.SOURCE: "Package index: names and upload days of files, and what wheels say",
    torch_index.SOURCE: "Index of the PyTorch project: names of the wheels of each variant",
    release_matrix.SOURCE: release_matrix.TITLE,
    docker_hub.SOURCE: docker_hub.TITLE,
    conda_forge.SOURCE: conda_forge.TITLE,
    cuda_notes.SOURCE: cuda_notes.TITLE,
}
"""The places by their short names, in the order in which they are asked."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read. only: names of packages and places, () for all of them.

    deep: read the code lists out of the wheels of a new torch.
    """

    index: str = PYPI
    torch_index: str = TORCH_INDEX
    only: tuple[str, ...] = ()
    deep: bool = False

    def wants(self, *names: str) -> bool:
        return not self.only or any(name in self.only for name in names)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read: what differs from the tables, remarks, failures.

    reached: the short names of the places that answered.
    """

    changes: tuple[Change, ...]
    remarks: tuple[str, ...]
    failures: tuple[str, ...]
    reached: tuple[str, ...]


Pairs = Mapping[str, tuple[companions.Paired, ...]]
Reader = Callable[[Fetcher, Tables], Iterator[Reading]]


def ask(fetch: Fetcher, tables: Tables, asked: Asked) -> Answer:
    """Everything that was asked for, against these tables."""
    current: Tables = tables
    changes: list[Change] = []
    readings: list[Reading] = []
    reached: list[str] = []
    for name, reader in _places(asked):
        found = joined(_guarded(reader, fetch, current))
        new = difference(current, found.rows)
        current = _with(current, new)
        changes += new
        readings.append(found)
        reached += [name] if found.rows or not found.failures else []
    everything = joined(readings)
    return Answer(
        changes=tuple(changes),
        remarks=everything.remarks,
        failures=everything.failures,
        reached=tuple(reached),
    )


def newest_torch(fetch: Fetcher, index: str = PYPI) -> str:
    """The newest final torch on the index. Raises NotRead, Unreadable."""
    found = torch_release.newest_of(_files(fetch, index, "torch", days=False))
    if found is None:
        raise Unreadable(f"{_page(index, 'torch')!a} lists no final release of torch.")
    return found


def _guarded(reader: Reader, fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    try:
        yield from reader(fetch, tables)
    except (NotRead, Unreadable) as error:
        yield Reading(failures=(str(error),))


def _with(tables: Tables, changes: Iterable[Change]) -> dict[str, dict[str, Any]]:
    """The tables as they would be with these changes, for the places asked after this one."""
    day = str(tables["torch"]["collected"])
    nothing = {"_about": {"collected": day, "sources": {}}, "rows": []}
    return merged(tables, journal(nothing, changes, TITLES, day))


# --- the package index ----------------------------------------------------------------------


def _package_index(fetch: Fetcher, tables: Tables, *, asked: Asked) -> Iterator[Reading]:
    paired: dict[str, tuple[companions.Paired, ...]] = {}
    for package in companions.packages(tables):
        with_torch = ("torch",) if package in companions.PAIRED else ()
        if asked.wants(torch_release.SOURCE, package, *with_torch):
            try:
                reading, known = _companion(fetch, tables, asked.index, package)
            except Unreachable:
                raise
            except (NotRead, Unreadable) as error:
                yield Reading(failures=(str(error),))
                continue
            if not reading.failures:
                paired[package] = known
            yield reading
    if asked.wants(torch_release.SOURCE, "torch"):
        yield from _torch(fetch, tables, asked, paired)


def _companion(
    fetch: Fetcher, tables: Tables, index: str, package: str
) -> tuple[Reading, tuple[companions.Paired, ...]]:
    """New releases of a package; with the requirement of each known one."""
    url = _page(index, package)
    found = companions.companions_of(package, _files(fetch, index, package, days=True))
    rows = [*companions.known_platforms(found, tables, package, url)]
    failures = []
    for one in companions.unknown(found, tables, package):
        try:
            requires = _requires(fetch, index, one)
        except (NotRead, Unreadable) as error:
            failures.append(f"{package} {one.version}: {error}")
            continue
        rows.append(companions.row(one, requires, url))
    known = {row["version"]: row["torch"] for row in tables["companions"]["releases"]
             if row["package"] == package}  # fmt: skip
    known |= {row.key["version"]: row.values["torch"] for row in rows if "torch" in row.values}
    gone = companions.yanked(found, tables, package)
    remarks = (*gone.remarks, *companions.by_hand(rows))
    reading = Reading(rows=tuple(rows), remarks=remarks, failures=tuple(failures))
    return reading, companions.pairs(found, known)


def _requires(fetch: Fetcher, index: str, one: companions.Companion) -> tuple[str, ...] | None:
    """What a release requires: its wheel says it, else the index, of the newest release only."""
    if one.file is not None:
        return requirements_of(fetch, one.file)
    version, lines = newest_requires(fetch.get(_older_json(index, one.package)).body)
    return None if lines is None or version != one.version else requirements(lines)


def _torch(fetch: Fetcher, tables: Tables, asked: Asked, paired: Pairs) -> Iterator[Reading]:
    url = _page(asked.index, "torch")
    releases = torch_release.releases_of(_files(fetch, asked.index, "torch", days=True))
    yield torch_release.known_releases(releases, tables, url)
    for package in companions.PAIRED:
        page = _page(asked.index, package)
        pairs = companions.new_pairs(package, tables, paired.get(package, ()), page)
        yield Reading(rows=pairs)
    for build in torch_release.without_code(tables) if asked.deep else ():
        if build[0] in releases:
            yield _code(fetch, releases[build[0]], build, url)
    for release in torch_release.unknown(releases, tables):
        try:
            yield _new_torch(fetch, release, paired, url, deep=asked.deep)
        except (NotRead, Unreadable) as error:
            yield Reading(failures=(f"torch {release.torch}: {error}",))


def _code(
    fetch: Fetcher, release: torch_release.Release, build: tuple[str, str, str], url: str
) -> Reading:
    """The code list of a build in the tables, out of its wheel."""
    try:
        inside = torch_inside(fetch, release.middle(build[2])[1], deep=True)
    except (NotRead, Unreadable) as error:
        return Reading(failures=(f"torch {release.torch}: {error}",))
    if not inside.archs:
        return Reading(remarks=(f"No list of GPUs stands in the wheel of torch {release.torch}.",))
    return Reading(rows=(torch_release.code(build, inside.archs, url),))


def _new_torch(
    fetch: Fetcher, release: torch_release.Release, paired: Pairs, url: str, *, deep: bool
) -> Reading:
    """A release that the tables lack, whole or not at all: half of it would look like absence."""
    if release.day is None:
        raise Unreadable("The index does not say when it was uploaded.")
    pair = {}
    for package in companions.PAIRED:
        if package not in paired:
            raise NotRead(f"Which {package} belongs to it is not known.")
        pair[package] = companions.pair_for(release.torch, release.day, paired[package])
    insides = {
        platform: torch_inside(fetch, release.middle(platform)[1], deep=deep)
        for platform in release.platforms()
    }
    rows = torch_release.new_release(release, insides, pair, url)
    return Reading(rows=rows, remarks=_lacking(release.torch, insides))


def _lacking(torch: str, insides: Mapping[str, Inside]) -> tuple[str, ...]:
    if any(one.cuda and not one.archs for one in insides.values()):
        return (
            f"The GPUs that torch {torch} has code for are not known yet, so it is not prescribed:"
            " --deep reads them out of the wheels.",
        )
    return ()


def _files(fetch: Fetcher, index: str, package: str, *, days: bool) -> tuple[IndexFile, ...]:
    url = _page(index, package)
    files = files_of(package, fetch.get(url).body, url)
    if days and lacks_days(files):
        files = completed(files, fetch.get(_older_json(index, package)).body)
    return files


def _older_json(index: str, package: str) -> str:
    return f"{index.rstrip('/').removesuffix('/simple')}/pypi/{package}/json"


def _page(index: str, package: str) -> str:
    return f"{index.rstrip('/')}/{package}/"


# --- torch's own index and the public tables -------------------------------------------------


def _places(asked: Asked) -> Iterator[tuple[str, Reader]]:
    """Whom to ask. Of two that speak of one build the later, by name too, knows better."""
    others: dict[str, Reader] = {
        conda_forge.SOURCE: _conda_forge,
        cuda_notes.SOURCE: _cuda_notes,
        docker_hub.SOURCE: _docker_hub,
        release_matrix.SOURCE: _release_matrix,
        torch_index.SOURCE: partial(_torch_index, root=f"{asked.torch_index.rstrip('/')}/"),
    }
    if not asked.only or set(asked.only) - others.keys():
        yield torch_release.SOURCE, partial(_package_index, asked=asked)
    yield from ((name, reader) for name, reader in others.items() if asked.wants(name))


def _torch_index(fetch: Fetcher, tables: Tables, *, root: str) -> Iterator[Reading]:
    listed = torch_index.variants_in(fetch.get(root).body, root)
    for variant in torch_index.to_read(listed, tables):
        url = f"{root}{quote(variant)}/torch/"
        try:
            files = files_of("torch", fetch.get(url).body, url)
        except Unreachable:
            raise
        except (NotRead, Unreadable) as error:
            yield Reading(failures=(str(error),))
            continue
        yield torch_index.rows_of(variant, files, tables, url)


def _release_matrix(fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    url = release_matrix.URL
    yield release_matrix.read(text_of(fetch.get(url).body), tables, url)


def _cuda_notes(fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    url = cuda_notes.URL
    yield cuda_notes.read(text_of(fetch.get(url).body), tables, url)


def _conda_forge(fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    url = conda_forge.URL
    yield conda_forge.read(fetch.get(url).body, tables, url)


def _docker_hub(fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    names: list[str] = []
    url: str | None = docker_hub.URL
    for _ in range(docker_hub.MOST_PAGES):
        if url is None:
            break
        tags = docker_hub.page(fetch.get(url).body, url)
        names += tags.names
        url = tags.following
    else:
        raise Unreadable(f"{docker_hub.URL!a} has no last page.")
    yield docker_hub.read(tuple(names), tables, docker_hub.URL)
