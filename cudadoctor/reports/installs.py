"""What a report shows of installing: commands, and the logs of pip, uv, conda, poetry and pixi.

A log belongs to the command before it. The wheels that a log names tell the Python and the platform
they were chosen for; what it put into the environment is what is installed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.model.machine import Distribution, Install
from cudadoctor.model.versions import version_of
from cudadoctor.reports import values
from cudadoctor.reports.commands import installs_of, manifest_installs, with_implied
from cudadoctor.reports.document import Document
from cudadoctor.reports.packages import Wheel, system_of_tag
from cudadoctor.reports.said import Facts, Rank, Said, gated, stated

MOST = 40
"""More installs than this come from a build log; the last ones count."""
LOG = "install log"


class Piece(NamedTuple):
    """A part of a log: where it begins in the flat text, whose it is, and the fields it states."""

    place: int
    tool: str
    fields: dict[str, Any]


@gated(
    *("install", "satisf", "distribution found", "uv ", "conda", "mamba", "poetry", "pixi", ".whl"),
    *("wheels", "requires-python", "requires a different python", "versions of ", "no version"),
    *("packagesnotfound", "not available from", "does not exist", "your python", "index-url"),
    *("[tool.", "dependencies:", "matching", "available", "a version", "版本", "wheel"),
)
def read_installs(doc: Document) -> Iterator[Said]:
    """Commands that install, with what their logs say, and what follows for the environment."""
    installs = with_implied(doc, _assembled(doc)[-MOST:])
    if installs:
        logged = any(install.refused or install.installed or install.lacks for install in installs)
        rank = Rank.TOOL if logged else Rank.COMMAND
        yield from stated(installs[0].line or 1, LOG, {"installs": tuple(installs)}, rank)
    yield from _installed(installs)
    yield from _of_wheels(doc)


def _assembled(doc: Document) -> list[Install]:
    """Commands and pieces of logs in the order of the text, each log with its command."""
    out: list[Install] = []
    files = tuple(manifest_installs(doc))
    events: list[tuple[int, Install | Piece]] = [(file.line or 1, file) for file in files]
    events += [(asked.line or 1, _with_file(asked, files)) for asked in installs_of(doc)]
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


def _together(*values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for part in values for text in part))


def _with_file(asked: Install, files: tuple[Install, ...]) -> Install:
    """The command with what the file that it reads asks for."""
    reads = asked.tool != "pip" or any(text.startswith("-r ") for text in asked.requirements)
    found = next((file for file in files if file.tool == asked.tool), None)
    if found is None or asked.indexes or not reads:
        return asked
    return msgspec.structs.replace(
        asked,
        requirements=_together(asked.requirements, found.requirements),
        indexes=found.indexes,
        options=_together(asked.options, found.options),
    )


_CONDA = frozenset({"conda", "mamba", "micromamba"})


def _takes(install: Install, piece: Piece) -> bool:
    """Whether a piece of a log can belong to that install."""
    same = install.tool == piece.tool or {install.tool, piece.tool} <= _CONDA
    if not same and not (install.tool in ("pipenv", "pdm", "poetry") and piece.tool == "pip"):
        return False
    refused = piece.fields.get("refused")
    if refused and install.refused:
        return _name_of(refused) == _name_of(install.refused)
    return not ("looked" in piece.fields and (install.refused or install.installed))


def _with(install: Install, fields: dict[str, Any]) -> Install:
    """The install with what a piece of its log states; what is known already stays."""
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "looked":
            changes["indexes"] = _together(install.indexes, value)
        elif name in ("installed", "made_for"):
            changes[name] = _together(getattr(install, name), value)
        elif name == "refused" and install.refused:
            changes[name] = max(install.refused, value, key=len)
        elif (
            name == "failed"
            or getattr(install, name) in (None, ())
            # whose build is lacking says more than that none fits
            or (name == "lacks" and install.lacks == "release" and value)
        ):
            changes[name] = value
    return msgspec.structs.replace(install, **changes)


def _name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0].lower().replace("_", "-") if found else ""


def _ours(requirement: str) -> bool:
    """Whether a requirement of conda is torch, a companion of it, or a library of NVIDIA's."""
    return re.match(r"(?:[\w.-]+::)?(?:py)?torch|cuda|nvidia", requirement) is not None


