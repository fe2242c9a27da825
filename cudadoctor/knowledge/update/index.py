"""What a package index says: its pages, the names of its files, and what lies inside a wheel.

Whatever a page holds, only Unreadable is raised. A wheel is never downloaded whole.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import TypeVar, cast
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, RemoteFile

T = TypeVar("T")


class Unreadable(Exception):  # noqa: N818
    """A text is not of the shape that its reader knows: one sentence."""


def decoded(body: bytes, kind: type[T], what: str) -> T:
    """JSON of a known shape. what: names the page in the sentence."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"{what} is JSON of another shape: {str(error)[:120]!a}.") from error


def fed(parser: HTMLParser, body: bytes, what: str) -> None:
    """Hand a whole page to a parser of HTML."""
    try:
        parser.feed(text_of(body))
    except (AssertionError, ValueError, RecursionError) as error:  # broken declarations
        raise Unreadable(f"{what} is no HTML that can be read.") from error


def text_of(body: bytes) -> str:
    """The text of a page; bytes that are no UTF-8 become marks."""
    return body.decode("utf-8", "replace")


# --- the names of files -----------------------------------------------------------------------

NAMED_GLIBC = {"manylinux1": "2.17", "manylinux2010": "2.12", "manylinux2014": "2.17"}
"""manylinux1 promises 2.5; the wheels that torch gave that tag were built on a system with 2.17."""

_LONGEST_NAME = 300


class Wheel(msgspec.Struct, frozen=True):
    """A wheel by its name. version: with its local part. tagged: it bears a build tag.

    pythons: "3.11", "3.14t"; "any" for a wheel that is made for no Python in particular.
    """

    name: str
    version: Version
    tagged: bool
    pythons: tuple[str, ...]
    platforms: tuple[str, ...]
    glibc: str | None


def wheel_of(filename: str) -> Wheel | None:
    """The wheel of that name, None if it is no wheel."""
    try:
        name, version, build, tags = parse_wheel_filename(filename[:_LONGEST_NAME])
    except (InvalidWheelFilename, InvalidVersion, ValueError):
        return None
    floors = {floor for tag in tags if (floor := _glibc(tag.platform))}
    return Wheel(
        name=name,
        version=version,
        tagged=bool(build),
        pythons=tuple(sorted({_python(tag) for tag in tags}, key=python_order)),
        platforms=tuple(sorted({name for tag in tags for name in _platforms(tag.platform)})),
        glibc=min(floors, key=Version, default=None),
    )


def release_of(filename: str) -> tuple[str, Version] | None:
    """The project and release of a wheel or a source archive, None for any other name."""
    if wheel := wheel_of(filename):
        return wheel.name, wheel.version
    try:
        return parse_sdist_filename(filename[:_LONGEST_NAME])
    except (InvalidSdistFilename, InvalidVersion, ValueError):
        return None


def _python(tag: Tag) -> str:
    """cp311-cp311 is "3.11", cp314-cp314t is "3.14t", py3-none is "any"."""
    found = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
    return f"{found[1]}.{found[2]}{'t' * tag.abi.endswith('t')}" if found else "any"


def python_order(python: str) -> tuple[int, ...]:
    """3.9 before 3.10, 3.14 before 3.14t."""
    return (*map(int, re.findall(r"\d+", python)), python.endswith("t"))


def _platforms(tag: str) -> tuple[str, ...]:
    """Our names of the platforms that a tag serves, () for one that the tables do not have."""
    if linux := re.fullmatch(r"(?:manylinux\w*|linux)_(x86_64|aarch64)", tag):
        return (f"linux_{linux[1]}",)
    if tag in ("win_amd64", "win_arm64"):
        return (tag.replace("win", "windows"),)
    if mac := re.fullmatch(r"macosx_\d+_\d+_(arm64|x86_64|universal2)", tag):
        return ("macos_arm64", "macos_x86_64") if mac[1] == "universal2" else (f"macos_{mac[1]}",)
    return ()


def _glibc(tag: str) -> str | None:
    """The oldest glibc of a platform tag."""
    if exact := re.match(r"manylinux_(\d+)_(\d+)_", tag):
        return f"{exact[1]}.{exact[2]}"
    return NAMED_GLIBC.get(tag.partition("_")[0])


