"""pip as the resolver: `pip install --dry-run --report`, for the target's interpreter and tags."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.version import Version

from cudadoctor.installers.index import is_at
from cudadoctor.installers.resolver.question import without_index
from cudadoctor.installers.resolver.reading import bare_url, host_in, is_source, named_host
from cudadoctor.installers.resolver.verdict import SWITCHED_OFF, Answer, File
from cudadoctor.model.requirements import cut, normal
from cudadoctor.model.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.installers.resolver.question import Question
    from cudadoctor.installers.resolver.target import Target

OLDEST = Version("22.2")
"""The first pip that can report what it would install."""
READ_TIMEOUT_S = 15

_VERSION = re.compile(r"pip (\d[\w.]*) from ")
_NOT_FETCHED = re.compile(r"Could not fetch URL (\S+): (.+?)(?: - skipping)?$", re.M)
_UNTRUSTED = re.compile(r"repository located at (\S+) is not a trusted or secure host")
_BROKEN = re.compile(
    r"Max retries exceeded|IncompleteRead|Connection broken|Read timed out|ReadTimeoutError"
    r"|HTTP error \d{3}|HTTPError: \d{3}|Connection aborted|ProxyError|SSLError"
    r"|Connection to \S+ timed out|Could not install packages due to an OSError"
)
_NO_MATCH = re.compile(r"No matching distribution found for (.+?)(?: \(from .*)?$", re.M)
_OFFERED = re.compile(r"satisfies the requirement \S.*? \(from versions: (.*)\)")
_PYTHON = re.compile(
    r"Ignored the following versions that require a different python version: (.+)"
)
_SOURCE = re.compile(r"Skipping link: No sources permitted for ([\w.-]+): (\S+)")
_TAGS = re.compile(r"Skipping link: none of the wheel's tags \(([^)]*)\) are compatible.*: (\S+)")
_CONFLICT = re.compile(r"The conflict is caused by:\s*\n(.+?)\n\s*\n", re.S)
_ASKED = re.compile(r"^The user requested (?:\(constraint\) )?(.+)")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[,.]\d+ ", re.M)
_MOST_NAMED = 5
_ON_TORCHS_INDEX = ("torch", "torchvision", "torchaudio")


def version_in(text: str) -> Version | None:
    """pip's own version, from `pip --version`."""
    found = _VERSION.search(text)
    return version_of(found[1]) if found else None


def argv(target: Target, asked: Question, *, report: str, log: str, here: bool) -> tuple[str, ...]:
    """pip's words. report, log: files that it writes."""
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--no-input", "--no-user"]
    words += ["--disable-pip-version-check", "--retries", "1", "--timeout", str(READ_TIMEOUT_S)]
    # Never an archive of source: to look into one is to run its setup.py.
    words += ["--only-binary=:all:", "--use-feature=fast-deps", "--report", report, "--log", log]
    words += ["--target", f"{report}.never", "--python-version", target.release]
    words += ["--implementation", "cp", "--abi", target.abi]
    for tag in target.tags:
        words += ["--platform", tag]
    if asked.sources.index:
        words += ["--index-url", asked.sources.index]
    for one in asked.sources.extra:
        words += ["--extra-index-url", one]
    if without_index("pip", asked, here=here):
        words.append("--no-index")
    return (*words, *asked.first)


