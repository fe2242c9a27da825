"""What a report shows of installing: commands, and the logs of pip, uv, conda, poetry and pixi.

A log belongs to the command before it. The wheels that a log names tell the Python and the platform
they were chosen for; what it put into the environment is what is installed there.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.version import Version

from cudadoctor.model.machine import Distribution, Install
from cudadoctor.reports.commands import commands_of, install_of
from cudadoctor.reports.implied_refusals import with_implied
from cudadoctor.reports.manifests import manifest_installs
from cudadoctor.reports.solver_logs import (
    CONDA_PYTHON,
    UV_HERE,
    Piece,
    conda_builds,
    conda_refusals,
    name_of,
    ours,
    poetry_refusals,
    uv_refusals,
)
from cudadoctor.reports.telling import Rank, Said
from cudadoctor.reports.wheel_names import Wheel, wheels_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.reports.document import Document

MOST = 40
"""More installs than this come from a build log; the last ones count."""


def read_installs(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Commands that install, with what their logs say, and what follows for the environment."""
    if not any(word in doc.low for word in _WORTH):
        return
    installs = with_implied(doc, _assembled(doc)[-MOST:])
    if installs:
        rank = Rank.TOOL if any(_is_log(one) for one in installs) else Rank.COMMAND
        yield Said("installs", tuple(installs), installs[0].line or 1, rank, "install log")
    yield from _installed(installs)
    yield from _of_wheels(doc)


_WORTH: tuple[str, ...] = (
    *("install", "satisf", "distribution found", "uv ", "conda", "mamba", "poetry", "pixi", ".whl"),
    *("wheels", "requires-python", "requires a different python", "versions of ", "no version"),
    *("packagesnotfound", "not available from", "does not exist", "your python"),
    *(
        "index-url",
        "[tool.",
        "dependencies:",
        "matching",
        "available",
        "a version",
        "版本",
        "wheel",
    ),
)
"""One of these words stands in every text that is worth looking through."""


def _is_log(one: Install) -> bool:
    return bool(one.refused or one.installed or one.lacks)


def _assembled(doc: Document) -> list[Install]:
    """Commands and pieces of logs in the order of the text, each log with its command."""
    out: list[Install] = []
    files = tuple(manifest_installs(doc))
    events: list[tuple[int, Install | Piece]] = [(one.line or 1, one) for one in files]
    events += [(asked.line, _with_file(install_of(asked), files)) for asked in commands_of(doc)]
    events += [(doc.line_at(piece.place).number, piece) for piece in _pieces(doc)]
    events.sort(key=lambda pair: (pair[0], isinstance(pair[1], Piece)))
    for line, event in events:
        if isinstance(event, Install):
            out.append(event)
        elif out and _takes(out[-1], event):
            out[-1] = _with(out[-1], event.fields)
        else:
            out.append(_with(Install(tool=event.tool, line=line), event.fields))
    return list(dict.fromkeys(out))


def _with_file(one: Install, files: tuple[Install, ...]) -> Install:
    """The command with what the file that it reads asks for."""
    reads = one.tool != "pip" or any(text.startswith("-r ") for text in one.requirements)
    found = next((file for file in files if file.tool == one.tool), None)
    if found is None or one.indexes or not reads:
        return one
    return msgspec.structs.replace(
        one,
        requirements=tuple(dict.fromkeys((*one.requirements, *found.requirements))),
        indexes=found.indexes,
        options=tuple(dict.fromkeys((*one.options, *found.options))),
    )


_CONDA = frozenset({"conda", "mamba", "micromamba"})


def _takes(one: Install, piece: Piece) -> bool:
    """Whether a piece of a log can belong to that install."""
    same = one.tool == piece.tool or {one.tool, piece.tool} <= _CONDA
    if not same and not (one.tool in ("pipenv", "pdm", "poetry") and piece.tool == "pip"):
        return False
    refused = piece.fields.get("refused")
    if refused and one.refused:
        return name_of(refused) == name_of(one.refused)
    return not ("looked" in piece.fields and (one.refused or one.installed))