def _refused(place: int, tool: str, what: str, lacks: str | None = None, **more: Any) -> Piece:
    return Piece(place, tool, {"refused": what, "lacks": lacks, "failed": True, **more})


# --- logs of pip, and what uv installed ----------------------------------------------------------

_REFUSED = re.compile(
    r"could not find (?:a|any) versions? that satisf(?:ies|y) the requirements? ", re.I
)
_ASKED = re.compile(
    r"['\"]?(?P<what>[A-Za-z][\w.-]{0,60}(?:\[[\w, -]{0,60}\])?\s?"
    r"(?:\(?(?:===?|~=|!=|>=|<=|<|>)\s?[\w.*+!-]{1,60}(?:,\s?(?=[<>=!~]))?){0,6})"
)
_OFFERED = re.compile(r"(?:from )?versions: ?([^)]{0,22000})", re.I)
_INDEXES = re.compile(r"looking in (?:indexes|links): ((?:\S{4,300}?,\s){0,8}\S{4,300})", re.I)
_DONE = re.compile(
    r"successfully installed ((?:[A-Za-z][\w.]{0,60}(?:-[A-Za-z][\w.]{0,60}){0,5}-\d[\w.+!]{0,60}"
    r"(?: |$|,|'|\"|`)){1,400})",
    re.I,
)
_NOT_SUPPORTED = re.compile(
    r"([\w.+%-]{5,200}\.whl) is not a supported wheel on this platform", re.I
)
OTHER_PYTHON = (
    r"(?i)package '?(?P<what>[\w.-]{2,60})'? requires a different python: ?"
    r"(?P<python>\d[\d.]{1,8})\w{0,6} not in '?[\d.<>=!~*, ]{1,60}"
)
_UV_DONE = re.compile(r"\s{0,4}\+ ([\w.-]{2,60})==([\w.+!]{1,60})(?:\s|$)")


def _pieces(doc: Document) -> Iterator[Piece]:
    for words, read in _READERS.items():
        if doc.mentions(*words.split("|")):
            yield from read(doc)


def _refusals(doc: Document) -> Iterator[Piece]:
    for found in islice(_REFUSED.finditer(doc.flat), MOST):
        rest = doc.flat[found.end() : found.end() + 24000]
        wanted = _ASKED.match(rest)
        if wanted is None:
            continue
        what = _spec(wanted["what"])
        more: dict[str, Any] = {}
        offered = _OFFERED.search(rest)
        if offered and offered.start() < 400 and not _REFUSED.search(rest[: offered.start()]):
            more["offered"] = _versions(offered[1])
        lacks = "python" if _ignored(what, doc) else None
        yield _refused(found.start(), "pip", what[:120], lacks, **more)


_IGNORED = re.compile(r"ignored the following versions that require a different python version: ")


def _ignored(what: str, doc: Document) -> bool:
    """Whether pip says that it passed over this very release for its Python."""
    found = _IGNORED.search(doc.low)
    version = what.partition("==")[2].partition("+")[0]
    if found is None or not version:
        return False
    listed = doc.low[found.end() : found.end() + 20_000].partition("error:")[0]
    release = rf"(?<![\w.]){re.escape(version)}(?:\+\w{{1,12}})? requires-python"
    return re.search(release, listed) is not None


def _spec(text: str) -> str:
    return re.sub(r"\s*([=<>!~]=?=?)\s*", r"\1", text.strip()).rstrip(".,:; -")