# --- listings ---------------------------------------------------------------------------------


class IndexFile(
    msgspec.Struct,
    frozen=True,
    rename={
        "size_bytes": "size",
        "uploaded": "upload-time",
        "python": "requires-python",
        "metadata": "core-metadata",
    },
):
    """A file of a project, with the names of PEP 691; None not said.

    metadata: the index hands out the METADATA of the wheel beside it (PEP 658).
    """

    filename: str
    url: str
    size_bytes: int | None = None
    uploaded: str | None = None
    python: str | None = None
    yanked: bool | str = False
    metadata: bool | dict[str, str] = False

    @property
    def day(self) -> str | None:
        """The day of the upload, ISO 8601."""
        found = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", self.uploaded or "")
        return found[0] if found else None


class _Project(msgspec.Struct):
    files: list[IndexFile]


class _Info(msgspec.Struct):
    version: str
    requires_dist: list[str] | None = None


class _OldProject(msgspec.Struct):
    info: _Info


def files_of(project: str, body: bytes, base: str) -> tuple[IndexFile, ...]:
    """The files of a project in an answer of the index: JSON (PEP 691) or HTML (PEP 503).

    base: the page's own address. Raises Unreadable if there is none: a page that lists nothing is
    no listing.
    """
    if body.lstrip()[:1] == b"{":
        files = decoded(body, _Project, f"{base!a}").files
    else:
        files = [_linked(link) for link in links_of(body, base)]
    name = canonicalize_name(project)
    kept = tuple(
        msgspec.structs.replace(
            file,
            url=_address(base, file.url).partition("#")[0],
            yanked=file.yanked is not False,
        )
        for file in files
        if (release := release_of(file.filename)) and release[0] == name
    )
    if not kept:
        raise Unreadable(f"The page {base!a} lists no file of {project}.")
    return kept


def _linked(link: dict[str, str | None]) -> IndexFile:
    promised = link.get("data-core-metadata") or link.get("data-dist-info-metadata")
    return IndexFile(
        filename=last_name(link.get("href") or ""),
        url=link.get("href") or "",
        python=link.get("data-requires-python"),
        yanked="data-yanked" in link,
        metadata=(promised or "false") != "false",
    )


def newest_requires(body: bytes) -> tuple[str, tuple[str, ...] | None]:
    """The newest release by `/pypi/NAME/json` and what it requires; None not known.

    It speaks for a release that has no wheel.
    """
    info = decoded(body, _OldProject, "What the index says of a project").info
    return info.version, None if info.requires_dist is None else requirements(info.requires_dist)


class _Links(HTMLParser):
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
    page = _Links()
    fed(page, body, f"{base!a}")
    if not page.whole:
        raise Unreadable(f"The page {base!a} is no whole HTML page.")
    return page.found


def _address(base: str, link: str) -> str:
    """The whole address of a link on a page, "" if it is none."""
    try:
        return urljoin(base, link)
    except ValueError:
        return ""


def last_name(link: str) -> str:
    """The last name in the path of a link, "" if there is none."""
    try:
        return unquote(urlsplit(link).path.rstrip("/").rpartition("/")[2])
    except ValueError:
        return ""


# --- inside a wheel, read in parts ------------------------------------------------------------

MOST_TEXT = 4 << 20
MOST_LIBRARY = 192 << 20
_READ_AT_ONCE = 1 << 20
_ARCHS = re.compile(rb"((?:(?:sm|compute)_\d{2,3}[a-z]? )*(?:sm|compute)_\d{2,3}[a-z]?) ?\0")
_PLAIN = re.compile(r"[ -~]{1,300}")


class Inside(msgspec.Struct, frozen=True):
    """What a wheel of torch says of itself.

    cuda: that it was built with, None for a CPU build. archs: None not read. requires: its
    requirements, as packaging prints them.
    """

    cuda: str | None
    requires: tuple[str, ...]
    archs: tuple[str, ...] | None = None