def _with(one: Install, fields: dict[str, Any]) -> Install:
    """The install with what a piece of its log tells; what is told already stays."""
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "looked":
            changes["indexes"] = tuple(dict.fromkeys((*one.indexes, *value)))
        elif name in ("installed", "made_for"):
            changes[name] = tuple(dict.fromkeys((*getattr(one, name), *value)))
        elif name == "failed":
            changes[name] = value
        elif name == "refused" and one.refused:
            changes[name] = max(one.refused, value, key=len)
        elif name == "lacks" and one.lacks == "release" and value:
            changes[name] = value  # whose build is lacking says more than that none fits
        elif getattr(one, name) in (None, ()):
            changes[name] = value
    return msgspec.structs.replace(one, **changes)


# --- pieces of logs ------------------------------------------------------------------------------

_REFUSED = re.compile(
    r"could not find (?:a|any) versions? that satisf(?:ies|y) the requirements? ", re.I
)
_ASKED = re.compile(
    r"['\"]?(?P<what>[A-Za-z][\w.-]{0,60}(?:\[[\w, -]{0,60}\])?\s?"
    r"(?:\(?(?:===?|~=|!=|>=|<=|<|>)\s?[\w.*+!-]{1,60}(?:,\s?(?=[<>=!~]))?){0,6})"
)
_OFFERED = re.compile(r"(?:from )?versions: ?([^)]{0,22000})", re.I)
_NO_MATCH = re.compile(
    r"no matching distributions? (?:found|available) for (?P<what>"
    r"[A-Za-z][\w.-]{0,60}(?:\[[\w,-]{0,60}\])?(?:\s?(?:===?|~=|!=|>=|<=|<|>)\s?[\w.*+!,<>=~-]{1,60})?)",
    re.I,
)
_INDEXES = re.compile(r"looking in (?:indexes|links): ((?:\S{4,300}?,\s){0,8}\S{4,300})", re.I)
_DONE = re.compile(
    r"successfully installed ((?:[A-Za-z][\w.]{0,60}(?:-[A-Za-z][\w.]{0,60}){0,5}-\d[\w.+!]{0,60}"
    r"(?: |$|,|'|\"|`)){1,400})",
    re.I,
)
_NOT_SUPPORTED = re.compile(
    r"([\w.+%-]{5,200}\.whl) is not a supported wheel on this platform", re.I
)
_OTHER_PYTHON = re.compile(
    r"package '?(?P<what>[\w.-]{2,60})'? requires a different python: ?"
    r"(?P<python>\d[\d.]{1,8})\w{0,6} not in '?(?P<range>[\d.<>=!~*, ]{1,60})",
    re.I,
)
_UV_DONE = re.compile(r"^\s{0,4}\+ ([\w.-]{2,60})==([\w.+!]{1,60})(?:\s|$)")


def _pieces(doc: Document) -> Iterator[Piece]:
    low = doc.low
    for words, read in _READ:
        if any(word in low for word in words):
            yield from read(doc)


def _refusals(doc: Document) -> Iterator[Piece]:
    for found in islice(_REFUSED.finditer(doc.flat), MOST):
        rest = doc.flat[found.end() : found.end() + 24000]
        wanted = _ASKED.match(rest)
        if wanted is None:
            continue
        what = _spec(wanted["what"])
        fields: dict[str, Any] = {"refused": what[:120], "failed": True}
        if _ignored(what, doc):
            fields["lacks"] = "python"
        offered = _OFFERED.search(rest)
        if offered and offered.start() < 400 and not _REFUSED.search(rest[: offered.start()]):
            fields["offered"] = _versions(offered[1])
        yield Piece(found.start(), "pip", fields)
    for found in _NO_MATCH.finditer(doc.flat):
        yield Piece(found.start(), "pip", {"refused": _spec(found["what"]), "failed": True})


