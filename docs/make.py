"""Write what is made of cudadoctor's own tables: the pages of the causes, and the man page.

python docs/make.py

1. cudadoctor/knowledge/wording/commands.toml: the commands of each cause's fix, by install tool
   and distribution, as the planner writes them for the machines of commands.toml.
2. docs/causes: a page for each cause, as `cudadoctor explain CAUSE` shows it, and an index by
   error text.
3. docs/cudadoctor.1: the man page, of the same texts as --help.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from cudadoctor import pipeline
from cudadoctor.knowledge.symptoms import SymptomRow, symptoms
from cudadoctor.model.catalogue import AREAS, CATALOGUE
from cudadoctor.model.findings import Step, Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.render import pages
from cudadoctor.render.shells import edits_by_hand, step_lines
from cudadoctor.rules.registry import explained_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
CAUSES = HERE / "causes"
COMMANDS = HERE.parent / "cudadoctor" / "knowledge" / "wording" / "commands.toml"
_ROOM = 92
_NEW_CLICK = "ctx" in inspect.signature(click.Argument.make_metavar).parameters
_TOOLS = ("pip", "uv", "conda", "pixi")
_SYSTEMS = {
    "Ubuntu": {},
    "Debian": {"distro": "debian", "distro_version": "13", "kernel": "6.12.57+deb13-amd64"},
    "RHEL, Rocky, AlmaLinux": {
        "distro": "rocky",
        "distro_version": "9.7",
        "distro_like": ("rhel", "centos", "fedora"),
        "kernel": "5.14.0-611.16.1.el9_7.x86_64",
    },
    "Fedora": {
        "distro": "fedora",
        "distro_version": "43",
        "distro_like": (),
        "kernel": "6.17.8-300.fc43.x86_64",
    },
    "openSUSE, SLES": {
        "distro": "opensuse-leap",
        "distro_version": "15.6",
        "distro_like": ("suse", "opensuse"),
        "kernel": "6.4.0-150600.23.60-default",
    },
    "Arch": {
        "distro": "arch",
        "distro_version": "rolling",
        "distro_like": (),
        "kernel": "6.17.8-arch1-1",
    },
}


# --- the commands of each fix ---------------------------------------------------------------------


def commands() -> str:
    """The table of commands."""
    lines = [
        "# Written by docs/make.py: the commands that the planner gives for docs/commands.toml."
    ]
    chosen = tomllib.loads((HERE / "commands.toml").read_text(encoding="utf-8"))
    for cause in filter(chosen.get, CATALOGUE):
        for scenario, step in chosen[cause]:
            for title, on, shown in _variants(_machine(scenario), step):
                lines += ["", f"[[{cause}]]", f"title = {_quoted(title)}", f"on = {_quoted(on)}"]
                lines += ["lines = [", *(f"  {_quoted(line)}," for line in shown), "]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _machine(scenario: str) -> Machine:
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from scenario_reader import HERE as TESTS
    from scenario_reader import read_scenario

    machine = read_scenario(TESTS / "scenarios" / f"{scenario}.toml").machine
    if machine.driver.packages == ():  # a driver that no package brought would be removed first
        machine = replace(machine, driver=replace(machine.driver, packages=None))
    return machine


def _variants(machine: Machine, step: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Title, tools or systems, and the lines of a step, where they differ."""
    usual = _step(machine, step, None)
    assert usual is not None, step
    kinds: dict[str, Step | None] = {"": usual}
    if usual.packages and usual.tool == "pip" and step != "jetson-torch":
        kinds = {tool: _step(machine, step, tool) for tool in _TOOLS}
        kinds["pip"] = usual
    elif any(word == "apt-get" for argv in usual.commands for word in argv[:2]):
        kinds = {name: _step(_on(machine, given), step, None) for name, given in _SYSTEMS.items()}
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, made in kinds.items():
        if made is not None and (lines := _lines(made, _on(machine, _SYSTEMS.get(name, {})))):
            found.setdefault((made.title, lines), []).append(name)
    windows = ["Windows"] if machine.platform.system == "Windows" else []
    for (_, lines), names in found.items():
        yield usual.title, ", ".join([*filter(None, names), *windows]), lines


def _on(machine: Machine, given: dict[str, object]) -> Machine:
    if not given:
        return machine
    return replace(machine, platform=replace(machine.platform, **given))


