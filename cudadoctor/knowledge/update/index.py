"""What a package index says: its pages, the names of its files, and what lies inside a wheel.

Whatever a page holds, only NotRead is raised. A wheel is never downloaded whole.
"""

import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from html.parser import HTMLParser
from itertools import islice
from typing import TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, RemoteFile
from cudadoctor.model.machine import OptInt, OptStr, Strings

T = TypeVar("T")


class Malformed(NotRead):
    """A metadata line that is not a valid requirement, as in old releases: "torch (>=1.9.*)"."""


def decoded(body: bytes, kind: type[T], what: str) -> T:
    """JSON of a known shape. what: names the page in the sentence."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotRead(f"{what!a} is JSON of another shape: {str(error)[:120]!a}.") from error


def text_of(body: bytes) -> str:
    """The text of a page; bytes that are no UTF-8 become marks."""
    return body.decode("utf-8", "replace")


class Html(HTMLParser):
    """A page: the attributes of its links, the cells of its tables; `whole` if it has an end."""

    def __init__(self, body: bytes, url: str) -> None:
        super().__init__()
        self.links: list[dict[str, OptStr]] = []
        self.rows: list[list[str]] = []
        self.whole = False
        try:
            self.feed(text_of(body))
        except (AssertionError, ValueError, RecursionError) as error:  # broken declarations
            raise NotRead(f"{url!a} is no HTML that can be read.") from error

    def handle_starttag(self, tag: str, attrs: list[tuple[str, OptStr]]) -> None:
        if tag == "a":
            self.links.append(dict(attrs))
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.whole = self.whole or tag == "html"
        if tag in ("tr", "table"):
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


# --- the names of files -----------------------------------------------------------------------

NAMED_GLIBC = {"manylinux1": "2.17", "manylinux2010": "2.12", "manylinux2014": "2.17"}
"""manylinux1 promises 2.5; the wheels that torch gave that tag were built on a system with 2.17."""

_LONGEST_NAME = 300


class FileName(Struct, frozen=True):
    """What the name of a wheel or a source archive says. project: "" for any other file.

    version: with its local part. tagged: it bears a build tag. pythons: "3.11", "3.14t"; "any" for
    a wheel that is made for no Python in particular. platforms: in the words of the tables, "any"
    for a wheel without compiled code, () for a source archive. glibc: the oldest.
    """

    project: str = ""
    version: Version = Version("0")
    tagged: bool = False
    pythons: Strings = ()
    platforms: Strings = ()
    glibc: OptStr = None


@cache
def name_of(filename: str) -> FileName:
    """What a file's name says of it."""
    name = filename[:_LONGEST_NAME]
    try:
        if not name.endswith(".whl"):
            return FileName(*parse_sdist_filename(name))
        project, version, build, tags = parse_wheel_filename(name)
    except ValueError:
        return FileName()
    floors = {floor for tag in tags if (floor := _glibc(tag.platform))}
    return FileName(
        project=project,
        version=version,
        tagged=bool(build),
        pythons=tuple(sorted({_python(tag.interpreter, tag.abi) for tag in tags}, key=by_python)),
        platforms=tuple(sorted({name for tag in tags for name in _platforms(tag.platform)})),
        glibc=min(floors, key=Version, default=None),
    )


def _python(interpreter: str, abi: str) -> str:
    """cp311-cp311 is "3.11", cp314-cp314t "3.14t", cp39-abi3 "3.9+", py3-none "any"."""
    found = re.fullmatch(r"cp(\d)(\d+)", interpreter)
    more = "+" if abi == "abi3" else "t" * abi.endswith("t")
    return f"{found[1]}.{found[2]}{more}" if found else "any"


def by_python(python: str) -> tuple[int, ...]:
    """Orders 3.9 before 3.10, 3.14 before 3.14t; "any" comes first."""
    return (*map(int, re.findall(r"\d+", python)), python.endswith("t"))


def _platforms(tag: str) -> Strings:
    """Our names of the platforms that a tag serves, () for one that the tables do not have."""
    if linux := re.fullmatch(r"(?:manylinux\w*|linux)_(x86_64|aarch64)", tag):
        return (f"linux_{linux[1]}",)
    if mac := re.fullmatch(r"macosx_\d+_\d+_(arm64|x86_64|universal2)", tag):
        return ("macos_arm64", "macos_x86_64") if mac[1] == "universal2" else (f"macos_{mac[1]}",)
    return (tag.replace("win_", "windows_"),) if tag in ("win_amd64", "win_arm64", "any") else ()


def _glibc(tag: str) -> OptStr:
    """The oldest glibc of a platform tag."""
    if exact := re.match(r"manylinux_(\d+)_(\d+)_", tag):
        return f"{exact[1]}.{exact[2]}"
    return NAMED_GLIBC.get(tag.partition("_")[0])


# --- listings ---------------------------------------------------------------------------------


