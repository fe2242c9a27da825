"""The plan as a script for a shell: what `fix --print` writes.

Only what the user may do in their own environment stands there as commands. Alternatives, and
whatever needs root, a reboot or another machine, are comments.
"""

import textwrap
from collections.abc import Iterator

from cudadoctor.installers.registry import BY_NAME
from cudadoctor.installers.tool import BESIDE, interpreter, within
from cudadoctor.model.findings import Diagnosis, Edit, Plan, Step
from cudadoctor.model.machine import Machine, OptStr
from cudadoctor.model.trust import acting, typed
from cudadoctor.render import inert
from cudadoctor.render.shells import (
    HERE,
    Shell,
    ShellName,
    command_line,
    comment,
    kept_by_conda,
    shell_of,
)
from cudadoctor.render.summary import cost_of, is_runnable, makes_anew, manual_of

WIDTH = 96
_SHELL = "No script can change the shell that starts it, so type this there too:"


def script(
    plan: Plan,
    machine: Machine,
    diagnosis: Diagnosis,
    *,
    shell: ShellName = "bash",
    version: str,
    knowledge: str,
) -> str:
    """The whole script. version: the doctor's; knowledge: the date of its tables."""
    words = shell_of(shell)
    lines = ["#!/bin/sh"] if shell == "bash" else []
    lines += _header(machine, diagnosis, version, knowledge)
    machine = acting(machine)
    if not plan.steps:
        lines += ["", *_text(_without_steps(diagnosis, machine))]
        return "\n".join(lines) + "\n"
    groups = _groups(plan)
    body = []
    for number, steps in enumerate(groups, 1):
        body.append("")
        for step in steps:
            first = step is steps[0]
            here = first and step.where == "here"
            kept = kept_by_conda(machine, step.variables, shell) if here else ()
            body += _text(f"{f'{number}. ' if first else 'or: '}{step.title} [{cost_of(step)}]")
            body += _about(step, kept)
            body += (_run if first and is_runnable(step) else _as_comments)(step, words)
    apart = any(is_runnable(steps[0]) and steps[0].commands for steps in groups)
    commands = "\n".join(line for line in body if not line.startswith("#"))
    lines += [*words.start(commands, apart=apart), *body, "", *_afterwards(plan, machine, words)]
    return "\n".join(lines) + "\n"


def _without_steps(diagnosis: Diagnosis, machine: Machine) -> str:
    """Why there is no step; nothing to do is said only where nothing is wrong."""
    if diagnosis.verdict == "undecided":
        command = diagnosis.next_command
        asked = f" The next command to run is: {command_line(command, machine)}" if command else ""
        return f"The facts do not suffice for a repair.{asked}"
    if diagnosis.primary is not None:
        return f"No step is known that cures {diagnosis.primary}."
    return "Nothing to do."


def _header(machine: Machine, diagnosis: Diagnosis, version: str, knowledge: str) -> Iterator[str]:
    yield comment(f"cudadoctor {version}, knowledge of {knowledge}")
    if machine.python.executable:
        yield comment(f"examined: {machine.python.executable}")
    for finding in diagnosis.roots:
        yield "#"
        yield from _text(f"{finding.severity.label}: {finding.title} ({finding.cause})", hang=4)
        yield from _text(finding.why, 2)
    yield "#"


def _groups(plan: Plan) -> list[list[Step]]:
    """The steps group by group, what is run (or else preferred) first."""
    groups: dict[str, list[Step]] = {}
    for step in plan.steps:
        groups.setdefault(step.group, []).append(step)
    return [sorted(steps, key=lambda step: not is_runnable(step)) for steps in groups.values()]


def _run(step: Step, words: Shell) -> Iterator[str]:
    if step.variables:
        yield from _text(_SHELL, 3)
    for name, value in step.variables.items():
        yield words.variable(name, value)
    for argv in step.commands:
        # The command runs in another folder than the script was started in.
        yield words.command(
            typed(*(f"{HERE}{word}" if word.startswith(BESIDE) else word for word in argv))
        )


def _about(step: Step, kept: tuple[Edit, ...]) -> Iterator[str]:
    """kept: files in which a conda environment keeps variables."""
    if step.cures:
        yield from _text(f"cures: {', '.join(step.cures)}", 3)
    for text in (manual_of(step), step.note, step.resolution):
        if text:
            yield from _text(text, 3)
    for edit in (*step.edits, *kept):
        yield comment(f"in {edit.file}:", 3)
        yield from (comment(line, 5) for line in edit.what.splitlines())


def _as_comments(step: Step, words: Shell) -> Iterator[str]:
    root = words.elevate if step.needs_root else ""
    for name, value in step.variables.items():
        yield comment(words.variable(name, value), 5)
    if step.edits and step.commands:
        yield comment("then:", 3)
    for argv in step.commands:
        yield comment(root + words.shown(argv), 5)


def _afterwards(plan: Plan, machine: Machine, words: Shell) -> Iterator[str]:
    own, tools = interpreter(machine), (BY_NAME.get(step.tool or "") for step in plan.steps)
    changed = {tool.changed(machine) for tool in tools if tool}
    python = _made_anew(plan, machine) or next(iter(changed - {own}), own)
    if python is None:
        yield comment("Then see whether it helped, in a container of that image:")
        yield comment(words.shown(typed("cudadoctor", "check")), 3)
        return
    yield comment("Then see whether it helped:")
    yield comment(words.shown(typed("cudadoctor", "check", "--python", python)), 3)


def _made_anew(plan: Plan, machine: Machine) -> OptStr:
    """The interpreter of a new environment that the script makes, None where it makes none."""
    for step in plan.steps:
        if is_runnable(step) and makes_anew(step):
            last = step.commands[-1]
            if "-p" in last:
                return within(machine, last[last.index("-p") + 1], conda=True)
            return last[last.index("--python") + 1] if "--python" in last else last[0]
    return None


def _text(text: str, indent: int = 0, hang: int = 0) -> Iterator[str]:
    """Words as comments, wrapped; a long word is never cut. hang: indents all but the first."""
    lines = textwrap.wrap(
        inert(text),
        WIDTH - indent - 2,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from (comment(line, indent) for line in lines)