def _step(machine: Machine, step: str, tool: str | None) -> Step | None:
    steps = pipeline.judge(machine, Wishes(manager=tool)).plan.steps
    return next((found for found in steps if found.id == step), None)


def _lines(step: Step, machine: Machine) -> tuple[str, ...]:
    """The commands, and files to edit by hand, without what is of the example alone."""
    lines = step_lines(step, machine, _ROOM)
    for edit in edits_by_hand(step):
        lines += [f"# In {edit.file}:", *edit.what.splitlines()]
    home, python = machine.identity.home or "~", machine.python.executable or "python"
    own = {
        python: "python",
        python.replace(home, "~"): "python",
        machine.platform.kernel: "$(uname -r)",
        machine.identity.user: "$USER",
    }
    text = "\n".join(lines)
    for name, shown in own.items():
        if name:
            text = re.sub(rf"(?<![\w/]){re.escape(name)}(?![\w/.-])", lambda _, s=shown: s, text)
    return tuple(text.splitlines())


# --- the pages -----------------------------------------------------------------------------------

_MADE = "<!-- Written by docs/make.py. Do not edit. -->"


def files() -> dict[str, str]:
    """Name of a file in docs -> its text."""
    made = {f"causes/{cause}.md": page(cause) for cause in CATALOGUE}
    return {**made, "causes/README.md": index(), "cudadoctor.1": manual()}


def page(cause: str) -> str:
    """The page of a cause."""
    found = pages.contents(cause, explained_rules())
    lines = [_MADE, f"# {cause}", f"**{_prose(found.title)}.** `cudadoctor explain {cause}`"]
    for name, shown in found.sections.items():
        body = [_linked(_prose(text), cause) for text in shown]
        if name == "Errors":
            texts = dict.fromkeys((*found.sections[name], *_examples(cause)))
            body = ["\n".join(f"- {_code(text)}" for text in texts)] if texts else []
        elif name == "Commands":
            body = [_prose(pages.EXAMPLES), *_blocks(found)] if found.commands else []
        elif name == "Sources":
            body = ["\n".join(f"- [{link.title}]({link.url})" for link in found.links)]
        if body:
            lines += [f"## {pages.SECTIONS[name]}", *body]
    lines.append("[All causes, and the index by error text](README.md)")
    return "\n\n".join(lines) + "\n"


def _blocks(found: pages.Contents) -> Iterator[str]:
    told = ""
    for example in found.commands:
        if example.title != told:
            yield f"### {_prose(example.title)}"
        told = example.title
        if example.on:
            yield f"**{example.on}**"
        yield "\n".join(["```sh", *example.lines, "```"])


def _examples(cause: str) -> Iterator[str]:
    """The error texts of the tables that mean this cause by themselves."""
    for row in symptoms().rows:
        if cause in _meant(row):
            yield _one_line(row.example)


def _meant(row: SymptomRow) -> tuple[str, ...]:
    """The causes of a row: that which it means by itself, else those that it can mean."""
    alone = next((way.cause for way in row.means if not way.when), None)
    return (alone,) if alone else tuple(dict.fromkeys(way.cause for way in row.means))


def index() -> str:
    """The list of causes, and every error text with its causes."""
    titles = pages.explained().causes
    lines = [
        _MADE,
        "# Causes",
        "`cudadoctor explain TEXT` searches these error texts, also with other paths and numbers, "
        "or by a part of the text. [Look up an error text](#error-texts).",
    ]
    for area, causes in AREAS.items():
        heading = "PyTorch" if area == "torch" else area[:1].upper() + area[1:]
        rows = (f"- [{cause}]({cause}.md): {_prose(titles[cause].title)}" for cause in causes)
        lines += [f"## {heading}", "\n".join(rows)]
    lines += ["## Error texts", "Sorted by the first word that is not a file name or a prefix."]
    texts: dict[str, tuple[str, ...]] = {}
    for cause, about in titles.items():
        for text in about.errors:
            texts[text] = (*texts.get(text, ()), cause)
    for row in symptoms().rows:
        if row.means:
            text = _one_line(row.example)
            texts[text] = tuple(dict.fromkeys((*texts.get(text, ()), *_meant(row))))
    rows = ["| Error text | Possible causes |", "| --- | --- |"]
    for text in sorted(texts, key=_sorted_by):
        links = ", ".join(f"[{cause}]({cause}.md)" for cause in texts[text])
        rows.append(f"| {_code(text).replace('|', chr(92) + '|')} | {links} |")
    return "\n\n".join([*lines, "\n".join(rows)]) + "\n"