class IndexFile(
    Struct,
    frozen=True,
    rename={"size_bytes": "size", "uploaded": "upload-time", "python": "requires-python"},
):
    """A file of a project, with the names of PEP 691; None not said."""

    filename: str
    url: str
    size_bytes: OptInt = None
    uploaded: OptStr = None
    python: OptStr = None
    yanked: bool | str = False

    @property
    def name(self) -> FileName:
        return name_of(self.filename)

    @property
    def day(self) -> OptStr:
        """The day of the upload, ISO 8601."""
        found = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", self.uploaded or "")
        return found[0] if found else None


class _Project(Struct):
    files: list[IndexFile]


def files_of(project: str, body: bytes, base: str) -> list[IndexFile]:
    """The files of a project in an answer of the index: JSON (PEP 691) or HTML (PEP 503).

    base: the page's own address. Raises NotRead if there is none: a page that lists nothing is no
    listing.
    """
    if body.lstrip()[:1] == b"{":
        files = decoded(body, _Project, base).files
    else:
        files = [
            IndexFile(
                filename=last_name(link),
                url=link.get("href") or "",
                python=link.get("data-requires-python"),
                yanked="data-yanked" in link,
            )
            for link in links_of(body, base)
        ]
    kept = [
        replace(file, url=_address(base, file.url))
        for file in files
        if file.name.project == canonicalize_name(project)
    ]
    if not kept:
        raise NotRead(f"The page {base!a} lists no file of {project}.")
    return kept


def links_of(body: bytes, base: str) -> list[dict[str, OptStr]]:
    """The links of a whole HTML page. Raises NotRead for one that was cut."""
    page = Html(body, base)
    if not page.whole:
        raise NotRead(f"The page {base!a} is no whole HTML page.")
    return page.links


def _address(base: str, link: str) -> str:
    """The whole address of a link on a page, "" if it is none."""
    try:
        return urljoin(base, link).partition("#")[0]
    except ValueError:
        return ""


def last_name(link: dict[str, OptStr]) -> str:
    """The last name in the path of a link, "" if there is none."""
    try:
        return unquote(urlsplit(link.get("href") or "").path.rstrip("/").rpartition("/")[2])
    except ValueError:
        return ""


class Release(Struct, frozen=True):
    """The files of one final release."""

    version: str
    files: list[IndexFile]

    @property
    def day(self) -> OptStr:
        """The day of the first upload, None if it is not known."""
        return min((file.day for file in self.files if file.day), default=None)

    @property
    def yanked(self) -> bool:
        return all(file.yanked for file in self.files)

    @property
    def wheels(self) -> list[IndexFile]:
        return [file for file in self.files if file.filename.endswith(".whl")]

    @property
    def platforms(self) -> list[str]:
        """What it has wheels for."""
        return sorted({platform for file in self.files for platform in file.name.platforms})

    @property
    def pythons(self) -> set[str]:
        """The Pythons that its wheels for these platforms name."""
        names = (file.name for file in self.wheels)
        return {python for name in names if name.platforms for python in name.pythons}

    def on(self, platform: str) -> list[IndexFile]:
        """The wheels for a platform."""
        return [file for file in self.files if platform in file.name.platforms]


def releases_of(project: str, body: bytes, base: str) -> dict[str, Release]:
    """The final releases of a project that a page lists, newest first. Raises NotRead."""
    found: dict[Version, list[IndexFile]] = {}
    for file in files_of(project, body, base):
        version = file.name.version
        if not version.is_prerelease and version.local is None:
            found.setdefault(version, []).append(file)
    return {
        str(version): Release(str(version), found[version])
        for version in sorted(found, reverse=True)
    }


# --- inside a wheel, read in parts ------------------------------------------------------------

MOST_TEXT = 4 << 20
MOST_LIBRARY = 192 << 20
_METADATA = r"[^/]+\.dist-info/METADATA"
_HEAD = 1 << 20
_MOST_MEMBERS = 1000
_CODE = "torch/lib/libtorch_python.so"
_ARCHS = re.compile(rb"((?:(?:sm|compute)_\d{2,3}[a-z]? )*(?:sm|compute)_\d{2,3}[a-z]?) ?\0")
_END = re.compile(rb"_\d{2,3}[a-z]? ?\0")
_MOST_LIST = 1000
_PLAIN = re.compile(r"[ -~]{1,300}")


class Inside(Struct, frozen=True):
    """What a wheel of torch says of itself.

    cuda: that it was built with, None for a CPU build. archs: None not read. requires: its
    requirements, as packaging prints them.
    """

    cuda: OptStr
    requires: list[str]
    archs: list[str] | None = None


