"""What a report asks to be installed: commands as people quote them, files, and plain words.

A command may be wrapped with a backslash, stand behind a prompt, in a Dockerfile, in quotes or in
the middle of a sentence. What follows it in a sentence is not taken for a package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from cudadoctor.model.machine import Install
from cudadoctor.reports.document import Document

_PROGRAM = re.compile(r"pip|conda|mamba|poetry|pixi|pdm|\buv |easy_install")
MOST = 300
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


def installs_of(doc: Document) -> Iterator[Install]:
    """Every command of the document that installs something."""
    return islice(_commands(doc), MOST)


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


def manifest_installs(doc: Document) -> Iterator[Install]:
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


def with_implied(doc: Document, installs: list[Install]) -> list[Install]:
    """The installs; the last of torch with a refusal, if words say that there was one."""
    said = _SAID.search(doc.low)
    if said is None or any(install.refused or install.installed for install in installs):
        return installs
    last = [n for n, install in enumerate(installs) if install.tool not in _SOLVERS][::-1]
    for place in last:
        asked = next((text for text in installs[place].requirements if _PINNED.match(text)), None)
        if asked is not None:
            return _refused(installs, place, asked)
    near = doc.low[max(0, said.start() - _FAR) : said.end() + _FAR]
    if found := _NAMED.search(near):
        asked = f"{found['name'].replace('pytorch', 'torch')}=={found['version']}"
        line = doc.line_of(said)
        return [*installs, Install(tool="pip", refused=asked, failed=True, line=line)]
    for place in last:
        if "torch" in installs[place].requirements:
            return _refused(installs, place, "torch")
    return installs


def _refused(installs: list[Install], place: int, asked: str) -> list[Install]:
    offered = () if asked == "torch" else None
    changed = msgspec.structs.replace(installs[place], refused=asked, failed=True, offered=offered)
    return [*installs[:place], changed, *installs[place + 1 :]]
