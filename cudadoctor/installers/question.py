"""What a resolver is asked about a package change, for which interpreter, and what it answers."""

import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace
from packaging.tags import mac_platforms
from packaging.version import Version

from cudadoctor.installers.index import host_in, host_of, is_read_by, pinned, source_for
from cudadoctor.installers.requirement import name_of, sound, split_compiled
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Index, Machine, OptInt, OptStr, Strings
from cudadoctor.model.requirements import marker_variables

_PLAIN = (
    r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]*\])?"
    r"(?:(?:[=<>!~]=|===|[<>])[\w.*+!]+(?:,(?:[=<>!~]=|===|[<>])[\w.*+!]+)*,?)?(?:;[^@/\\]*)?"
)
_FILES = (".whl", ".zip", ".gz", ".tgz", ".bz2", ".xz", ".tar")
_ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")

UNREACHED = (
    r"(?i)failed to establish a new connection|name or service not known|name resolution"
    r"|connection (?:refused|timed out|reset|aborted|broken)|connection to \S+ timed out"
    r"|max retries exceeded|network is unreachable|timed out|readtimeouterror|incompleteread"
    r"|dns error|nodename nor servname|proxyerror|sslerror|tunnel error|invalid peer certificate"
    r"|request failed after|failed to fetch|error sending request|returned an? 4\d\d"
    r"|http error \d{3}|httperror: \d{3}|http status (?:client|server) error"
    r"|network (?:was|connectivity is) disabled|could not install packages due to an oserror"
)
"""How pip, uv and conda say that a package index gave no answer."""
SWITCHED_OFF = "package indexes are disabled (no-index)"


class File(Struct, frozen=True, kw_only=True):
    """A file that the resolver chose. url: without credentials. size_bytes: None not known."""

    url: str
    name: str
    version: str
    sha256: OptStr = None
    size_bytes: OptInt = None


class Answer(Struct, frozen=True, kw_only=True):
    """What one run of a resolver comes to.

    refused: the index answered, and there is no solution; text: the resolver's reason.
    unreached: an index gave no answer; host: which, how: what it did instead, text: what keeps
    every index from answering. source: text comes as source only.
    unfit: this resolver cannot be asked so (too old, broken); text: why.
    """

    kind: Literal["resolved", "refused", "unreached", "source", "unfit"]
    files: tuple[File, ...] = ()
    text: str = ""
    host: str = ""
    how: str = ""


class Question(Struct, frozen=True, kw_only=True):
    """What is to be had together.

    first: the requirements of the plan's own install, from index (None: the default of the user's
    configuration) and the extra ones. then: what follows from the default index, with all that the
    first came to. left_out: comes as source, is not asked for. odd: names no release of an index
    but a file, a folder or an address, whose setup.py a resolver would run. settings: of the user,
    handed to a tool that would not read them itself.
    """

    first: Strings
    index: OptStr = None
    extra: Strings = ()
    then: Strings = ()
    left_out: Strings = ()
    odd: Strings = ()
    settings: Index | None = None
    like_pip: bool = True

    @property
    def hosts(self) -> Strings:
        """The hosts that are asked, the one of torch's own builds first."""
        usual = (self.settings and self.settings.url) or "https://pypi.org/simple"
        return tuple(dict.fromkeys(map(host_of, (*self.extra, self.index or usual))))

    @property
    def mixed(self) -> bool:
        """Whether several indexes are searched as one, as pip does and uv by default does not."""
        return self.like_pip and bool(self.extra or (self.settings and self.settings.extra))


def question_of(m: Machine, change: PackageChange, planned: str) -> Question:
    """planned: the tool of the plan's commands, pip or uv."""
    source = source_for(m, change, planned)
    first, compiled = split_compiled(pinned(sound(change.install), source))
    then, more = split_compiled(sound(change.then))
    index, extra = source.index, source.extra
    if planned == "uv" and index and not source.is_mirror:
        index, extra = None, index  # uv's commands name it as the first of several
    if not index and not extra:  # all from one place: one question
        first, then = (*first, *then), ()
    return Question(
        first=first,
        index=index,
        extra=(extra,) if extra else (),
        then=then,
        odd=tuple(
            requirement
            for requirement in (*change.install, *change.then)
            if not is_plain(requirement)
        ),
        left_out=tuple(dict.fromkeys(map(name_of, (*compiled, *more)))),
        settings=None if m.redacted else m.python.index,
        like_pip=planned != "uv",
    )


