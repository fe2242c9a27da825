"""Commands that install packages, as people paste and quote them: pip, uv, conda, poetry, pixi.

A command may be wrapped with a backslash, stand behind a prompt, in a Dockerfile, in quotes or in
the middle of a sentence. What follows it in a sentence is not taken for a package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cudadoctor.model.machine import Install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.reports.document import Document


_PROGRAM = re.compile(r"pip|conda|mamba|poetry|pixi|pdm|\buv |easy_install")
MOST = 300
"""More commands than these come from no report."""
_LONGEST = 2000
"""No command that people type is longer."""


class Asked(NamedTuple):
    """A command as it stands in the text: its tool, what follows it, and the line."""

    tool: str
    verb: str
    words: tuple[str, ...]
    line: int


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
_TAKES_VALUE = frozenset(
    {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index", "--default-index"}
    | {"-c", "--channel", "-n", "--name", "-p", "--prefix", "--python", "-t", "--target", "-r"}
    | {"--requirement", "--constraint", "--platform", "--python-version", "--source", "--extra"}
    | {"--torch-backend", "--python-platform", "--group", "--override", "--file", "--cache-dir"}
    | {
        "--trusted-host",
        "--timeout",
        "--default-timeout",
        "--proxy",
        "--retries",
        "--src",
        "--root",
    }
    | {"--only-binary", "--no-binary", "--config-settings", "--implementation", "--abi", "-C"}
    | {"--global-option", "--install-option", "--build-option", "--progress-bar", "--prerelease"}
)
_INDEX = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--index"}
_INDEX |= {"--default-index", "--source"}
_CHANNEL = {"-c", "--channel"}
_KEPT_VALUE = {"--torch-backend", "--platform", "--python-version", "--python", "--target", "-t"}
_END = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "\\", "#", "//", "->", "=>", "--"})
_PROSE = frozenset(
    {"and", "but", "then", "in", "the", "to", "it", "with", "from", "on", "for", "which", "i", "or"}
    | {"fails", "works", "command", "again", "gives", "i'm", "as", "does", "is", "was", "after"}
    | {"before", "because", "so", "failed", "worked", "that", "this", "my", "did", "not", "also"}
    | {"instead", "into", "returns", "error", "using", "inside", "when", "if", "at", "via", "of"}
    | {"a", "an", "step", "should", "will", "would", "succeeds", "still", "succeeded", "without"}
    | {"completed", "outputs", "output", "resolved", "says", "too", "first", "doesn't", "see"}
)
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,. -]{0,80}\])?"
    r"(?:\s?(?:===|==|~=|!=|>=|<=|=|>|<|@)\s?\S{1,200})?|(?:https?|git\+\w{2,6}|file)://\S{1,400}"
    r"|\S{1,300}\.(?:whl|tar\.gz|zip)\S{0,60}|\.(?:\[[\w,-]{1,60}\])?|[\w.-]{1,60}::\S{1,120}"
)


def commands_of(doc: Document) -> Iterator[Asked]:
    """Every command of the document that installs something."""
    found_so_far = 0
    for number, text in _joined(doc):
        if not _PROGRAM.search(text):
            continue
        for found in _COMMAND.finditer(text):
            found_so_far += 1
            if found_so_far > MOST:
                return
            tool = found.lastgroup or "pip"
            rest = text[found.end() : found.end() + _LONGEST]
            before = text[found.start() - 1 : found.start()]
            words = tuple(_words(rest, before))
            yield Asked(_tool_name(tool, found[0]), found[0].split()[-1], words, number)


def _tool_name(group: str, text: str) -> str:
    if group == "conda":
        return text.split(maxsplit=1)[0].removesuffix(".exe")
    return {"uvpip": "uv", "easy": "easy_install"}.get(group, group)


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
        if word in _END or word.lower() in _PROSE or word in "'\"":
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


def install_of(asked: Asked) -> Install:
    """The command as a fact."""
    wanted: list[str] = []
    indexes: list[str] = []
    options: list[str] = []
    words = iter(_with_signs(asked.words))
    for word in words:
        if not word.startswith("-"):
            if _REQUIREMENT.fullmatch(word):
                wanted.append(_stripped(word))
            continue
        name, sign, value = word.partition("=")
        if not sign and name in _TAKES_VALUE:
            value = next(words, "")
        _option(name, value, asked.tool, (wanted, indexes, options))
    return Install(
        tool=asked.tool,
        requirements=tuple(dict.fromkeys(wanted)),
        indexes=tuple(dict.fromkeys(indexes)),
        options=tuple(dict.fromkeys(options)),
        line=asked.line,
    )


def _option(name: str, value: str, tool: str, into: tuple[list[str], list[str], list[str]]) -> None:
    wanted, indexes, options = into
    value = value.strip("'\"<>,")
    conda = tool in ("conda", "mamba", "micromamba", "pixi")
    if (name in _INDEX and not (conda and name == "-f")) or (conda and name in _CHANNEL):
        if value:
            indexes.append(value)
        if name in ("-i", "--index-url", "--default-index"):
            options.append("--index-url")
    elif name in ("-r", "--requirement", "--file") and value:
        wanted.append(f"-r {value}")
    elif name in _KEPT_VALUE and value:
        options.append(f"{name}={value}")
    else:
        options.append(name)


def _with_signs(words: tuple[str, ...]) -> Iterator[str]:
    """`torch == 2.1` written with spaces is one requirement."""
    held = ""
    for word in words:
        if held and re.match(r"(?:===|==|~=|!=|>=|<=|>|<)", held[-2:]) and word[:1].isdigit():
            held += word
            continue
        if held and re.fullmatch(r"(?:==|~=|!=|>=|<=|>|<)\S{0,40}", word):
            held += word
            continue
        if held:
            yield held
        held = word
    if held:
        yield held


def _stripped(word: str) -> str:
    return word.rstrip(".,:;)") if not word.endswith((".whl", ".")) else word.rstrip(",")
