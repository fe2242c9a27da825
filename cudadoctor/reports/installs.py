"""What a report shows of installing: commands, and the logs of pip, uv, conda, poetry and pixi.

A log belongs to the command before it. The wheels that a log names tell the Python and the platform
they were chosen for; what it put into the environment is what is installed there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, pairwise
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from cudadoctor.knowledge.wording import wording
from cudadoctor.model.machine import IN_FILE, Install, Strings
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Line, Match
from cudadoctor.reports.packages import Wheel, build_of_conda, system_of_tag
from cudadoctor.reports.statements import Facts, Rank, Statements, gated, stated

MOST = 40
"""More installs than this come from a build log; the last ones count."""
LOG = "install log"


Installs = Iterator[Install]
Fields = dict[str, Any]
"""Fields of an install that a text states."""
MOST_PIECES = 300
"""The same sentence more often than this comes from no log."""


@gated(
    *("install", "satisf", "distribution found", "uv ", "conda", "mamba", "poetry", "pixi", ".whl"),
    *("wheels", "requires-python", "requires a different python", "versions of ", "no version"),
    *("packagesnotfound", "not available from", "does not exist", "your python", "index-url"),
    *("[tool.", "dependencies:", "matching", "available", "a version", "版本", "wheel"),
)
def read_installs(doc: Document) -> Statements:
    """Commands that install, with what their logs say, and what follows for the environment."""
    installs = _with_implied(doc, _assembled(doc)[-MOST:])
    if installs:
        logged = any(install.refused or install.installed or install.lacks for install in installs)
        rank = Rank.TOOL if logged else Rank.COMMAND
        yield from stated(installs[0].line or 1, LOG, {"installs": installs}, rank)
    yield from _installed(installs)
    yield from _of_wheels(doc)


def _assembled(doc: Document) -> list[Install]:
    """Commands and pieces of logs in the order of the text, each log with its command."""
    files = list(_manifests(doc))
    commands = (_with_file(asked, files) for asked in islice(_commands(doc), MOST_COMMANDS))
    events = [(asked.line or 1, False, asked) for asked in (*files, *commands)]
    events += [(piece.line or 1, True, piece) for piece in _pieces(doc)]
    out: list[Install] = []
    for _, is_piece, event in sorted(events, key=lambda event: event[:2]):
        if is_piece and out and _takes(out[-1], event):
            out[-1] = _with(out[-1], event)
        else:
            out.append(event)
    return list(dict.fromkeys(out))


def _together(*values: Iterable[str]) -> Strings:
    return tuple(dict.fromkeys(text for part in values for text in part))


def _with_file(asked: Install, files: list[Install]) -> Install:
    """The command with what the file that it reads asks for."""
    reads = asked.tool != "pip" or any(text.startswith("-r ") for text in asked.requirements)
    found = next((file for file in files if file.tool == asked.tool), None)
    if found is None or asked.indexes or not reads:
        return asked
    return replace(
        asked,
        requirements=_together(asked.requirements, found.requirements),
        indexes=found.indexes,
        options=_together(asked.options, found.options),
    )


_CONDA = frozenset({"conda", "mamba", "micromamba"})


def _takes(install: Install, piece: Install) -> bool:
    """Whether a piece of a log can belong to that install."""
    tools = {install.tool, piece.tool}
    resolved_by_pip = piece.tool == "pip" and install.tool in ("pipenv", "pdm", "poetry")
    if len(tools) > 1 and not tools <= _CONDA and not resolved_by_pip:
        return False
    if piece.refused and install.refused:
        return _name_of(piece.refused) == _name_of(install.refused)
    return not (piece.indexes and (install.refused or install.installed))


def _with(install: Install, piece: Install) -> Install:
    """The install with what a piece of its log states; what is known already stays."""
    changes = {
        name: value
        for name, value in asdict(piece).items()
        if value is not None and getattr(install, name) in (None, ())
    }
    for name in ("indexes", "installed", "made_for"):
        changes[name] = _together(getattr(install, name), getattr(piece, name))
    if piece.refused:
        changes["refused"] = max(install.refused or "", piece.refused, key=len)
    if piece.failed is not None:
        changes["failed"] = piece.failed
    if piece.lacks and install.lacks == "release":  # whose build is lacking says more
        changes["lacks"] = piece.lacks
    return replace(install, **changes)


def _name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0].lower().replace("_", "-") if found else ""


def _concerns_torch(requirement: str) -> bool:
    """Whether a requirement of conda is torch, a companion of it, or a library of NVIDIA's."""
    return re.match(r"(?:[\w.-]+::)?(?:py)?torch|cuda|nvidia", requirement) is not None


