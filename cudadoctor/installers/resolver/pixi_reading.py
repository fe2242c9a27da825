"""A project for pixi that asks for the change, and what its lock file says."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from cudadoctor.installers.resolver.conda_reading import subdir
from cudadoctor.installers.resolver.reading import bare_url, named_host
from cudadoctor.installers.resolver.verdict import Answer, File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ENTRY = re.compile(r"^- conda: (\S+)$((?:\n  .*)*)", re.M)
_FILE = re.compile(r"([^/]+)-([^-/]+)-[^-/]+\.(?:conda|tar\.bz2)$")
_UNREACHED = re.compile(
    r"error sending request|[Cc]onnection refused|dns error|timed out|HTTP status|failed to fetch"
)
_UNSOLVED = re.compile(r"[Cc]annot solve|No candidates were found|[Ff]ailed to solve")
_FRAME = re.compile(r"[×╰─▶│├└┌]+")


def project(specs: tuple[str, ...], m: Machine, change: PackageChange) -> str:
    """The pixi.toml of a project with these requirements, for that machine's platform."""
    lines = ["[workspace]", 'name = "asked"', 'channels = ["conda-forge"]']
    lines += [f"platforms = [{json.dumps(subdir(m) or 'linux-64')}]", "", "[dependencies]"]
    if m.python.version:
        lines.append(f'python = "{m.python.version.major}.{m.python.version.minor}.*"')
    for one in specs:
        name = _NAME.match(one)
        if name is not None:
            lines.append(f"{json.dumps(name[0])} = {json.dumps(one[name.end() :] or '*')}")
    if change.cuda:
        major = change.cuda.partition(".")[0]
        lines += ["", "[system-requirements]", f'cuda = "{major}"']
    return "\n".join(lines) + "\n"


def read(code: int | None, lock: str, stderr: str) -> Answer:
    """What `pixi lock` said and wrote."""
    if code == 0:
        return Answer(kind="resolved", files=tuple(_files(lock)))
    text = " ".join(_FRAME.sub(" ", stderr).split())
    if _UNREACHED.search(text):
        return Answer(kind="unreached", host=named_host(text))
    if _UNSOLVED.search(text):
        return Answer(kind="refused", text=text)
    return Answer(kind="unfit", text=text[-200:])


def _files(lock: str) -> Iterator[File]:
    for url, rest in _ENTRY.findall(lock):
        named = _FILE.search(url)
        if named is None:
            continue
        sha256 = re.search(r"^  sha256: ([0-9a-f]{64})$", rest, re.M)
        size = re.search(r"^  size: (\d+)$", rest, re.M)
        yield File(
            url=bare_url(url),
            name=named[1],
            version=named[2],
            sha256=sha256[1] if sha256 else None,
            size_bytes=int(size[1]) if size else None,
        )