_IGNORED = re.compile(r"ignored the following versions that require a different python version: ")


def _ignored(what: str, doc: Document) -> bool:
    """Whether pip says that it passed over this very release for its Python."""
    found = _IGNORED.search(doc.low)
    version = what.partition("==")[2].partition("+")[0]
    if found is None or not version:
        return False
    listed = doc.low[found.end() : found.end() + 20_000].partition("error:")[0]
    return (
        re.search(rf"(?<![\w.]){re.escape(version)}(?:\+\w{{1,12}})? requires-python", listed)
        is not None
    )


def _spec(text: str) -> str:
    return re.sub(r"\s*([=<>!~]=?=?)\s*", r"\1", text.strip()).rstrip(".,:; -")


def _versions(text: str) -> tuple[str, ...]:
    """Versions of a list; () for "none". It ends where something else than a version stands."""
    out = []
    for word in re.split(r"[,\s]+", text):
        plain = word.strip(" '\"[]")
        if re.fullmatch(r"v?\d[\w.+!-]{0,60}", plain):
            out.append(plain)
        elif plain not in ("", "...", "…", "etc", "and"):
            break
    return tuple(out)


def _indexes(doc: Document) -> Iterator[Piece]:
    for found in _INDEXES.finditer(doc.flat):
        links = tuple(one.strip(" ,'\"") for one in found[1].split(",") if "/" in one)
        yield Piece(found.start(), "pip", {"looked": links})


def _successes(doc: Document) -> Iterator[Piece]:
    for found in _DONE.finditer(doc.flat):
        pairs = (word.strip(",'\"`").rpartition("-") for word in found[1].split())
        put = tuple(f"{name.lower().replace('_', '-')}=={version}" for name, _, version in pairs)
        yield Piece(found.start(), "pip", {"installed": put, "failed": False})


def _uv_successes(doc: Document) -> Iterator[Piece]:
    put = []
    first = 0
    for line in doc.lines:
        if found := _UV_DONE.match(line.text):
            put.append(f"{found[1].lower()}=={found[2]}")
            first = first or doc.flat.find(f"+ {found[1]}=={found[2]}")
    if put:
        yield Piece(max(0, first), "uv", {"installed": tuple(put), "failed": False})


def _pip_wheels(doc: Document) -> Iterator[Piece]:
    for found in _NOT_SUPPORTED.finditer(doc.flat):
        wheel = Wheel.of(found[1])
        if wheel is not None:
            fields = {
                "refused": f"{wheel.name}=={wheel.version}",
                "failed": True,
                "made_for": (*wheel.pythons, *wheel.platforms),
            }
            yield Piece(found.start(), "pip", fields)
    for found in _OTHER_PYTHON.finditer(doc.flat):
        fields = {"refused": found["what"], "failed": True, "lacks": "python"}
        yield Piece(found.start(), "pip", fields)


_READ: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("satisf", "no matching distribution"), _refusals),
    (("looking in ",), _indexes),
    (("successfully installed",), _successes),
    (("+ ",), _uv_successes),
    ((".whl is not", "different python"), _pip_wheels),
    (("because ", "wheels are", "found wheels", "has wheels", "distribution "), uv_refusals),
    (("installation candidates", "match", "so it will not"), poetry_refusals),
    (
        ("packagesnotfound", "not available", "nothing provides", "does not exist", "your python"),
        conda_refusals,
    ),
    (("conda", "mamba", "cudatoolkit", "pkgs/"), conda_builds),
)
"""Words that must stand in the text -> the reader of those pieces."""


# --- what follows for the environment ------------------------------------------------------------


_CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}