def is_plain(requirement: str) -> bool:
    """Whether a requirement can be found on an index only."""
    return bool(re.fullmatch(_PLAIN, requirement)) and not requirement.lower().endswith(_FILES)


def follow_up(question: Question, files: tuple[File, ...]) -> Question | None:
    """The second question, once the first is answered; None if nothing follows.

    What was found stays pinned with its local version, and its own index stays within reach.
    """
    if not question.then:
        return None
    versions = {file.name: file.version for file in files}
    names = map(name_of, question.first)
    kept = tuple(f"{name}=={versions[name]}" for name in names if versions.get(name))
    indexes = (question.index, *question.extra) if question.first else ()
    return replace(
        question,
        first=(*kept, *question.then),
        then=(),
        index=None,
        extra=tuple(index for index in indexes if index),
    )


_NAMES = {
    "uv": ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    "pip": ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"),
}
_UV_INDEXES = (*_NAMES["uv"], "UV_DEFAULT_INDEX", "UV_INDEX", "UV_NO_INDEX", "UV_TORCH_BACKEND")


def handed_over(tool: str, question: Question, *, here: bool) -> Index | None:
    """The user's settings that this resolver does not find on its own.

    It does so on this machine, in the files that it reads.
    """
    settings = question.settings
    return None if here and settings and is_read_by(tool, settings) else settings


def environment(tool: str, question: Question, *, here: bool) -> dict[str, OptStr]:
    """Variables of the resolver's process; None: unset. A password is nobody's argument.

    Another tool's settings of the user are handed over, and its own that the plan's commands would
    not read are kept from it.
    """
    changed: dict[str, OptStr] = {}
    if tool == "uv" and question.like_pip:
        changed |= dict.fromkeys(_UV_INDEXES)
    if settings := handed_over(tool, question, here=here):
        mark = "," if tool == "uv" else " "
        lists = ((settings.url or "",), settings.extra, settings.find_links)
        for name, urls, between in zip(_NAMES[tool], lists, ("", " ", mark), strict=True):
            # Folders of another machine lead nowhere.
            reached = (url for url in urls if here or url.startswith(("https://", "http://")))
            if value := between.join(reached):
                changed[name] = value
    return changed


def without_index(tool: str, question: Question, *, here: bool) -> bool:
    """Whether the resolver must be told that indexes are switched off."""
    settings = handed_over(tool, question, here=here)
    return settings is not None and settings.no_index


def named_host(text: str) -> str:
    """The host that an error is about."""
    if named := re.search(r"host='([^']+)'", text):
        return named[1]
    return next(filter(None, map(host_in, re.findall(r"https?://[^\s)\"'`,]+", text))), "")


def bare_url(url: str) -> str:
    """The URL without credentials and without its fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def is_source(url: str) -> bool:
    """Whether a file is an archive of source, which had to be built."""
    return url.partition("#")[0].partition("?")[0].endswith(_ARCHIVES)


# --- the interpreter, as its tags and markers say it ------------------------------------------

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of the tags for glibc 2.x; the last two on x86 alone, where tags begin with 2.5."""
_USUAL_GLIBC = 28
"""The glibc 2.x that is taken where the facts do not name one."""
_UV_GLIBC = (17, 28, *range(31, 41))
_NEWEST_MUSL = 2
_USUAL_MACOS = (15, 0)
_FIRST_DARWIN, _RENAMED_DARWIN = 20, 25