def _versions(text: str) -> tuple[str, ...]:
    """Versions of a list; () for "none". It ends where something else than a version stands."""
    out = []
    for word in re.split(r"[,\s]+", text):
        bare = word.strip(" '\"[]")
        if re.fullmatch(r"v?\d[\w.+!-]{0,60}", bare):
            out.append(bare)
        elif bare not in ("", "...", "…", "etc", "and"):
            break
    return tuple(out)


def _indexes(doc: Document) -> Iterator[Piece]:
    for found in _INDEXES.finditer(doc.flat):
        links = tuple(link.strip(" ,'\"") for link in found[1].split(",") if "/" in link)
        yield Piece(found.start(), "pip", {"looked": links})


def _successes(doc: Document) -> Iterator[Piece]:
    for found in _DONE.finditer(doc.flat):
        pairs = (word.strip(",'\"`").rpartition("-") for word in found[1].split())
        put = tuple(f"{name.lower().replace('_', '-')}=={version}" for name, _, version in pairs)
        yield Piece(found.start(), "pip", {"installed": put, "failed": False})


def _uv_successes(doc: Document) -> Iterator[Piece]:
    if rows := doc.rows(_UV_DONE, "+ "):
        put = tuple(f"{row[1].lower()}=={row[2]}" for _, row in rows)
        first = max(0, doc.flat.find("+ {}=={}".format(*rows[0][1].groups())))
        yield Piece(first, "uv", {"installed": put, "failed": False})


def _pip_wheels(doc: Document) -> Iterator[Piece]:
    for found in _NOT_SUPPORTED.finditer(doc.flat):
        if wheel := Wheel.of(found[1]):
            tags = (*wheel.pythons, *wheel.platforms)
            what = f"{wheel.name}=={wheel.version}"
            yield _refused(found.start(), "pip", what, made_for=tags)


# --- logs of the programs that resolve before they install: uv, poetry, conda and mamba ----------


class Refusal(NamedTuple):
    """A sentence in which a tool refuses a requirement: what (and its version or spec).

    Other groups: kind, of the tag that does not fit; tags that there are; index, where it looked.
    words: one of them ("|" between) stands in every report with it.
    """

    words: str
    tool: str
    pattern: str
    lacks: str | None = None
    failed: bool = True


_UV = "because |wheels are|found wheels|has wheels|distribution "
_POETRY = "installation candidates|match|so it will not"
_uv = partial(Refusal, _UV, "uv")
_poetry = partial(Refusal, _POETRY, "poetry")
_PROJECT = r"[\w.-]{2,60}(?:\{[^}]{1,200}\})?"
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "no matching distribution",
        "pip",
        r"(?i)no matching distributions? (?:found|available) for (?P<what>[A-Za-z][\w.-]{0,60}"
        r"(?:\[[\w,-]{1,60}\])?(?:\s?(?:===?|~=|!=|>=|<=|<|>)\s?[\w.*+!,<>=~-]{1,60})?)",
    ),
    Refusal("different python", "pip", OTHER_PYTHON, "python"),
    _uv(
        rf"because there (?:is|are) no versions? of (?P<what>{_PROJECT}==[\w.+*]{{1,40}})",
        "release",
    ),
    _uv(rf"because there (?:is|are) no versions? of (?P<what>{_PROJECT})(?![\w.=-])"),
    _uv(
        r"because (?P<what>[\w.-]{2,60}) was not found in the (?:package registry|cache|"
        r"provided package locations)"
    ),
    _uv(
        r"does not satisfy python[<>=\d., ]{2,30} and (?P<what>torch(?:vision|audio)?"
        r"(?:[=<>]{1,2}[\w.+,<>=]{1,60})?) depends on python",
        "python",
    ),
    _uv(
        rf"(?P<what>{_PROJECT}(?:[=<>]=?[\w.+,<>=]{{1,60}})?) has no (?:wheels with a matching "
        r"(?P<kind>python abi|python version|python implementation|platform) tag"
        r"|wheels (?:are usable|for the current platform))"
    ),
    _uv(
        r"(?:wheels are (?:only )?available for |we only found wheels for |but )"
        r"'?(?P<what>[\w.-]{2,60})'? \(v(?P<version>[\w.+]{1,40})\) (?:only has wheels )?"
        r"(?:on|with|for) the following (?P<kind>platforms?|python abi tags?"
        r"|python implementation tags?|python version tags?): "
        r"(?P<tags>(?:'?[\w.]{2,40}'?(?:,? |$)){1,40})"
    ),
    _uv(
        r"distribution '?(?P<what>[\w.-]{2,60}==[\w.+]{1,40}) @ registry\+"
        r"(?P<index>\S{8,200}?)'? can't be installed because it doesn't have a source distribution"
        r" or wheel for the current platform"
    ),
    _poetry(
        r"unable to find installation candidates for (?P<what>[\w.-]{2,60}) "
        r"\((?P<version>[\w.+]{1,40})\)"
    ),
    # poetry's list of versions is of every Python
    _poetry(
        r"depends on (?P<what>[\w.-]{2,60}) \((?P<version>[^()]{1,60})\)"
        r" which doesn't match any versions",
        "release",
    ),
    _poetry(
        r"(?:because|and) no versions of (?P<what>[\w.-]{2,60}) match "
        r"(?P<version>[\w.+<>=!,^~* ]{1,60})",
        "release",
    ),
    _poetry(
        r"(?P<what>torch(?:vision|audio|text)?) requires python [<>=!][\w.<>=!, ]{1,40}"
        r",? so it will not",
        "python",
        failed=False,
    ),
)