def variables() -> dict[str, str | None]:
    """Settings of the user's that an answer without an installation cannot be had with."""
    return {
        "PIP_REQUIRE_VIRTUALENV": "0",
        **dict.fromkeys(("PIP_PYTHON", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_TARGET")),
    }


def read(code: int | None, report: str, stderr: str, log: str, abi: str) -> Answer:
    """What pip said. log: what it wrote down on the way. abi: the target's (cp312)."""
    if code == 0:
        files = _files(report)
        if files is None:
            return Answer(kind="unfit", text="pip gave no report")
        return Answer(kind="resolved", files=files)
    said = _STAMP.sub("", log) + "\n" + stderr
    if unreached := _unreached(said):
        return unreached
    if "Ignoring indexes: " in said:
        return Answer(kind="unreached", text=SWITCHED_OFF)
    if found := _NO_MATCH.search(said):
        return _absent(found[1].strip(), said, abi)
    if conflict := _CONFLICT.search(said):
        return Answer(kind="refused", text=_conflict(conflict[1]))
    if "ResolutionImpossible" in said or "conflicting dependencies" in said:
        first = next((one for one in stderr.splitlines() if one.startswith("ERROR:")), stderr)
        return Answer(kind="refused", text=first.removeprefix("ERROR: "))
    last = [one for one in stderr.splitlines() if one.strip()][-1:]
    return Answer(kind="unfit", text="".join(last).removeprefix("ERROR: "))


def _unreached(said: str) -> Answer | None:
    """The index that gave no answer. A page that is not there (404) is an answer."""
    for url, why in _NOT_FETCHED.findall(said):
        if not _is_absence(url, why):
            return Answer(kind="unreached", host=host_in(url) or named_host(why))
    if untrusted := _UNTRUSTED.search(said):
        how = "is served without TLS, which pip refuses"
        return Answer(kind="unreached", host=untrusted[1], how=how)
    broken = _BROKEN.search(said)
    if broken is None:
        return None
    line = said[: broken.end()].rpartition("\n")[2] + said[broken.end() :].partition("\n")[0]
    return Answer(kind="unreached", host=named_host(line))


def _is_absence(url: str, why: str) -> bool:
    """Whether an index said that it has no such package.

    torch's own says 403 in place of 404; of torch itself that would be a lie, and means a refusal.
    """
    if "404 Client Error" in why:
        return True
    package = url.rstrip("/").rpartition("/")[2]
    of_torch = is_at(url, "pytorch.org") and package not in _ON_TORCHS_INDEX
    return of_torch and "403 Client Error" in why


def _absent(requirement: str, said: str, abi: str) -> Answer:
    """Why nothing satisfies a requirement, from what pip passed over."""
    asked = cut(requirement)
    name = asked.name if asked else normal(requirement)
    pin = requirement.partition("==")[2]
    sources = [url for one, url in _SOURCE.findall(said) if normal(one) == name]
    if any(not pin or f"-{pin}." in url for url in sources):
        return Answer(kind="source", text=name)
    if python := _PYTHON.search(said):
        of_it = [one for one in python[1].split("; ") if not pin or one.startswith(f"{pin} ")]
        if of_it:
            return Answer(kind="refused", text=f"{requirement} is not for this Python: {of_it[-1]}")
    if made := _made_for(name, pin, said, abi):
        return Answer(kind="refused", text=f"the wheels of {requirement} are for {made}")
    offered = _OFFERED.search(said)
    there = offered[1].split(", ") if offered and offered[1] != "none" else []
    if not there:
        return Answer(kind="refused", text=f"nothing is offered for {requirement}")
    last = ", ".join(there[-_MOST_NAMED:])
    return Answer(kind="refused", text=f"no {requirement} is offered, the newest are {last}")


def _made_for(name: str, pin: str, said: str, abi: str) -> str:
    """What the wheels are for that are there: other platforms, else other Pythons."""
    found: dict[str, None] = {}
    for tags, url in _TAGS.findall(said):
        file = url.rpartition("/")[2].replace("%2B", "+")
        parts = file.split("-")
        right = normal(parts[0]) == name and (not pin or parts[1:2] == [pin])
        if right:
            found[tags.split(", ")[0]] = None
    same = sorted(one.split("-", 2)[2] for one in found if f"-{abi}-" in one)
    pythons = sorted({one.split("-", 1)[0] for one in found}, key=lambda one: (len(one), one))
    return ", ".join((same or pythons)[:_MOST_NAMED])


def _conflict(block: str) -> str:
    """pip's two kinds of lines: what the command asked for, and what packages depend on."""
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    told = [_ASKED.sub(r"\1 is asked for", line) for line in lines]
    return f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else "".join(told)


def _files(report: str) -> tuple[File, ...] | None:
    try:
        found: Any = msgspec.json.decode(report)
        files = tuple(_chosen(found["install"]))
    except (msgspec.DecodeError, UnicodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return files if not any(is_source(one.url) for one in files) else None


def _chosen(rows: list[dict[str, Any]]) -> Iterator[File]:
    for row in rows:
        of = row["download_info"]
        archive = of.get("archive_info") or {}
        plain = str(archive.get("hash") or "").partition("sha256=")[2] or None
        yield File(
            url=bare_url(of["url"]),
            name=normal(row["metadata"]["name"]),
            version=str(row["metadata"]["version"]),
            sha256=(archive.get("hashes") or {}).get("sha256") or plain,
        )