def requirements_of(fetch: Fetcher, file: IndexFile) -> tuple[str, ...]:
    """What a wheel requires, from the METADATA beside it or inside. Raises NotRead, Unreadable."""
    if file.metadata:
        try:
            return requirements_in(fetch.get(f"{file.url}.metadata").body)
        except NotRead:  # an index may promise what its file server lacks
            pass
    with _opened(fetch, file) as wheel:
        return requirements_in(_metadata(wheel))


def torch_inside(fetch: Fetcher, file: IndexFile, *, deep: bool) -> Inside:
    """What a wheel of torch says. deep: read its code list too, some ten megabytes more."""
    with _opened(fetch, file) as wheel:
        requires = requirements_in(_metadata(wheel))
        cuda = cuda_in(_member(wheel, "torch/version.py", MOST_TEXT))
        library = "torch/lib/libtorch_python.so"
        archs = None
        if deep and cuda is not None and library in wheel.namelist():
            archs = archs_in(_member(wheel, library, MOST_LIBRARY))
    return Inside(cuda, requires, archs)


def requirements_in(metadata: bytes) -> tuple[str, ...]:
    """The Requires-Dist lines of a METADATA. Raises Unreadable for a text that is none."""
    head = text_of(metadata).replace("\r\n", "\n").partition("\n\n")[0]
    if not head.startswith("Metadata-Version:"):
        raise Unreadable("The METADATA of a wheel does not begin as one.")
    return requirements(re.findall(r"^Requires-Dist: *(.+)$", head, re.MULTILINE))


def requirements(lines: Iterable[str]) -> tuple[str, ...]:
    """Requirements as packaging prints them. Raises Unreadable for a line that is none.

    Text that could act on a terminal is no requirement.
    """
    found = []
    for line in map(str.strip, lines):
        try:
            found.append(str(Requirement(line if _PLAIN.fullmatch(line) else "")))
        except InvalidRequirement as error:
            raise Unreadable(f"A wheel requires {line[:80]!a}, which is no requirement.") from error
    return tuple(found)


def cuda_in(source: bytes) -> str | None:
    """The CUDA version in a torch/version.py, None for a CPU build. Raises Unreadable."""
    text = text_of(source).replace("\r\n", "\n")
    version = re.search(r"^__version__ = '([0-9a-z.+]{1,40})'$", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=\n]+)? = (?:None|'(\d+\.\d+)')$", text, re.MULTILINE)
    if version is None or cuda is None:
        raise Unreadable("The torch/version.py of a wheel names no version or no CUDA.")
    return cuda[1]


def archs_in(library: bytes) -> tuple[str, ...] | None:
    """The longest list of architectures at the end of a text in a library.

    It need not be a text of its own: compilers lay constants without an end before it.
    """
    lists = _ARCHS.findall(library)
    return tuple(max(lists, key=len).decode("ascii").split()) if lists else None


def specifier_on(name: str, requires: tuple[str, ...]) -> str:
    """The specifier of the first requirement on a project that holds without an extra, "" none."""
    for line in requires:
        read = Requirement(line)
        plain = read.marker is None or "extra" not in str(read.marker)
        if plain and canonicalize_name(read.name) == name:
            return str(read.specifier)
    return ""


def _opened(fetch: Fetcher, file: IndexFile) -> zipfile.ZipFile:
    remote = io.BufferedReader(cast("io.RawIOBase", RemoteFile(fetch, file.url)), _READ_AT_ONCE)
    try:
        return zipfile.ZipFile(remote)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise Unreadable(f"{file.filename!a} is no wheel that can be read.") from error


def _metadata(wheel: zipfile.ZipFile) -> bytes:
    found = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(found) != 1:
        raise Unreadable("A wheel has no METADATA.")
    return _member(wheel, found[0], MOST_TEXT)


def _member(wheel: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with wheel.open(name) as member:
            found = member.read(most + 1)
    except (KeyError, EOFError, ValueError, OSError, NotImplementedError, RuntimeError) as error:
        raise Unreadable(f"A wheel has no {name} that can be read.") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"The {name} of a wheel is broken.") from error
    if len(found) > most:
        raise Unreadable(f"The {name} of a wheel is larger than {most >> 20} MiB.")
    return found