_compiled = cache(re.compile)


def _sentences(doc: Document) -> Iterator[Piece]:
    for refusal in REFUSALS:
        if doc.mentions(*refusal.words.split("|")):
            text = doc.flat if refusal.tool == "pip" else doc.low
            for found in _compiled(refusal.pattern).finditer(text):
                yield Piece(found.start(), refusal.tool, _fields(refusal, found))


def _fields(refusal: Refusal, found: re.Match[str]) -> dict[str, Any]:
    groups = found.groupdict()
    what, version = _spec(_EXTRA.sub("", found["what"])), groups.get("version") or ""
    if re.fullmatch(r"[\w.+]+", version):
        what += f"=={version}"
    elif version[:1] in ("<", ">", "=", "!"):
        what += version
    fields: dict[str, Any] = {"refused": what, "lacks": refusal.lacks}
    if refusal.failed:
        fields["failed"] = True
    if kind := groups.get("kind"):
        fields["lacks"] = "platform" if "platform" in kind else "python"
    if tags := groups.get("tags"):
        fields["made_for"] = tuple(tag.strip("', ") for tag in tags.split() if len(tag) > 3)
    if index := groups.get("index"):
        fields["looked"] = (index,)
    return fields


_UV_LIST = re.compile(
    r"(?:only (?:the following versions of )?(?P<what>[\w.-]{2,60}(?:\{[^}]{1,200}\})?) "
    r"(?:is|are) available:? ?|only (?P<one>[\w.-]{2,60})(?P<op><=?|>=?|==)(?P<bound>[\w.+]{1,40}) "
    r"is available)"
    r"(?P<list>(?:[\w.-]{2,60}(?:\{[^}]{1,200}\})?(?:==|<=|>=|<|>)[\w.+,<>=]{1,40} ){0,80})"
)
_UV_HERE = re.compile(
    r"you require (?P<name>cpython|pypy)? ?(?P<python>3\.\d{1,2})|"
    r"you're (?:on|using) (?P<os>[^,;]{2,40}?) \('?(?P<platform>[\w.]{4,40})'?\)"
    r"|you're using cpython (?P<using>3\.\d{1,2})"
)
_UV_WANTED = re.compile(
    r"(?:you require|depends on|requires) (?P<what>(?:torch|torchvision|torchaudio|triton|xformers)"
    r"(?:\{[^}]{1,200}\})?(?:[=<>~!]{1,2}[\w.+*,<>=~!]{1,60})?)(?=[ ,]|$)"
)
_CONDA_GONE = re.compile(
    r"(?:packagesnotfounderror: |the following packages (?:are not available|are missing))"
    r"[^-]{0,200}"
    r"((?:- [\w.:-]{2,60}[=<>!\[][^ ]{0,60} |- [\w.:-]{2,60} ){1,20})"
    r"(?:current channels: ((?:- \S{8,120} ?){1,20}))?"
)
_MAMBA_GONE = re.compile(
    r"nothing provides (?:requested )?(?P<a>[a-z][\w.-]{1,60}(?:[ =<>]{1,3}[\w.*=<>|+-]{1,60})?)"
    r"|(?P<b>[a-z][\w.-]{1,60}(?:[ =<>]{1,3}[\w.*=<>|+-]{1,60}){0,2}),? (?:which )?does not exist"
)
_CONDA_PYTHON = re.compile(r"your python: python=?=?(?P<python>3\.\d{1,2}|2\.7)")
_CONDA_SPEC = re.compile(
    r"- (?P<what>(?:pytorch|torchvision|torchaudio|pytorch-cuda|pytorch-gpu)"
    r"[=<>\[ \w.*'-]{0,80}?) -> python"
)