def requirements_of(fetch: Fetcher, release: Release) -> list[str] | None:
    """What a release requires, by a wheel of it, else by its source; None where that says nothing.

    Raises NotRead, Malformed.
    """
    # Of old releases, the wheels for other processors leave out what they were compiled for.
    first = re.compile(r"linux\w*_x86_64|-any")
    usual = sorted(release.wheels, key=lambda file: not first.search(file.filename))
    if not usual:
        return _declared(fetch, release.files[0])
    with suppress(NotRead):  # An index may have the METADATA beside the wheel (PEP 658).
        return requirements_in(fetch.get(f"{usual[0].url}.metadata").body)
    with _opened(fetch, usual[0]) as wheel:
        return requirements_in(_member(wheel, _METADATA))


def _declared(fetch: Fetcher, file: IndexFile) -> list[str] | None:
    """The requirements in the PKG-INFO near the beginning of a source archive, None without any.

    Older ones leave them out whatever they require. Raises NotRead.
    """
    head = io.BytesIO(fetch.get(file.url, f"0-{_HEAD - 1}").body)
    text = b""
    with (
        suppress(tarfile.TarError, zlib.error, EOFError, OSError),
        tarfile.open(fileobj=head, mode="r|*") as archive,
    ):
        for member in islice(archive, _MOST_MEMBERS):
            if re.fullmatch(r"[^/]+/PKG-INFO", member.name):
                found = archive.extractfile(member)
                text = found.read(MOST_TEXT) if found else b""
                break
    return (text and requirements_in(text)) or None


def torch_inside(fetch: Fetcher, file: IndexFile, *, deep: bool) -> Inside:
    """What a wheel of torch says. deep: read its code list too, some ten megabytes more."""
    with _opened(fetch, file) as wheel:
        requires = requirements_in(_member(wheel, _METADATA))
        cuda = cuda_in(_member(wheel, r"torch/version\.py"))
        wanted = deep and cuda is not None and _CODE in wheel.namelist()
        archs = archs_in(_member(wheel, _CODE, MOST_LIBRARY)) if wanted else None
    return Inside(cuda, requires, archs)


@contextmanager
def _opened(fetch: Fetcher, file: IndexFile) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(RemoteFile(fetch, file.url)) as wheel:
            yield wheel
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError),
        *(NotImplementedError, RuntimeError),
    ) as error:
        raise NotRead(f"{file.filename!a} is no wheel that can be read.") from error


def _member(wheel: zipfile.ZipFile, pattern: str, most: int = MOST_TEXT) -> bytes:
    names = [name for name in wheel.namelist() if re.fullmatch(pattern, name)]
    if len(names) != 1:
        raise NotRead(f"A wheel has no {pattern}.")
    with wheel.open(names[0]) as member:
        found = member.read(most + 1)
    if len(found) > most:
        raise NotRead(f"The {names[0]} of a wheel is larger than {most >> 20} MiB.")
    return found


def requirements_in(metadata: bytes) -> list[str]:
    """The Requires-Dist lines of a METADATA or PKG-INFO. Raises NotRead for a text that is none."""
    head = text_of(metadata).replace("\r\n", "\n").partition("\n\n")[0]
    if not head.startswith("Metadata-Version:"):
        raise NotRead("The METADATA of a release does not begin as one.")
    return requirements(re.findall(r"^Requires-Dist: *(.+)$", head, re.MULTILINE))


def requirements(lines: Iterable[str]) -> list[str]:
    """Requirements as packaging prints them. Raises Malformed for a line that is none.

    Text that could act on a terminal is no requirement.
    """
    found = []
    for line in map(str.strip, lines):
        try:
            found.append(str(Requirement(line if _PLAIN.fullmatch(line) else "")))
        except InvalidRequirement as error:
            raise Malformed(
                f"A release requires {line[:80]!a}, which is not a valid requirement."
            ) from error
    return found


def cuda_in(source: bytes) -> OptStr:
    """The CUDA version in a torch/version.py, None for a CPU build. Raises NotRead."""
    text = text_of(source).replace("\r\n", "\n")
    cuda = re.search(r"^cuda(?:: [^=\n]+)? = (?:None|'(\d+\.\d+)')$", text, re.MULTILINE)
    if cuda is None:
        raise NotRead("The torch/version.py of a wheel names no CUDA.")
    return cuda[1]


def archs_in(library: bytes) -> list[str] | None:
    """The longest list of architectures at the end of a text in a library.

    It need not be a text of its own: compilers lay constants without an end before it.
    """
    # The end is looked for first: a pattern that begins with a choice reads each byte twice.
    lists = [
        found
        for end in _END.finditer(library)
        for found in _ARCHS.findall(library[max(0, end.end() - _MOST_LIST) : end.end()])
    ]
    return max(lists, key=len).decode("ascii").split() if lists else None


def specifier_on(name: str, requires: Iterable[str]) -> str:
    """The specifier of the first requirement on a project that holds without an extra, "" none."""
    for requirement in map(Requirement, requires):
        if canonicalize_name(requirement.name) == name and "extra" not in str(requirement.marker):
            return str(requirement.specifier)
    return ""
