"""Asks the places one after the other; a place that fails takes nothing from the others."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from cudadoctor.knowledge.update import companions, public, torch_rows
from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, Unreachable
from cudadoctor.knowledge.update.index import (
    IndexFile,
    Inside,
    Unreadable,
    files_of,
    newest_requires,
    requirements_of,
    torch_inside,
)
from cudadoctor.knowledge.update.rows import Change, Reading, Tables, difference, entered
from cudadoctor.knowledge.update.torch_rows import PACKAGE_INDEX, TORCH_INDEX

PYPI = "https://pypi.org/simple"
TORCH_INDEX_URL = "https://download.pytorch.org/whl"
TITLES = {
    PACKAGE_INDEX: "Package index: names and upload days of files, and what wheels say",
    TORCH_INDEX: "Index of the PyTorch project: names of the wheels of each variant",
    public.RELEASE_MATRIX: "pytorch/pytorch RELEASE.md, release compatibility matrix",
    public.DOCKER_HUB: "Docker Hub, tags of nvidia/cuda",
    public.CONDA_FORGE: "Files of pytorch on the conda-forge channel",
    public.CUDA_NOTES: "NVIDIA CUDA Toolkit release notes, drivers of each toolkit",
}
"""The places by their short names."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read. only: names of packages and places, () for all of them.

    deep: read the code lists out of the wheels of a new torch.
    """

    index: str = PYPI
    torch_index: str = TORCH_INDEX_URL
    only: tuple[str, ...] = ()
    deep: bool = False

    def wants(self, *names: str) -> bool:
        return not self.only or any(name in self.only for name in names)

    def page(self, package: str) -> str:
        """The package's page on the index."""
        return f"{self.index.rstrip('/')}/{package}/"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read. tables: with the changes in them; remarks, failures: sentences.

    reached: whether any place answered.
    """

    tables: Tables
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]
    failures: tuple[str, ...]
    reached: bool


Pairs = dict[str, tuple[companions.Paired, ...]]
Reader = Callable[[Fetcher, Tables], Iterable[Reading]]


def ask(fetch: Fetcher, tables: Tables, asked: Asked, day: str) -> Answer:
    """Everything that was asked for, against these tables."""
    changes: list[Change] = []
    readings: list[Reading] = []
    reached = False
    for reader in _places(asked):
        found = list(_guarded(reader, fetch, tables))
        rows = [row for reading in found for row in reading.rows]
        new = difference(tables, rows)
        tables = entered(tables, new, TITLES, day)
        changes += new
        readings += found
        reached = reached or bool(rows) or not any(reading.failures for reading in found)
    return Answer(
        tables=tables,
        changes=tuple(changes),
        remarks=tuple(text for reading in readings for text in reading.remarks),
        failures=tuple(text for reading in readings for text in reading.failures),
        reached=reached,
    )


def newest_torch(fetch: Fetcher, index: str = PYPI) -> str:
    """The newest final torch on the index. Raises NotRead, Unreadable."""
    asked = Asked(index=index)
    releases = torch_rows.releases_of(_files(fetch, asked, "torch"))
    found = next((name for name, release in releases.items() if not release.yanked), None)
    if found is None:
        raise Unreadable(f"{asked.page('torch')!a} lists no final release of torch.")
    return found


def _guarded(reader: Reader, fetch: Fetcher, tables: Tables) -> Iterator[Reading]:
    try:
        yield from reader(fetch, tables)
    except (NotRead, Unreadable) as error:
        yield Reading(failures=(str(error),))


def _files(fetch: Fetcher, asked: Asked, package: str) -> tuple[IndexFile, ...]:
    url = asked.page(package)
    return files_of(package, fetch.get(url).body, url)


# --- the package index ----------------------------------------------------------------------


def _package_index(fetch: Fetcher, tables: Tables, *, asked: Asked) -> Iterator[Reading]:
    paired: Pairs = {}
    for package in companions.packages(tables):
        with_torch = ("torch",) if package in companions.PAIRED else ()
        if asked.wants(PACKAGE_INDEX, package, *with_torch):
            try:
                reading, known = _companion(fetch, tables, asked, package)
            except Unreachable:
                raise
            except (NotRead, Unreadable) as error:
                yield Reading(failures=(str(error),))
                continue
            if not reading.failures:
                paired[package] = known
            yield reading
    if asked.wants(PACKAGE_INDEX, "torch"):
        yield from _torch(fetch, tables, asked, paired)


def _companion(
    fetch: Fetcher, tables: Tables, asked: Asked, package: str
) -> tuple[Reading, tuple[companions.Paired, ...]]:
    """New releases of a package; with the requirement of each known one."""
    url = asked.page(package)
    found = companions.companions_of(package, _files(fetch, asked, package))
    there = tables["companions"]["releases"]
    known = {row["version"]: row for row in there if row["package"] == package}
    specifiers = {version: row["torch"] for version, row in known.items()}
    rows = companions.known_platforms(found, known, url)
    remarks = [
        f"{package} {release.version} was yanked from the index."
        for release in found
        if release.yanked and release.version in known
    ]
    failures = []
    for release in companions.unknown_companions(found, tables, package):
        try:
            row = companions.new_row(release, _requires(fetch, asked, release), url)
        except (NotRead, Unreadable) as error:
            failures.append(f"{package} {release.version}: {error}")
            continue
        rows.append(row)
        specifiers[release.version] = row.values["torch"]
        if package in companions.OWN_BINARIES:
            remarks.append(
                f"Which torch and CUDA the binaries of {package} {release.version} are for"
                " is to be looked up by hand."
            )
    reading = Reading(rows=tuple(rows), remarks=tuple(remarks), failures=tuple(failures))
    pairs = (
        companions.Paired(release.version, specifier, release.day)
        for release in found
        if (specifier := specifiers.get(release.version)) is not None
    )
    return reading, tuple(pairs)


def _requires(
    fetch: Fetcher, asked: Asked, release: companions.Companion
) -> tuple[str, ...] | None:
    """What a release requires: its wheel says it, else the index, of the newest release only."""
    if release.file is not None:
        return requirements_of(fetch, release.file)
    root = asked.index.rstrip("/").removesuffix("/simple")
    version, lines = newest_requires(fetch.get(f"{root}/pypi/{release.package}/json").body)
    return lines if version == release.version else None


def _torch(fetch: Fetcher, tables: Tables, asked: Asked, paired: Pairs) -> Iterator[Reading]:
    url = asked.page("torch")
    releases = torch_rows.releases_of(_files(fetch, asked, "torch"))
    yield torch_rows.known_releases(releases, tables, url)
    for package in companions.PAIRED:
        known = paired.get(package, ())
        yield Reading(rows=companions.new_pairs(package, tables, known, asked.page(package)))
    for build in torch_rows.without_code(tables) if asked.deep else ():
        if release := releases.get(build["torch"]):
            yield _one_torch(release, partial(_code, fetch, release, build, url))
    for release in torch_rows.unknown_releases(releases, tables):
        make = partial(_new_torch, fetch, release, paired, url, deep=asked.deep)
        yield _one_torch(release, make)


def _one_torch(release: torch_rows.Release, read: Callable[[], Reading]) -> Reading:
    try:
        return read()
    except (NotRead, Unreadable) as error:
        return Reading(failures=(f"torch {release.torch}: {error}",))


def _code(
    fetch: Fetcher, release: torch_rows.Release, build: Mapping[str, Any], url: str
) -> Reading:
    """The code list of a build in the tables, out of its wheel."""
    inside = torch_inside(fetch, release.middle(build["platform"])[1], deep=True)
    if not inside.archs:
        return Reading(remarks=(f"No list of GPUs stands in the wheel of torch {release.torch}.",))
    return Reading(rows=(torch_rows.known_build(build, {"archs": list(inside.archs)}, url),))


def _new_torch(
    fetch: Fetcher, release: torch_rows.Release, paired: Pairs, url: str, *, deep: bool
) -> Reading:
    """A release that the tables lack, whole or not at all: half of it would look like absence."""
    if release.day is None:
        raise Unreadable("The index does not say when it was uploaded.")
    for package in companions.PAIRED:
        if package not in paired:
            raise NotRead(f"Which {package} belongs to it is not known.")
    pair = {
        package: companions.pair_for(release.torch, release.day, paired[package])
        for package in companions.PAIRED
    }
    insides = {
        platform: torch_inside(fetch, release.middle(platform)[1], deep=deep)
        for platform in release.platforms
    }
    rows = torch_rows.new_release(release, insides, pair, url)
    return Reading(rows=rows, remarks=_lacking(release.torch, insides.values()))


def _lacking(torch: str, insides: Iterable[Inside]) -> tuple[str, ...]:
    if any(inside.cuda and not inside.archs for inside in insides):
        return (
            f"The GPUs that torch {torch} has code for are not known yet, so it is not prescribed:"
            " --deep reads them out of the wheels.",
        )
    return ()


# --- torch's own index and the public tables -------------------------------------------------


def _places(asked: Asked) -> Iterator[Reader]:
    """Whom to ask. Of two that speak of one build the later knows better."""
    others: dict[str, Reader] = {
        public.CONDA_FORGE: partial(_page, public.conda_forge, public.CONDA_FORGE_URL),
        public.CUDA_NOTES: partial(_page, public.cuda_notes, public.CUDA_NOTES_URL),
        public.DOCKER_HUB: lambda fetch, tables: [public.docker_hub(fetch, tables)],
        public.RELEASE_MATRIX: partial(_page, public.release_matrix, public.RELEASE_MATRIX_URL),
        TORCH_INDEX: partial(_torch_index, root=f"{asked.torch_index.rstrip('/')}/"),
    }
    if not asked.only or set(asked.only) - others.keys():
        yield partial(_package_index, asked=asked)
    yield from (reader for name, reader in others.items() if asked.wants(name))


def _page(
    read: Callable[[bytes, Tables], Reading], url: str, fetch: Fetcher, tables: Tables
) -> Iterator[Reading]:
    yield read(fetch.get(url).body, tables)


def _torch_index(fetch: Fetcher, tables: Tables, *, root: str) -> Iterator[Reading]:
    listed = torch_rows.variants_in(fetch.get(root).body, root)
    for variant in torch_rows.variants_to_read(listed, tables):
        url = f"{root}{quote(variant)}/torch/"
        try:
            files = files_of("torch", fetch.get(url).body, url)
        except Unreachable:
            raise
        except (NotRead, Unreadable) as error:
            yield Reading(failures=(str(error),))
            continue
        yield torch_rows.variant_rows(variant, files, tables, url)