_EXTRA = re.compile(r"\{[^}]{1,200}\}")


def _uv_lists(doc: Document) -> Iterator[Piece]:
    for found in _UV_LIST.finditer(doc.low):
        what = _EXTRA.sub("", found["what"] or found["one"])
        listed = re.findall(r"==([\w.+]{1,40})", found["list"] or "")
        listed += [found["bound"]] if found["bound"] and "=" in found["op"] else []
        wanted = _UV_WANTED.search(doc.low, found.end())
        if wanted and _name_of(wanted["what"]) == _name_of(what):
            what = _EXTRA.sub("", wanted["what"]).rstrip(",")
        # uv lists all versions of an index, whatever the Python.
        yield _refused(found.start(), "uv", what, "release", offered=tuple(listed))


def _conda_refusals(doc: Document) -> Iterator[Piece]:
    for found in _CONDA_GONE.finditer(doc.low):
        names = [name.strip(" -") for name in found[1].split(" - ")]
        first = sorted(filter(None, names), key=_ours, reverse=True)[0]
        channels = tuple(re.findall(r"- (\S{8,120})", found[2] or ""))
        looked: dict[str, Any] = {"looked": channels} if channels else {}
        yield _refused(found.start(), "conda", first, offered=(), **looked)
    for found in _MAMBA_GONE.finditer(doc.low):
        what = (found["a"] or found["b"]).replace(" ", "=").rstrip("=-*")
        if _ours(what):
            yield _refused(found.start(), "conda", what, "release")
    if _CONDA_PYTHON.search(doc.low):
        for found in _CONDA_SPEC.finditer(doc.low):
            yield _refused(found.start(), "conda", found["what"].strip(), "python")


_CONDA_BUILD = re.compile(
    r"(?:^|[\s:/+])(?P<name>pytorch|torchvision|torchaudio|pytorch-cuda|cudatoolkit|cpuonly|libtorch|"
    r"pytorch-gpu|pytorch-cpu|pytorch-mutex|libcusparse|cuda-cudart)[-\s]+(?P<version>\d[\w.]{0,20})"
    r"[-\s|]+(?P<build>[\w.*]{1,60})"
)