def _installed(installs: list[Install]) -> Iterator[Said]:
    """What the last log put into the environment."""
    for one in reversed(installs):
        put = [name.split("==", 1) for name in one.installed if "==" in name]
        if not put:
            continue
        line = one.line or 1
        held = {
            _CONDA_NAMES.get(name, name): version.partition("=")[0]
            for name, version in put
            if ours(name) or name in ("numpy", "triton", "xformers")
        }
        if held:
            found = (Distribution(name=n, version=v, installer=one.tool) for n, v in held.items())
            yield Said("packages", tuple(found), line, Rank.MESSAGE, "install log")
        for name, version in put:
            if name in ("torch", "pytorch"):
                yield from _torch(version, line)


def _torch(text: str, line: int) -> Iterator[Said]:
    plain, _, build = text.partition("=")
    try:
        version = Version(plain)
    except ValueError:
        return
    local = version.local or ""
    told: dict[str, object] = {
        "torch.installed": True,
        "torch.version": version,
        "torch.text": plain,
    }
    if found := re.fullmatch(r"cu(\d{2,3})", local):
        told |= {"torch.build": "cuda", "torch.cuda": Version(f"{found[1][:-1]}.{found[1][-1]}")}
    elif local in ("cpu", "") and ("cpu" in build or local == "cpu"):
        told["torch.build"] = "cpu"
    elif found := re.search(r"cuda_?(\d{2})\.?(\d)", build):
        told |= {"torch.build": "cuda", "torch.cuda": Version(f"{found[1]}.{found[2]}")}
    elif local.startswith("rocm"):
        told["torch.build"] = "rocm"
    for path, value in told.items():
        yield Said(path, value, line, Rank.MESSAGE, "install log")


def _of_wheels(doc: Document) -> Iterator[Said]:
    """Python and platform out of wheels that were downloaded, and of what the tools say of them."""
    chosen = [one for one in wheels_of(doc) if one.chosen]
    for wheel in chosen:
        if wheel.python is not None:
            yield Said("python.version", wheel.python, wheel.line, Rank.MESSAGE, "wheel")
        if wheel.system is not None:
            yield Said("platform.system", wheel.system, wheel.line, Rank.MESSAGE, "wheel")
            yield Said("platform.machine", wheel.machine, wheel.line, Rank.MESSAGE, "wheel")
    for pattern in (_OTHER_PYTHON, CONDA_PYTHON, UV_HERE):
        for found in pattern.finditer(doc.low):
            groups = found.groupdict()
            python = groups.get("python") or groups.get("using")
            line = doc.line_at(found.start()).number
            if python:
                yield Said("python.version", Version(python), line, Rank.MESSAGE, "install log")
            if groups.get("platform"):
                yield from _platform(groups["platform"], line)

    for found in _SUBDIR.finditer(doc.low):
        system, machine = _SUBDIRS[found[1]]
        line = doc.line_at(found.start()).number
        yield Said("platform.system", system, line, Rank.MESSAGE, "conda channel")
        yield Said("platform.machine", machine, line, Rank.MESSAGE, "conda channel")
        break


_SUBDIRS = {
    "linux-64": ("Linux", "x86_64"),
    "linux-aarch64": ("Linux", "aarch64"),
    "linux-ppc64le": ("Linux", "ppc64le"),
    "linux-32": ("Linux", "i686"),
    "linux-armv7l": ("Linux", "armv7l"),
    "win-64": ("Windows", "x86_64"),
    "win-32": ("Windows", "x86"),
    "win-arm64": ("Windows", "aarch64"),
    "osx-64": ("Darwin", "x86_64"),
    "osx-arm64": ("Darwin", "arm64"),
}
_SUBDIR = re.compile(
    r"(?:/|platform: )(linux-(?:64|32|aarch64|armv7l|ppc64le)|win-(?:64|32|arm64)|"
    r"osx-(?:64|arm64))\b"
)


def _platform(tag: str, line: int) -> Iterator[Said]:
    wheel = Wheel.tagged(tag)
    yield Said("platform.system", wheel[0], line, Rank.MESSAGE, "install log")
    yield Said("platform.machine", wheel[1], line, Rank.MESSAGE, "install log")
