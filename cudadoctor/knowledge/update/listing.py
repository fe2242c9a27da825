"""What a package index answers about a project: its files, as JSON (PEP 691) or HTML (PEP 503)."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
from packaging.utils import canonicalize_name

from cudadoctor.knowledge.update.pages import Unreadable, address, decoded, fed, last_name, text_of
from cudadoctor.knowledge.update.wheel_names import release_of


class IndexFile(msgspec.Struct, frozen=True):
    """A file of a project. day: of its upload, ISO 8601; None, as the others: not told.

    metadata: the index hands out the METADATA of the wheel beside it (PEP 658).
    """

    filename: str
    url: str
    size_bytes: int | None = None
    day: str | None = None
    python: str | None = None
    yanked: bool = False
    metadata: bool = False


class _JsonFile(msgspec.Struct, rename="kebab"):
    filename: str
    url: str
    size: int | None = None
    upload_time: str | None = None
    requires_python: str | None = None
    yanked: bool | str = False
    core_metadata: bool | dict[str, str] = False


class _JsonProject(msgspec.Struct):
    files: list[_JsonFile]


class _OldFile(msgspec.Struct):
    filename: str
    size: int | None = None
    upload_time: str | None = None
    yanked: bool = False


class _Info(msgspec.Struct):
    version: str
    requires_dist: list[str] | None = None


class _OldProject(msgspec.Struct):
    info: _Info
    releases: dict[str, list[_OldFile]]


def files_of(project: str, body: bytes, base: str) -> tuple[IndexFile, ...]:
    """The files of that project in an answer of the index. base: the page's own address.

    Raises Unreadable where there is none: a page that lists nothing is no listing.
    """
    found = _json_files(body, base) if body.lstrip()[:1] == b"{" else _html_files(body, base)
    name = canonicalize_name(project)
    kept = [one for one in found if (release := release_of(one.filename)) and release[0] == name]
    if not kept:
        raise Unreadable(f"The page {base!a} lists no file of {project}.")
    return tuple(kept)


def completed(files: tuple[IndexFile, ...], body: bytes) -> tuple[IndexFile, ...]:
    """The same files with sizes and days out of the index's older JSON, `/pypi/NAME/json`."""
    read = _old(body)
    known = {one.filename: one for rows in read.releases.values() for one in rows}
    return tuple(_with(one, known.get(one.filename)) for one in files)


def newest_requires(body: bytes) -> tuple[str, tuple[str, ...] | None]:
    """The newest release by the index's older JSON and what it requires; None not known.

    It speaks for a release that has no wheel.
    """
    info = _old(body).info
    lines = info.requires_dist
    return info.version, None if lines is None else tuple(lines)


def _old(body: bytes) -> _OldProject:
    return decoded(body, _OldProject, "What the index says of a project")


def lacks_days(files: tuple[IndexFile, ...]) -> bool:
    """Whether this listing does not say when its files were uploaded."""
    return any(one.day is None for one in files)


def _with(file: IndexFile, old: _OldFile | None) -> IndexFile:
    if old is None:
        return file
    return msgspec.structs.replace(
        file,
        size_bytes=file.size_bytes or old.size,
        day=file.day or _day(old.upload_time),
        yanked=file.yanked or old.yanked,
    )


def _json_files(body: bytes, base: str) -> list[IndexFile]:
    read = decoded(body, _JsonProject, f"{base!a}")
    return [
        IndexFile(
            filename=one.filename,
            url=address(base, one.url),
            size_bytes=one.size,
            day=_day(one.upload_time),
            python=one.requires_python,
            yanked=one.yanked is not False,
            metadata=bool(one.core_metadata),
        )
        for one in read.files
    ]


def _day(time: str | None) -> str | None:
    day = (time or "")[:10]
    plain = len(day) == 10 and day.isascii() and day.replace("-", "").isdigit()
    return day if plain and day[4] == day[7] == "-" else None


class Links(HTMLParser):
    """Every link of a page, in order, with its attributes; `whole` once the page has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.whole = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self.whole = self.whole or tag == "html"


def links_of(body: bytes, base: str) -> list[dict[str, str | None]]:
    """The links of a whole HTML page. Raises Unreadable for one that was cut."""
    page = Links()
    fed(page, text_of(body), f"{base!a}")
    if not page.whole:
        raise Unreadable(f"The page {base!a} is no whole HTML page.")
    return page.found


def _html_files(body: bytes, base: str) -> list[IndexFile]:
    return [
        IndexFile(
            filename=last_name(link["href"] or ""),
            url=address(base, link["href"] or "").partition("#")[0],
            python=link.get("data-requires-python"),
            yanked="data-yanked" in link,
            metadata=_offers_metadata(link),
        )
        for link in links_of(body, base)
        if link.get("href")
    ]


def _offers_metadata(link: dict[str, str | None]) -> bool:
    names = ("data-core-metadata", "data-dist-info-metadata")
    return any((link.get(name) or "false") != "false" for name in names)
