"""What a resolver is asked: the plan's requirements, and the indexes that its commands use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers.index import host_of, pinned, source_for
from cudadoctor.installers.pip import name_of, sound, split_compiled

if TYPE_CHECKING:
    from cudadoctor.installers.resolver.verdict import File
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Index, Machine

DEFAULT_INDEX = "https://pypi.org/simple"
_PLAIN = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]*\])?"
    r"(?:(?:[=<>!~]=|===|[<>])[\w.*+!]+(?:,(?:[=<>!~]=|===|[<>])[\w.*+!]+)*,?)?(?:;[^@/\\]*)?"
)
_FILES = (".whl", ".zip", ".gz", ".tgz", ".bz2", ".xz", ".tar")


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look. index None: the default of the user's configuration."""

    index: str | None = None
    extra: tuple[str, ...] = ()

    def hosts(self, settings: Index | None) -> tuple[str, ...]:
        """The hosts that are asked, the one of torch's own builds first."""
        usual = settings.url if settings and settings.url else DEFAULT_INDEX
        urls = (*self.extra, self.index or usual)
        return tuple(dict.fromkeys(host_of(one) for one in urls))


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be had together.

    first: the requirements of the plan's own install, from their sources. then: what follows from
    the default index, with all that the first came to. left_out: comes as source, is not asked
    for. odd: names no release of an index but a file, a folder or an address, whose setup.py a
    resolver would run. settings: of the user, handed to a tool that would not read them itself.
    """

    first: tuple[str, ...]
    sources: Sources
    then: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    settings: Index | None = None
    like_pip: bool = True

    @property
    def mixed(self) -> bool:
        """Whether several indexes are searched as one, as pip does and uv by default does not."""
        more = self.settings.extra if self.settings else ()
        return self.like_pip and bool(self.sources.extra or more)


def question_of(m: Machine, change: PackageChange, planned: str) -> Question:
    """planned: the tool of the plan's commands, pip or uv."""
    source = source_for(m, change, planned)
    first, compiled = split_compiled(pinned(sound(change.install), source))
    then, more = split_compiled(sound(change.then))
    extra = (source.extra,) if source.extra else ()
    sources = Sources(index=source.index, extra=extra)
    if planned == "uv" and source.index and not source.is_mirror:
        sources = Sources(extra=(source.index,))  # uv's commands name it as the first of several
    if sources == Sources():  # all from one place: one question
        first, then = (*first, *then), ()
    return Question(
        first=first,
        sources=sources,
        then=then,
        odd=tuple(one for one in (*change.install, *change.then) if not is_plain(one)),
        left_out=tuple(dict.fromkeys(name_of(one) for one in (*compiled, *more))),
        settings=None if m.redacted else m.python.index,
        like_pip=planned != "uv",
    )


def is_plain(requirement: str) -> bool:
    """Whether a requirement can be found on an index only."""
    return bool(_PLAIN.fullmatch(requirement)) and not requirement.lower().endswith(_FILES)


def follow_up(asked: Question, files: tuple[File, ...]) -> Question | None:
    """The second question, once the first is answered; None where nothing follows.

    What was found stays pinned with its local version, and its own index stays within reach.
    """
    if not asked.then:
        return None
    if not asked.first:
        return msgspec.structs.replace(asked, first=asked.then, then=(), sources=Sources())
    found = {one.name: one.version for one in files}
    kept = tuple(f"{name}=={found[name]}" for name in map(name_of, asked.first) if found.get(name))
    extra = tuple(one for one in (asked.sources.index, *asked.sources.extra) if one)
    return msgspec.structs.replace(
        asked, first=(*kept, *asked.then), then=(), sources=Sources(extra=extra)
    )


def reads_itself(tool: str, settings: Index, *, here: bool) -> bool:
    """Whether that resolver finds the settings on its own: here, and in the files that it reads."""
    for_uv = "uv" in (settings.origin or "").lower()
    return here and for_uv == (tool == "uv")


def environment(tool: str, asked: Question, *, here: bool) -> dict[str, str | None]:
    """Variables of the resolver's process; None: unset. A password is nobody's argument.

    Another tool's settings of the user are handed over, and its own that the plan's commands would
    not read are kept from it.
    """
    settings = asked.settings
    changed: dict[str, str | None] = {}
    if tool == "uv" and asked.like_pip:
        changed |= dict.fromkeys(_UV_INDEXES)
    if settings is None or reads_itself(tool, settings, here=here):
        return changed
    names = _UV_NAMES if tool == "uv" else _PIP_NAMES
    mark = "," if tool == "uv" else " "
    links = mark.join(_reached(settings.find_links, here=here))
    url = "".join(_reached((settings.url or "",), here=here))
    values = (url, " ".join(_reached(settings.extra, here=here)), links)
    changed |= {name: value for name, value in zip(names, values, strict=True) if value}
    return changed


_UV_NAMES = ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_PIP_NAMES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
_UV_INDEXES = (*_UV_NAMES, "UV_DEFAULT_INDEX", "UV_INDEX", "UV_NO_INDEX", "UV_TORCH_BACKEND")


def without_index(tool: str, asked: Question, *, here: bool) -> bool:
    """Whether the resolver must be told that indexes are switched off."""
    settings = asked.settings
    off = settings is not None and settings.no_index
    return off and settings is not None and not reads_itself(tool, settings, here=here)


def _reached(urls: tuple[str, ...], *, here: bool) -> list[str]:
    """Those that lead somewhere: folders of another machine do not."""
    return [one for one in urls if here or one.startswith(("https://", "http://"))]