# --- what the logs of installers say -------------------------------------------------------------


class Sentence(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of an installer; installers.toml says what each field means."""

    words: str
    pattern: str
    fields: Fields = {}


SENTENCES = wording("installers", dict[str, tuple[Sentence, ...]])
_EXTRA = re.compile(r"\{[^}]{1,200}\}")
_compiled = cache(re.compile)


def _wheel(name: str) -> Fields:
    wheel = Wheel.of(name)
    tags = {"made_for": (*wheel.pythons, *wheel.platforms)} if wheel else {}
    return {"refused": f"{wheel.name}=={wheel.version}", **tags} if wheel else {}


def _spec(text: str) -> str:
    return re.sub(r"\s*([=<>!~]=?=?)\s*", r"\1", text.strip()).rstrip(".,:; -")


def _versions(text: str) -> Iterator[str]:
    """Versions of a list; none for "none". It ends where something else than a version stands."""
    for word in re.split(r"[,\s]+", text):
        bare = word.strip(" '\"[]")
        if re.fullmatch(r"v?\d[\w.+!-]{0,60}", bare):
            yield bare
        elif bare not in ("", "...", "…", "etc", "and"):
            return


def _done(text: str) -> Iterator[str]:
    for word in text.split():
        name, _, version = word.strip(",'\"`").rpartition("-")
        yield f"{name.lower().replace('_', '-')}=={version}"


_STATES: dict[str, Callable[[str], Fields]] = {
    "what": lambda text: {"refused": _spec(_EXTRA.sub("", text))[:120]},
    "spec": lambda text: (
        {"refused": text.replace(" ", "=").rstrip("=-*")} if _concerns_torch(text) else {}
    ),
    "names": lambda text: {"refused": max(re.findall(r"- (\S+)", text), key=_concerns_torch)},
    "wheel": _wheel,
    "kind": lambda text: {"lacks": "platform" if "platform" in text else "python"},
    "tags": lambda text: {"made_for": [tag.strip("', ") for tag in text.split() if len(tag) > 3]},
    "offered": lambda text: {"offered": list(_versions(text))},
    "index": lambda text: {"indexes": [text]},
    "links": lambda text: {
        "indexes": [link.strip(" ,'\"") for link in text.split(",") if "/" in link]
    },
    "channels": lambda text: {"indexes": re.findall(r"- (\S{8,120})", text)},
    "done": lambda text: {"installed": list(_done(text))},
}
"""Named group of a sentence -> the fields of an install that its text states."""


def _pieces(doc: Document) -> Installs:
    """Each sentence of a log as an install of which nothing else is known."""
    for tool, sentences in SENTENCES.items():
        text = doc.flat if tool == "pip" else doc.low
        for sentence in sentences:
            if sentence.words in doc.low:
                for found in islice(_compiled(sentence.pattern).finditer(text), MOST_PIECES):
                    if fields := _fields(found):
                        if tool == "pip" and _ignored(fields.get("refused", ""), doc):
                            fields["lacks"] = "python"
                        known = {"tool": tool, "line": doc.line_of(found), **sentence.fields}
                        yield convert(known | fields, Install)
    if rows := doc.rows(_UV_DONE, "+ "):
        put = tuple(f"{row[1].lower()}=={row[2]}" for _, row in rows)
        yield Install(tool="uv", line=rows[0][0], installed=put, failed=False)
    yield from _uv_lists(doc)
    yield from _conda_builds(doc)


def _fields(found: Match) -> Fields:
    groups = found.groupdict("")
    fields: Fields = {}
    for name, states in _STATES.items():
        if text := groups.get(name):
            fields |= states(text)
    version = groups.get("version", "")
    if re.fullmatch(r"[\w.+]+", version):
        fields["refused"] += f"=={version}"
    elif version[:1] in ("<", ">", "=", "!"):
        fields["refused"] += version
    return fields


def _ignored(requirement: str, doc: Document) -> bool:
    """Whether pip says that it passed over this very release for its Python."""
    version = requirement.partition("==")[2].partition("+")[0]
    passed_over = (
        r"ignored the following versions that require a different python version: "
        rf"(?:(?!error:).){{0,20000}}?(?<![\w.]){re.escape(version)}(?:\+\w{{1,12}})?"
        " requires-python"
    )
    return bool(version) and re.search(passed_over, doc.low) is not None


_UV_DONE = re.compile(r"\s{0,4}\+ ([\w.-]{2,60})==([\w.+!]{1,60})(?:\s|$)")
_UV_LIST = re.compile(
    r"(?:only (?:the following versions of )?(?P<what>[\w.-]{2,60}(?:\{[^}]{1,200}\})?) "
    r"(?:is|are) available:? ?|only (?P<one>[\w.-]{2,60})(?P<op><=?|>=?|==)(?P<bound>[\w.+]{1,40}) "
    r"is available)"
    r"(?P<list>(?:[\w.-]{2,60}(?:\{[^}]{1,200}\})?(?:==|<=|>=|<|>)[\w.+,<>=]{1,40} ){0,80})"
)
_UV_WANTED = re.compile(
    r"(?:you require|depends on|requires) (?P<what>(?:torch|torchvision|torchaudio|triton|xformers)"
    r"(?:\{[^}]{1,200}\})?(?:[=<>~!]{1,2}[\w.+*,<>=~!]{1,60})?)(?=[ ,]|$)"
)


def _uv_lists(doc: Document) -> Installs:
    """The versions that uv lists, all of an index whatever the Python."""
    for found in _UV_LIST.finditer(doc.low) if "only " in doc.low else ():
        what = found["what"] or found["one"]
        listed = re.findall(r"==([\w.+]{1,40})", found["list"])
        listed += [found["bound"]] if found["bound"] and "=" in found["op"] else []
        wanted = _UV_WANTED.search(doc.low, found.end())
        if wanted and _name_of(wanted["what"]) == _name_of(what):
            what = wanted["what"].rstrip(",")
        yield Install(
            tool="uv",
            line=doc.line_of(found),
            refused=_EXTRA.sub("", what),
            offered=tuple(listed),
            lacks="release",
            failed=True,
        )


_CONDA_BUILD = re.compile(
    r"(?:^|[\s:/+])(?P<name>pytorch|torchvision|torchaudio|pytorch-cuda|cudatoolkit|cpuonly|libtorch|"
    r"pytorch-gpu|pytorch-cpu|pytorch-mutex|libcusparse|cuda-cudart)[-\s]+(?P<version>\d[\w.]{0,20})"
    r"[-\s|]+(?P<build>[\w.*]{1,60})"
)


def _conda_builds(doc: Document) -> Installs:
    """What a solver chose: pytorch-2.1.0 | py3.11_cuda12.1_cudnn8_0, + pytorch 2.0.1 cpu_py310."""
    if not doc.mentions("conda", "mamba", "cudatoolkit", "pkgs/"):
        return
    found = ((line.number, _CONDA_BUILD.search(line.text)) for line in doc.lines)
    rows = [
        (number, row)
        for number, row in found
        if row and re.search(r"py|cuda|cpu|_\d$|^h?[0-9a-f]{6,}|^\d$", row["build"])
    ]
    if rows:
        put = _together(f"{row['name']}=={row['version']}={row['build']}" for _, row in rows)
        yield Install(tool="conda", line=rows[0][0], installed=put)


# --- what follows for the environment ------------------------------------------------------------

_CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}


def _installed(installs: list[Install]) -> Statements:
    """What the logs put into the environment, the last first."""
    for install in reversed(installs):
        line = install.line or 1
        put = dict(name.split("==", 1) for name in install.installed if "==" in name)
        held = {
            _CONDA_NAMES.get(name, name): version.partition("=")[0]
            for name, version in put.items()
            if _concerns_torch(name) or name in ("numpy", "triton", "xformers")
        }
        packages = [
            {"name": name, "version": version, "installer": install.tool}
            for name, version in held.items()
        ]
        yield from stated(line, LOG, {"packages": packages or None}, Rank.MESSAGE)
        for name in ("torch", "pytorch"):
            release, _, build = put.get(name, "").partition("=")
            facts = build_of_conda(build) | values.torch_facts(release)
            yield from stated(line, LOG, facts, Rank.MESSAGE)


_CHOSEN_FOR = (
    *(_compiled(row.pattern) for row in SENTENCES["pip"] if "(?P<python>" in row.pattern),
    re.compile(r"your python: python=?=?(?P<python>3\.\d{1,2}|2\.7)"),
    re.compile(
        r"you require (?:cpython|pypy)? ?(?P<python>3\.\d{1,2})|"
        r"you're (?:on|using) [^,;]{2,40}? \('?(?P<platform>[\w.]{4,40})'?\)"
        r"|you're using cpython (?P<using>3\.\d{1,2})"
    ),
)
"""Sentences in which pip, conda and uv name the Python and the platform."""
_SUBDIR = re.compile(
    r"(?:/|platform: )(linux-(?:64|32|aarch64|armv7l|ppc64le)|win-(?:64|32|arm64)|"
    r"osx-(?:64|arm64))\b"
)


def _of_wheels(doc: Document) -> Statements:
    """Python and platform out of wheels that were downloaded, and of what the tools say of them."""
    for line in doc.lines:
        for wheel in Wheel.all_in(line.text):
            if wheel.chosen:
                facts: Facts = {"python.version": wheel.python} | _platform(wheel.platforms[-1])
                yield from stated(line.number, "wheel", facts, Rank.MESSAGE)
    for pattern in _CHOSEN_FOR:
        for found in pattern.finditer(doc.low):
            groups = found.groupdict("")
            python = groups["python"] or groups.get("using")
            facts = {"python.version": python or None} | _platform(groups.get("platform", ""))
            yield from stated(doc.line_of(found), LOG, facts, Rank.MESSAGE)
    if subdir := _SUBDIR.search(doc.low):
        facts = values.WORDS.subdirs[subdir[1]]
        yield from stated(doc.line_of(subdir), "conda channel", facts, Rank.MESSAGE)


def _platform(tag: str) -> Facts:
    return dict(zip(("platform.system", "platform.machine"), system_of_tag(tag), strict=True))


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


def _commands(doc: Document) -> Installs:
    """Every command of the document that installs something."""
    for number, text in _joined(doc):
        for found in _COMMAND.finditer(text) if _PROGRAM.search(text) else ():
            rest = text[found.end() : found.end() + _LONGEST]
            words = _words(rest, text[found.start() - 1 : found.start()])
            tool = found.lastgroup or "pip"
            conda = found[0].split()[0].removesuffix(".exe")  # or mamba, micromamba
            named = {"uvpip": "uv", "easy": "easy_install", "conda": conda}
            yield _install(named.get(tool, tool), words, number)


def _joined(doc: Document) -> Iterator[tuple[int, str]]:
    """Lines, with those that end in a continuation mark joined to the next."""
    held, number = "", 0
    for line in doc.lines:
        number = number or line.number
        text = line.text.rstrip()
        if text.endswith(("\\", " ^")) and len(held) < 4000:
            held += text[:-1] + " "
            continue
        yield number, _MAGIC.sub("", held + line.text)
        held, number = "", 0
    if held:
        yield number, held


_SPLIT = re.compile(r"""\s*("[^"]{0,400}"|'[^']{0,400}'|[^\s'"]{1,400}|['"])""")
_MOST_WORDS = 120


def _words(rest: str, before: str) -> Iterator[str]:
    """The words of a command, to its end. before: the mark it stands behind, where that quotes."""
    if before in ("'", '"') and before in rest:
        rest = rest[: rest.index(before)]
    for found in islice(_SPLIT.finditer(rest), _MOST_WORDS):
        if _END.fullmatch(found[1]):
            return
        word = found[1].strip("'\"")
        bare = word.rstrip(",;)")
        # A comma inside a requirement that was written with spaces goes on.
        goes_on = word.endswith(",") and re.match(r"\s?[<>=!]", rest[found.end() :])
        ends = word != bare and not goes_on
        if bare or not ends:
            yield bare or word
        if ends:
            return


def _install(tool: str, words: Iterator[str], line: int) -> Install:
    """A command as a fact."""
    wanted = []
    indexes = []
    options = []
    conda = tool in _CONDA or tool == "pixi"
    words = _with_signs(words)
    for word in words:
        if not word.startswith("-"):
            if _REQUIREMENT.fullmatch(word):
                kept = word.endswith((".whl", ".")) and "==" not in word
                wanted.append(word.rstrip("," if kept else ".,:;)"))
            continue
        name, sign, value = word.partition("=")
        if not sign and _TAKES_VALUE.fullmatch(name):
            value = next(words, "")
        value = value.strip("'\"<>,")
        channel = conda and name in ("-c", "--channel")
        if channel or (_INDEX.fullmatch(name) and not (conda and name == "-f")):
            indexes += [value] if value else []
            options += ["--index-url"] if name in _ONLY_INDEX else []
        elif name in ("-r", "--requirement", "--file") and value:
            wanted.append(f"-r {value}")
        else:
            options.append(f"{name}={value}" if name in _KEPT_VALUE and value else name)
    return _asked(tool, line, wanted, indexes, options)


def _asked(
    tool: str, line: int, wanted: list[str], indexes: Iterable[str], options: Iterable[str] = ()
) -> Install:
    return Install(
        tool=tool,
        requirements=_together(wanted),
        indexes=_together(indexes),
        options=_together(options),
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
_FILE_HEAD = re.compile(r"(?i).{0,80}\brequirements[\w.-]{0,20}\.txt\W{0,6}$")
_PIN = re.compile(r"\s{0,8}(?P<what>[A-Za-z][\w.-]{1,60}==\d[\w.+!]{0,40})\s{0,4}$")
_YAML = re.compile(
    r"\s{0,8}- (?P<what>(?:[\w-]{1,30}::)?[\w.-]{2,40}(?:\s?[=<>]{1,2}[\w.*=<>,]{1,40})?)\s{0,4}$"
)
_OURS = re.compile(r"(?:[\w-]{1,30}::)?(?:py)?torch|cudatoolkit")
_INDEX_TABLES = (
    *("tool.uv.index", "tool.uv.pip", "tool.uv", "tool.poetry.source", "tool.pdm.source"),
    "source",
)


def _manifests(doc: Document) -> Installs:
    """What such files of the document ask for: one for pip, one for uv or poetry, one for conda."""
    if doc.mentions("[tool.", "[[source]]"):
        yield from _pyproject(doc)
    if doc.mentions("--index-url", "--extra-index-url", "--find-links"):
        yield from _requirements(doc)
    for number, _ in doc.rows(_FILE_HEAD, "requirements"):
        if wanted := list(_pins_below(doc, number)):
            yield _asked("pip", number, wanted, (), [IN_FILE])
    if doc.mentions("dependencies:", "channels:"):
        yield from _environment(doc)


def _pyproject(doc: Document) -> Installs:
    table, first = "", 0
    indexes = []
    sources = []
    wanted = []
    for number, text in doc.lines:
        if found := _TABLE.match(text):
            table, first = found["name"], first or number
        elif table in _INDEX_TABLES and (found := _URL.match(text)):
            indexes.append(found["url"])
        elif found := _TORCH_SOURCE.match(text):
            sources.append(found["index"])
            if found["version"]:
                wanted.append(found["name"] + _pip_spec(found["version"].replace(" ", "")))
        elif first and (found := _NEEDED.match(text)):
            wanted.append(found["what"].replace(" ", ""))
    named = [name for name in sources if re.search(r"cu\d{2,3}|cpu", name)]
    if indexes or sources:
        # A package that is tied to an index is looked for there alone.
        named_in = (tool for tool in ("poetry", "pdm") if f"[tool.{tool}" in doc.low)
        tool = next(named_in, "uv")
        yield _asked(tool, first, wanted, indexes or named, ["--index-url"] if sources else [])


def _pip_spec(version: str) -> str:
    """A version as poetry writes it, as pip does: a caret with a local version means that build."""
    if "+" in version or version[:1].isdigit():
        return "==" + version.lstrip("^~=<>")
    return version if version[:1] in "=<>!~" else ">=" + version.lstrip("^*")


def _requirements(doc: Document) -> Installs:
    """Lines of a requirements file: an option that stands alone, and torch below it."""
    # an option on the second line of a command belongs to the command
    alone = Document(
        tuple(
            line
            for above, line in pairwise((Line(0, ""), *doc.lines))
            if not above.text.rstrip().endswith(("\\", " ^", "`"))
        )
    )
    if found := alone.rows(_INDEX_OPTION):
        wanted = [row["what"].replace(" ", "") for _, row in alone.rows(_NEEDED)]
        wanted += _pins_below(alone, found[0][0])
        only = ["--index-url" for _, row in found if row["option"] in ("--index-url", "-i")]
        urls = [row["url"] for _, row in found]
        yield _asked("pip", found[0][0], wanted, urls, [*only, IN_FILE])


def _pins_below(doc: Document, first: int) -> Iterator[str]:
    """The exact requirements of the file that such an option begins, to its first other line."""
    for number, text in doc.lines:
        found = _PIN.match(text) if number > first else None
        open_line = number == first + 1 and not text.strip(" `")
        if number > first and not (found or open_line or _INDEX_OPTION.match(text)):
            return
        if found:
            yield found["what"]


def _environment(doc: Document) -> Installs:
    """An environment.yml: channels, and what it depends on."""
    part, first = "", 0
    found: dict[str, list[str]] = {"channels": [], "dependencies": []}
    for number, text in doc.lines:
        if head := re.match(r"\s{0,8}(channels|dependencies):\s{0,4}$", text):
            part, first = head[1], first or number
        elif part and (entry := _YAML.match(text)):
            found[part].append(entry["what"].replace(" ", ""))
        elif not re.match(r"\s*(?:[#-]|$)", text):
            part = ""
    if any(_OURS.match(name) for name in found["dependencies"]):
        yield _asked("conda", first, found["dependencies"], found["channels"])


# --- refusals in words, without the line in which the installer names them -----------------------

_NOTHING_FOUND = re.compile(
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
_PINNED = re.compile(r"torch(?:vision|audio)?(?:\[[\w,]{1,30}\])?\s?===?\s?\d[\w.+*-]{0,40}$")
_NAMED = re.compile(
    r"(?<![\w./-])(?P<name>torch|pytorch|torchvision|torchaudio)(?: version)?[ =(v]{1,4}"
    r"(?P<version>\d\.\d{1,2}(?:\.\d{1,2})?(?:\+\w{2,12})?)(?![\w.]*\.whl)"
)
_FAR = 160
"""How far from the words a release may stand that they speak of."""


def _with_implied(doc: Document, installs: list[Install]) -> list[Install]:
    """The installs; the last of torch with a refusal, if words say that there was one."""
    complaint = _NOTHING_FOUND.search(doc.low)
    if complaint is None or any(install.refused or install.installed for install in installs):
        return installs
    # the refusals of conda and its like name the package themselves
    asked = [
        (install, text)
        for install in reversed(installs)
        if install.tool not in _CONDA
        for text in install.requirements
    ]
    pinned = next((row for row in asked if _PINNED.match(row[1])), None)
    near = doc.low[max(0, complaint.start() - _FAR) : complaint.end() + _FAR]
    if pinned is None and (found := _NAMED.search(near)):
        refused = f"{found['name'].replace('pytorch', 'torch')}=={found['version']}"
        line = doc.line_of(complaint)
        return [*installs, Install(tool="pip", refused=refused, failed=True, line=line)]
    chosen = pinned or next((row for row in asked if row[1] == "torch"), None)
    if chosen:
        last, text = chosen
        failed = replace(last, refused=text, failed=True, offered=None if pinned else ())
        return [failed if install is last else install for install in installs]
    return installs
