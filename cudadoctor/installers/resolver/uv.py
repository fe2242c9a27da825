"""uv as the resolver: `uv pip compile`, which answers from metadata and touches no environment."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from cudadoctor.installers.resolver.question import without_index
from cudadoctor.installers.resolver.reading import bare_url, is_source, named_host
from cudadoctor.installers.resolver.verdict import SWITCHED_OFF, Answer, File
from cudadoctor.model.requirements import normal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.resolver.question import Question
    from cudadoctor.installers.resolver.target import Target

_UNREACHED = re.compile(
    r"Request failed after|Failed to fetch|error sending request|returned an? 4\d\d"
    r"|network was disabled|[Nn]etwork connectivity is disabled|timed out|dns error"
    r"|HTTP status (?:client|server) error|invalid peer certificate|tunnel error",
)
_DISABLED = re.compile(r"network (?:was|connectivity is) disabled", re.I)
_BECAUSE = re.compile(r"Because (.+?),? we can conclude")
_FRAME = re.compile(r"[╰─▶│├×]+|^\s*(?:cause|error):", re.M)
_SOURCE = re.compile(r"(?:Because |and |of )([\w.-]+)(?:==\S+)? ha(?:s|ve) no usable wheels")


def argv(
    program: str, target: Target, asked: Question, *, own: str, here: bool
) -> tuple[str, ...] | None:
    """The words of the command, requirements on its standard input.

    own: an interpreter that uv may run where the target itself cannot be asked. None where uv has
    no words for that target.
    """
    words = [program, "pip", "compile", "-", "--format", "pylock.toml", "--no-header", "-q"]
    words += ["--only-binary", ":all:", "--no-python-downloads", "--python"]
    if target.executable:
        words += [target.executable]
    elif target.uv is None or target.free_threaded:
        return None
    else:
        words += [own, "--python-version", target.release, "--python-platform", target.uv]
    if asked.sources.index:
        words += ["--default-index", asked.sources.index]
    for one in asked.sources.extra:
        words += ["--index", one]
    if without_index("uv", asked, here=here):
        words.append("--no-index")
    if asked.mixed:
        words += ["--index-strategy", "unsafe-best-match"]
    return tuple(words)


def read(code: int | None, stdout: str, stderr: str) -> Answer:
    """What uv said."""
    if code == 0:
        files = _files(stdout)
        return Answer(kind="unfit", text="uv gave no list") if files is None else _had(files)
    text = _FRAME.sub(" ", stderr)
    plain = " ".join(text.split())
    if _UNREACHED.search(plain):
        off = "network access is switched off (UV_OFFLINE)" if _DISABLED.search(plain) else ""
        return Answer(kind="unreached", host=named_host(plain), text=off)
    if (source := _SOURCE.search(plain)) and "building from source is disabled" in plain:
        return Answer(kind="source", text=normal(source[1]))
    if "not found in the provided package locations" in plain:
        return Answer(kind="unreached", text=SWITCHED_OFF)
    if found := _BECAUSE.search(plain):
        return Answer(kind="refused", text=found[1])
    if "No solution found" in plain:
        return Answer(kind="refused", text=plain.partition("dependencies:")[2] or plain)
    return Answer(kind="unfit", text=plain)


def _had(files: tuple[File, ...]) -> Answer:
    """A lock file can hold archives of source: none is built to look into it."""
    built = [one.name for one in files if is_source(one.url)]
    return Answer(kind="source", text=built[0]) if built else Answer(kind="resolved", files=files)


def _files(text: str) -> tuple[File, ...] | None:
    """The files of a lock file (PEP 751)."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        rows: Any = tomllib.loads(text).get("packages", [])
        return tuple(one for row in rows for one in _chosen(row))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _chosen(row: dict[str, Any]) -> Iterator[File]:
    wheel = (row.get("wheels") or [row.get("sdist") or row.get("archive")])[0]
    url = wheel.get("url") or wheel.get("path") or ""
    yield File(
        url=bare_url(url),
        name=normal(row["name"]),
        version=str(row.get("version", "")),
        sha256=wheel.get("hashes", {}).get("sha256"),
        size_bytes=wheel.get("size"),
    )