def _conda_builds(doc: Document) -> Iterator[Piece]:
    """What a solver chose: pytorch-2.1.0 | py3.11_cuda12.1_cudnn8_0, + pytorch 2.0.1 cpu_py310."""
    found = ((line, _CONDA_BUILD.search(line.text)) for line in doc.lines)
    rows = [
        (line, row)
        for line, row in found
        if row and re.search(r"py|cuda|cpu|_\d$|^h?[0-9a-f]{6,}|^\d$", row["build"])
    ]
    if rows:
        put = _together(f"{row['name']}=={row['version']}={row['build']}" for _, row in rows)
        place = doc.flat.find(" ".join(rows[0][0].text.split()))
        yield Piece(place, "conda", {"installed": put})


_READERS: dict[str, Callable[[Document], Iterator[Piece]]] = {
    "satisf": _refusals,
    "looking in ": _indexes,
    "successfully installed": _successes,
    "+ ": _uv_successes,
    ".whl is not": _pip_wheels,
    _UV: _uv_lists,
    "packagesnotfound|not available|nothing provides|does not exist|your python": _conda_refusals,
    "conda|mamba|cudatoolkit|pkgs/": _conda_builds,
    "": _sentences,
}
"""Words of which one ("|" between) stands in the text -> the reader of those pieces."""


# --- what follows for the environment ------------------------------------------------------------

_CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}


def _installed(installs: list[Install]) -> Iterator[Said]:
    """What the logs put into the environment, the last first."""
    for install in reversed(installs):
        put = [name.split("==", 1) for name in install.installed if "==" in name]
        held = {
            _CONDA_NAMES.get(name, name): version.partition("=")[0]
            for name, version in put
            if _ours(name) or name in ("numpy", "triton", "xformers")
        }
        packages = (
            Distribution(name=name, version=version, installer=install.tool)
            for name, version in held.items()
        )
        line = install.line or 1
        yield from stated(line, LOG, {"packages": tuple(packages) or None}, Rank.MESSAGE)
        for name, version in put:
            if name in ("torch", "pytorch"):
                yield from stated(line, LOG, _torch(version), Rank.MESSAGE)


def _torch(text: str) -> Facts:
    plain, _, build = text.partition("=")
    version = version_of(plain)
    if version is None:
        return {}
    local = version.local or ""
    facts: Facts = {"torch.installed": True, "torch.version": version, "torch.text": plain}
    if found := re.fullmatch(r"cu(\d{2,3})", local):
        return facts | {"torch.build": "cuda", "torch.cuda": values.dotted(found[1])}
    if local == "cpu" or (not local and "cpu" in build):
        return facts | {"torch.build": "cpu"}
    if found := re.search(r"cuda_?(\d{2}\.?\d)", build):
        return facts | {"torch.build": "cuda", "torch.cuda": values.dotted(found[1])}
    return facts | ({"torch.build": "rocm"} if local.startswith("rocm") else {})


def _of_wheels(doc: Document) -> Iterator[Said]:
    """Python and platform out of wheels that were downloaded, and of what the tools say of them."""
    for line in doc.lines:
        for wheel in Wheel.all_in(line.text):
            if wheel.chosen:
                facts: Facts = {"python.version": wheel.python} | _platform(wheel.platforms[-1])
                yield from stated(line.number, "wheel", facts, Rank.MESSAGE)
    for pattern in (_compiled(OTHER_PYTHON), _CONDA_PYTHON, _UV_HERE):
        for found in pattern.finditer(doc.low):
            groups = found.groupdict()
            python = groups.get("python") or groups.get("using")
            facts = {"python.version": Version(python) if python else None}
            platform = _platform(groups.get("platform") or "")
            yield from stated(doc.line_of(found), LOG, facts | platform, Rank.MESSAGE)
    if subdir := _SUBDIR.search(doc.low):
        system, machine = _SUBDIRS[subdir[1]]
        facts = {"platform.system": system, "platform.machine": machine}
        yield from stated(doc.line_of(subdir), "conda channel", facts, Rank.MESSAGE)


def _platform(tag: str) -> Facts:
    system, machine = system_of_tag(tag)
    return {"platform.system": system, "platform.machine": machine}


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