_PREFIX = re.compile(
    r"^(?:[$>#]+ |\S*(?:Error|Warning|Exception|NVRM|FAILED|ERROR|fatal)\b:? ?|\S*[/\\]\S* ?|\W+)+"
)


def _sorted_by(text: str) -> tuple[str, str]:
    return (_PREFIX.sub("", text).casefold(), text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    """Inline code; a text with backticks needs two around it."""
    ticks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _prose(text: str) -> str:
    """A text as Markdown: nothing of it outside code is a mark or a tag."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part
        if part.startswith("`") and len(part) > 2
        else re.sub(r"([\\*_<>\[\]|#`~])", r"\\\1", part)
        for part in parts
    )


def _linked(text: str, own: str) -> str:
    """The names of other causes as links."""
    names = "|".join(sorted(CATALOGUE, key=len, reverse=True))

    def link(found: re.Match[str]) -> str:
        return (
            found[0] if found[0] in (own, "unknown", "ulimit") else f"[{found[0]}]({found[0]}.md)"
        )

    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(rf"(?<![\w/-])(?:{names})(?![\w-])", link, part)
        for part in parts
    )


# --- the man page --------------------------------------------------------------------------------


def manual() -> str:
    """The man page, in roff."""
    from cudadoctor import __version__
    from cudadoctor.cli.group import main as program

    lines = [
        '.\\" Written by docs/make.py. Do not edit.',
        f'.TH CUDADOCTOR 1 "" "cudadoctor {__version__}" "User Commands"',
        ".SH NAME",
        "cudadoctor \\- find out why PyTorch does not use your NVIDIA GPU, and fix it",
        ".SH SYNOPSIS",
        ".B cudadoctor",
        "[\\fICOMMAND\\fR] [\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION",
        *_roff(program.help or ""),
        ".SH COMMANDS",
    ]
    for name, command in program.commands.items():
        arguments = " ".join(
            found.make_metavar(click.Context(command)) if _NEW_CLICK else found.make_metavar()
            for found in command.params
            if isinstance(found, click.Argument)
        )
        lines += [f'.SS "cudadoctor {_escaped(f"{name} {arguments}".strip())}"']
        lines += _roff(command.help or "")
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                value = "" if option.is_flag or option.count else f" \\fI{option.metavar}\\fR"
                names = ", ".join(f"\\fB{_escaped(one)}\\fR" for one in option.opts)
                lines += [".TP", f"{names}{value}", *_roff(f"{option.help}.")]
    lines += [".SH ENVIRONMENT"]
    for variable, text in _VARIABLES.items():
        lines += [".TP", f"\\fB{variable}\\fR", *_roff(text)]
    lines += [".SH EXIT STATUS", "Of", '.BR "cudadoctor check" :']
    for code, text in _CODES.items():
        lines += [".TP", f"\\fB{code}\\fR", *_roff(text)]
    return "\n".join(lines) + "\n"


_VARIABLES = {
    "VIRTUAL_ENV, CONDA_PREFIX": "The active environment, which is checked if --python is missing.",
    "CUDADOCTOR_LANG": "The language, en or es, if --lang is missing.",
    "NO_COLOR": "If set, the output has no colors.",
    "COLUMNS": "The width of the output, 40 to 100 columns.",
}
_CODES = {
    0: "PyTorch works, possibly with warnings.",
    1: "Something is broken.",
    2: "Usage error, or a file that cannot be read.",
    3: "There is not enough information to decide.",
    4: "cudadoctor itself failed.",
    130: "Interrupted with Ctrl-C.",
}


def _roff(text: str) -> list[str]:
    """Paragraphs in roff."""
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return [line for part in parts for line in (".PP", _escaped(part))][1:] if parts else []


def _escaped(text: str) -> str:
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain


def main() -> None:
    COMMANDS.write_text(commands(), encoding="utf-8")
    pages.commands.cache_clear()
    CAUSES.mkdir(exist_ok=True)
    for old in CAUSES.glob("*.md"):
        old.unlink()
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