class Target(Struct, frozen=True, kw_only=True):
    """An interpreter by its tags. tags: platform tags, the best first. uv: its name for uv.

    markers: what an environment marker is judged by. executable: where it may be asked itself.
    """

    python: Version
    abi: str
    tags: Strings
    uv: OptStr
    markers: dict[str, str]
    executable: OptStr = None

    @property
    def free_threaded(self) -> bool:
        return self.abi.endswith("t")

    @property
    def macos(self) -> OptStr:
        """The release of macOS ("15.0"), None elsewhere."""
        mark, *parts = self.tags[0].split("_")
        return ".".join(parts[:2]) if mark == "macosx" else None

    @property
    def release(self) -> str:
        """The Python's release alone: resolvers take no "3.15.0rc1"."""
        return ".".join(map(str, self.python.release[:3]))


def target_of(m: Machine, *, here: bool) -> Target | str:
    """The examined interpreter; a reason where too little is known of it."""
    python, platform = m.python.version, m.platform
    if python is None:
        return "the Python version is unknown"
    if (m.python.implementation or "cpython").lower() != "cpython":
        return f"{m.python.implementation} is not CPython"
    tags = tuple(_tags(m))
    if not tags:
        return f"there is no known wheel platform tag for {platform.system} on {platform.machine}"
    threaded = bool(m.python.free_threaded)
    path = m.python.executable if here and not m.redacted else None
    return Target(
        python=python,
        abi=f"cp{python.major}{python.minor}{'t' if threaded else ''}",
        tags=tags,
        uv=_uv_platform(m),
        markers=marker_variables(m),
        executable=path if path and not path.startswith(("~", "<", "$")) else None,
    )


def _arch(m: Machine) -> OptStr:
    if m.python.bits == 32 and m.platform.machine == "x86_64":
        return "i686"
    return m.platform.machine


def _tags(m: Machine) -> Iterator[str]:
    arch = _arch(m)
    if arch is None:
        return
    if m.platform.system == "Windows":
        yield {"x86_64": "win_amd64", "i686": "win32"}.get(arch, "win_arm64")
    elif m.platform.system == "Darwin":
        yield from mac_platforms(_macos(m), "arm64" if arch in ("arm64", "aarch64") else arch)
    elif m.platform.system == "Linux":
        yield from _linux_tags(m, arch)


def _macos(m: Machine) -> tuple[int, int]:
    """The release of macOS, from the kernel's: 20 to 24 are 11 to 15, and 25 is 26."""
    major = (m.platform.kernel or "").partition(".")[0]
    if not major.isdecimal() or int(major) < _FIRST_DARWIN:
        return _USUAL_MACOS
    return (int(major) - 9 if int(major) < _RENAMED_DARWIN else int(major) + 1, 0)


def _linux_tags(m: Machine, arch: str) -> Iterator[str]:
    if m.platform.libc == "musl":
        yield from (f"musllinux_1_{minor}_{arch}" for minor in range(_NEWEST_MUSL, -1, -1))
    else:
        oldest = min(_LEGACY) if arch in ("x86_64", "i686") else max(_LEGACY)
        for minor in range(_glibc(m), oldest - 1, -1):
            yield f"manylinux_2_{minor}_{arch}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{arch}"
    yield f"linux_{arch}"


def _glibc(m: Machine) -> int:
    found = m.platform.glibc
    return found.minor if found is not None and found.major == 2 else _USUAL_GLIBC


def _uv_platform(m: Machine) -> OptStr:
    """uv's name for the platform; None if it has none."""
    arch = "aarch64" if m.platform.machine == "arm64" else _arch(m)
    if arch not in ("x86_64", "aarch64"):
        return None
    if m.platform.system == "Windows":
        return f"{arch}-pc-windows-msvc"
    if m.platform.system == "Darwin":
        return f"{arch}-apple-darwin"
    if m.platform.libc == "musl":
        return f"{arch}-unknown-linux-musl"
    glibc = max((minor for minor in _UV_GLIBC if minor <= _glibc(m)), default=None)
    return f"{arch}-manylinux_2_{glibc}" if glibc else None
