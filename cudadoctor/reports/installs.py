"""What a report shows of installing: commands, and the logs of pip, uv, conda, poetry and pixi.

A log belongs to the command before it. The wheels that a log names tell the Python and the platform
they were chosen for; what it put into the environment is what is installed there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from cudadoctor.model.machine import Distribution, Install
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.packages import Wheel, build_of_conda, system_of_tag
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
    installs = _with_implied(doc, _assembled(doc)[-MOST:])
    if installs:
        logged = any(install.refused or install.installed or install.lacks for install in installs)
        rank = Rank.TOOL if logged else Rank.COMMAND
        yield from stated(installs[0].line or 1, LOG, {"installs": tuple(installs)}, rank)
    yield from _installed(installs)
    yield from _of_wheels(doc)


def _assembled(doc: Document) -> list[Install]:
    """Commands and pieces of logs in the order of the text, each log with its command."""
    out: list[Install] = []
    files = tuple(_manifest_installs(doc))
    events: list[tuple[int, Install | Piece]] = [(file.line or 1, file) for file in files]
    events += [(asked.line or 1, _with_file(asked, files)) for asked in _installs_of(doc)]
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
                release, _, build = version.partition("=")
                facts = build_of_conda(build) | values.torch_facts(release)
                yield from stated(line, LOG, facts, Rank.MESSAGE)


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
        facts = values.WORDS.subdirs[subdir[1]]
        yield from stated(doc.line_of(subdir), "conda channel", facts, Rank.MESSAGE)


def _platform(tag: str) -> Facts:
    system, machine = system_of_tag(tag)
    return {"platform.system": system, "platform.machine": machine}


_SUBDIR = re.compile(
    r"(?:/|platform: )(linux-(?:64|32|aarch64|armv7l|ppc64le)|win-(?:64|32|arm64)|"
    r"osx-(?:64|arm64))\b"
)


# --- what is asked for: commands as people paste and quote them ----------------------------------
# A command may be wrapped with a backslash, stand behind a prompt, in a Dockerfile, in quotes or in
# the middle of a sentence. What follows it in a sentence is not taken for a package.

_PROGRAM = re.compile(r"pip|conda|mamba|poetry|pixi|pdm|\buv |easy_install")
MOST_COMMANDS = 300
"""More commands than these come from no report."""
_LONGEST = 2000
"""No command that people type is longer."""


_COMMAND = re.compile(
    r"(?<![\w./-])(?:"
    r"(?P<uvpip>uv pip (?:install|sync|compile))|(?P<uv>uv (?:add|sync|lock|run|tool install))"
    r"|(?P<pip>(?:(?:[\w./\\:-]{0,200}[/\\])?(?:python|py)[\w.]{0,10}(?:\.exe)? "
    r"(?:-\S{1,10} ){0,3}-m )?(?:[\w./\\:-]{0,200}[/\\])?pip[\d.]{0,5}(?:\.exe)? "
    r"(?:--?[\w=-]{1,40} ){0,3}(?:install|download|wheel))"
    r"|(?P<conda>(?:conda|mamba|micromamba)(?:\.exe)? (?:env )?(?:install|create|update|upgrade))"
    r"|(?P<poetry>poetry (?:add|install|lock|update))|(?P<pixi>pixi (?:add|install|global install))"
    r"|(?P<pipenv>pipenv (?:install|lock))|(?P<pdm>pdm (?:add|install|lock))"
    r"|(?P<easy>easy_install))(?![\w-])"
)
_MAGIC = re.compile(r"^\s{0,8}(?:[!%]|\(\w[\w.-]{0,60}\)|\$|#\s|>>>)\s?")
_TAKES_VALUE = re.compile(
    r"-[ifcnptrC]|--(?:(?:extra-|default-)?index(?:-url)?|find-links|channel|name|prefix|python|target"
    r"|requirement|constraint|platform|python-version|source|extra|torch-backend|python-platform"
    r"|group|override|file|cache-dir|trusted-host|(?:default-)?timeout|proxy|retries|src|root"
    r"|(?:only|no)-binary|config-settings|implementation|abi|(?:global|install|build)-option"
    r"|progress-bar|prerelease)"
)
_INDEX = re.compile(r"-i|-f|--(?:extra-|default-)?index(?:-url)?|--find-links|--source")
_ONLY_INDEX = ("-i", "--index-url", "--default-index")
_KEPT_VALUE = ("--torch-backend", "--platform", "--python-version", "--python", "--target", "-t")
_END = re.compile(
    r"&&|\|\||[;|&>\\#\"']|>>|2>&1|//|->|=>|--|(?i:and|but|then|in|the|to|it|with|from|on|for|which"
    r"|i|or|fails|works|command|again|gives|i'm|as|does|is|was|after|before|because|so|failed|worked"
    r"|that|this|my|did|not|also|instead|into|returns|error|using|inside|when|if|at|via|of|a|an"
    r"|step|should|will|would|succeeds|still|succeeded|without|completed|outputs?|resolved|says|too"
    r"|first|doesn't|see)"
)
"""Words that end a command: signs of the shell, and the sentence that goes on behind it."""
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,. -]{0,80}\])?"
    r"(?:\s?(?:===|==|~=|!=|>=|<=|=|>|<|@)\s?\S{1,200})?|(?:https?|git\+\w{2,6}|file)://\S{1,400}"
    r"|\S{1,300}\.(?:whl|tar\.gz|zip)\S{0,60}|\.(?:\[[\w,-]{1,60}\])?|[\w.-]{1,60}::\S{1,120}"
)


def _installs_of(doc: Document) -> Iterator[Install]:
    """Every command of the document that installs something."""
    return islice(_commands(doc), MOST_COMMANDS)


def _commands(doc: Document) -> Iterator[Install]:
    for number, text in _joined(doc):
        for found in _COMMAND.finditer(text) if _PROGRAM.search(text) else ():
            rest = text[found.end() : found.end() + _LONGEST]
            words = _words(rest, text[found.start() - 1 : found.start()])
            group = found.lastgroup or "pip"
            tool = {"uvpip": "uv", "easy": "easy_install"}.get(group, group)
            if group == "conda":  # or mamba, micromamba
                tool = found[0].split(maxsplit=1)[0].removesuffix(".exe")
            yield _install(tool, words, number)


def _joined(doc: Document) -> Iterator[tuple[int, str]]:
    """Lines, with those that end in a continuation mark joined to the next."""
    held, number = "", 0
    for line in doc.lines:
        text = line.text
        number = number or line.number
        if text.rstrip().endswith(("\\", " ^")) and len(held) < 4000:
            held += text.rstrip()[:-1] + " "
            continue
        yield number, _MAGIC.sub("", held + text)
        held, number = "", 0
    if held:
        yield number, held


_SPLIT = re.compile(r"""\s*("[^"]{0,400}"|'[^']{0,400}'|[^\s'"]{1,400}|['"])""")


def _words(rest: str, before: str) -> Iterator[str]:
    """The words of a command, to its end. before: the mark it stands behind, where that quotes."""
    if before in "'\"" and before.strip() and before in rest:
        rest = rest[: rest.index(before)]
    position = 0
    for _ in range(120):
        found = _SPLIT.match(rest, position)
        if found is None:
            return
        position = found.end()
        word = found[1]
        if _END.fullmatch(word):
            return
        word = word.strip("'\"")
        bare = word.rstrip(",;)")
        if word.endswith((")", ";")) or (word.endswith(",") and not _listed(rest[position:])):
            if bare:
                yield bare
            return
        yield bare or word


def _listed(rest: str) -> bool:
    """Whether a comma stands inside a requirement that was written with spaces."""
    return bool(re.match(r"\s?[<>=!]", rest))


def _install(tool: str, words: Iterator[str], line: int) -> Install:
    """A command as a fact."""
    wanted: list[str] = []
    indexes: list[str] = []
    options: list[str] = []
    words = _with_signs(words)
    for word in words:
        if not word.startswith("-"):
            if _REQUIREMENT.fullmatch(word):
                wanted.append(word.rstrip("," if word.endswith((".whl", ".")) else ".,:;)"))
            continue
        name, sign, value = word.partition("=")
        if not sign and _TAKES_VALUE.fullmatch(name):
            value = next(words, "")
        value = value.strip("'\"<>,")
        conda = tool in ("conda", "mamba", "micromamba", "pixi")
        channel = conda and name in ("-c", "--channel")
        if channel or (_INDEX.fullmatch(name) and not (conda and name == "-f")):
            if value:
                indexes.append(value)
            if name in _ONLY_INDEX:
                options.append("--index-url")
        elif name in ("-r", "--requirement", "--file") and value:
            wanted.append(f"-r {value}")
        else:
            options.append(f"{name}={value}" if name in _KEPT_VALUE and value else name)
    return _asked(tool, line, wanted, indexes, options)


def _asked(
    tool: str, line: int, wanted: list[str], indexes: list[str], options: list[str]
) -> Install:
    return Install(
        tool=tool,
        requirements=tuple(dict.fromkeys(wanted)),
        indexes=tuple(dict.fromkeys(indexes)),
        options=tuple(dict.fromkeys(options)),
        line=line,
    )


def _with_signs(words: Iterator[str]) -> Iterator[str]:
    """`torch == 2.1` written with spaces is one requirement."""
    held = ""
    for word in words:
        number = re.match(r"(?:===|==|~=|!=|>=|<=|>|<)", held[-2:]) and word[:1].isdigit()
        if held and (number or re.fullmatch(r"(?:==|~=|!=|>=|<=|>|<)\S{0,40}", word)):
            held += word
            continue
        if held:
            yield held
        held = word
    if held:
        yield held


# --- files that say what is to be installed and from where, as people paste parts of them -------

_INDEX_OPTION = re.compile(
    r"\s{0,8}(?P<option>--index-url|--extra-index-url|--find-links|-i|-f)[ =]"
    r"(?P<url>https?://\S{4,300})\s{0,4}$"
)
_TABLE = re.compile(r"\s{0,8}\[{1,2}(?P<name>[\w.\"'-]{1,80})\]{1,2}\s{0,4}(?:#.{0,80})?$")
_URL = re.compile(
    r"\s{0,8}(?:url|index-url|extra-index-url|find-links)\s?=\s?\[?"
    r"[\"'](?P<url>\S{4,300}?)[\"']"
)
_TORCH_SOURCE = re.compile(
    r"\s{0,8}(?P<name>torch|torchvision|torchaudio)\s?=\s?\[?\s?\{"
    r"(?:\s?version ?= ?[\"'](?P<version>[\w.^~=<>!*+, -]{1,40})[\"'])?"
    r"[^{}]{0,80}?(?:index|source) ?= ?"
    r"[\"'](?P<index>[^\"']{1,80})[\"']"
)
_NEEDED = re.compile(
    r"\s{0,8}[\"']?(?P<what>torch(?:vision|audio)?(?:\s?[=<>~!]=?[\w.*+,<>= ]{1,40})?)"
    r"[\"']?,?\s{0,4}$"
)
_YAML = re.compile(
    r"\s{0,8}- (?P<what>(?:[\w-]{1,30}::)?[\w.-]{2,40}(?:\s?[=<>]{1,2}[\w.*=<>,]{1,40})?)\s{0,4}$"
)
_OURS = re.compile(r"(?:[\w-]{1,30}::)?(?:py)?torch|cudatoolkit")
_INDEX_TABLES = ("tool.uv.index", "tool.uv.pip", "tool.poetry.source", "tool.uv", "source")


def _manifest_installs(doc: Document) -> Iterator[Install]:
    """What such files of the document ask for: one for pip, one for uv or poetry, one for conda."""
    if doc.mentions("[tool.", "[[source]]"):
        yield from _pyproject(doc)
    if doc.mentions("--index-url", "--extra-index-url", "--find-links"):
        yield from _requirements(doc)
    if doc.mentions("dependencies:", "channels:"):
        yield from _environment(doc)


def _pyproject(doc: Document) -> Iterator[Install]:
    table, first = "", 0
    indexes: list[str] = []
    sources: list[str] = []
    wanted: list[str] = []
    tool = "poetry" if "[tool.poetry" in doc.low else "uv"
    for line in doc.lines:
        if found := _TABLE.match(line.text):
            table, first = found["name"], first or line.number
        elif table in _INDEX_TABLES and (found := _URL.match(line.text)):
            indexes.append(found["url"])
        elif found := _TORCH_SOURCE.match(line.text):
            sources.append(found["index"])
            if found["version"]:
                wanted.append(found["name"] + _pip_spec(found["version"]))
        elif first and (found := _NEEDED.match(line.text)):
            wanted.append(found["what"].replace(" ", ""))
    named = [name for name in sources if re.search(r"cu\d{2,3}|cpu", name)]
    if indexes or sources:
        # A package that is tied to an index is looked for there alone.
        yield _asked(tool, first, wanted, indexes or named, ["--index-url"] if sources else [])


def _pip_spec(text: str) -> str:
    """A version as poetry writes it, as pip does: a caret with a local version means that build."""
    plain = text.replace(" ", "")
    if "+" in plain or plain[:1].isdigit():
        return "==" + plain.lstrip("^~=<>")
    return plain if plain[:1] in "=<>!~" else ">=" + plain.lstrip("^*")


def _requirements(doc: Document) -> Iterator[Install]:
    """Lines of a requirements file: an option that stands alone, and torch below it."""
    first = 0
    indexes: list[str] = []
    options: list[str] = []
    wanted: list[str] = []
    wrapped = False  # an option on the second line of a command belongs to the command
    for number, text in doc.lines:
        wrapped, before = text.rstrip().endswith(("\\", " ^", "`")), wrapped
        if before:
            continue
        if found := _INDEX_OPTION.match(text):
            indexes.append(found["url"])
            first = first or number
            if found["option"] in ("--index-url", "-i"):
                options.append("--index-url")
        elif found := _NEEDED.match(text):
            wanted.append(found["what"].replace(" ", ""))
    if indexes:
        yield _asked("pip", first, wanted, indexes, options)


def _environment(doc: Document) -> Iterator[Install]:
    """An environment.yml: channels, and what it depends on."""
    part, first = "", 0
    found: dict[str, list[str]] = {"channels": [], "dependencies": []}
    for line in doc.lines:
        if head := re.match(r"\s{0,8}(channels|dependencies):\s{0,4}$", line.text):
            part, first = head[1], first or line.number
        elif part and (entry := _YAML.match(line.text)):
            found[part].append(entry["what"].replace(" ", ""))
        elif line.text.strip() and not line.text.strip().startswith(("#", "-")):
            part = ""
    if any(_OURS.match(name) for name in found["dependencies"]):
        yield Install(
            tool="conda",
            requirements=tuple(found["dependencies"]),
            indexes=tuple(found["channels"]),
            line=first,
        )


# --- refusals in words, without the line in which the installer names them -----------------------

_SAID = re.compile(
    r"no matching (?:distribution|version|package|tool|wheel)|"
    r"(?:could(?: ?n[o']t)?|can(?:not|'t)) find (?:a |any )?(?:matching )?versions?\b|"
    r"could find a version that satisf|no compatible version found for: (?:py)?torch|"
    r"doesn't have a source distribution or wheel|no wheels? (?:is |are )?available|"
    r"unable to find (?:installation )?candidates|no solution found when resolving|"
    r"(?:torch|pytorch)(?: version)?(?:[ =v]{1,3}\d[\w.+]{0,20})? "
    r"(?:is|are|was|were) (?:not|no longer) available|"
    r"(?:version|wheel|release|build)s? (?:is|are) (?:not|no longer) available|"
    r"(?:找不到|没有找到|未找到|没有)(?:对应的|合适的|该|这个|匹配的)?\s?(?:版本|torch|pytorch|安装包|轮子)|"
    r"(?:torch|pytorch)的?版本(?:找不到|没有)|無い?バージョン|"
    r"no (?:pre-?built |binary )?wheels? for (?:python|cp|this|my|linux|windows|mac|arm|aarch64)|"
    r"(?:wheel|release|version)s? (?:for|of)[^.\n]{0,40} (?:do(?:es)?n't|do(?:es)? not) exist"
)
"""What people quote or say where an installer found nothing."""
_TORCH = r"(?:torch|torchvision|torchaudio)"
_PINNED = re.compile(rf"{_TORCH}(?:\[[\w,]{{1,30}}\])?\s?===?\s?\d[\w.+*-]{{0,40}}$")
_NAMED = re.compile(
    r"(?<![\w./-])(?P<name>torch|pytorch|torchvision|torchaudio)(?: version)?[ =(v]{1,4}"
    r"(?P<version>\d\.\d{1,2}(?:\.\d{1,2})?(?:\+\w{2,12})?)(?![\w.]*\.whl)"
)
_SOLVERS = frozenset({"conda", "mamba", "micromamba"})
"""Their refusals name the package themselves."""
_FAR = 160
"""How far from the words a release may stand that they speak of."""


def _with_implied(doc: Document, installs: list[Install]) -> list[Install]:
    """The installs; the last of torch with a refusal, if words say that there was one."""
    said = _SAID.search(doc.low)
    if said is None or any(install.refused or install.installed for install in installs):
        return installs
    last = [n for n, install in enumerate(installs) if install.tool not in _SOLVERS][::-1]
    for place in last:
        asked = next((text for text in installs[place].requirements if _PINNED.match(text)), None)
        if asked is not None:
            return _with_refusal(installs, place, asked)
    near = doc.low[max(0, said.start() - _FAR) : said.end() + _FAR]
    if found := _NAMED.search(near):
        asked = f"{found['name'].replace('pytorch', 'torch')}=={found['version']}"
        line = doc.line_of(said)
        return [*installs, Install(tool="pip", refused=asked, failed=True, line=line)]
    for place in last:
        if "torch" in installs[place].requirements:
            return _with_refusal(installs, place, "torch")
    return installs


def _with_refusal(installs: list[Install], place: int, asked: str) -> list[Install]:
    offered = () if asked == "torch" else None
    changed = msgspec.structs.replace(installs[place], refused=asked, failed=True, offered=offered)
    return [*installs[:place], changed, *installs[place + 1 :]]
