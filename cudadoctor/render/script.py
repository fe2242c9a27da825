"""The plan as a script for a shell: what `fix --print` writes.

What the user may do in their own environment stands there as commands. Steps for root stand last,
commented out between two marker lines, and the script prints them at its end with all else that
it leaves to the user. It exits with 1 where anything is left, with 0 where all is done.
"""

import textwrap
from collections.abc import Iterator

from msgspec.structs import replace

from cudadoctor.installers.registry import BY_NAME
from cudadoctor.installers.tool import BESIDE, interpreter, within
from cudadoctor.locale.language import Language
from cudadoctor.model.findings import Diagnosis, Plan, Step
from cudadoctor.model.machine import Machine, OptStr
from cudadoctor.model.trust import PLACEHOLDER, acting, typed
from cudadoctor.render import inert
from cudadoctor.render.shells import (
    AS_USER,
    HERE,
    ShellName,
    around,
    command_line,
    comment,
    edits_by_hand,
    elevated,
    elevation,
    has_lines,
    kept_by_conda,
    shell_of,
    written_edits,
)
from cudadoctor.render.summary import cost_of, is_runnable, makes_anew, manual_of

WIDTH = 96
BEGIN, END = ">>> cudadoctor: steps for root >>>", "<<< cudadoctor: steps for root <<<"
"""Mark the block of commented commands."""


def script(
    plan: Plan,
    machine: Machine,
    diagnosis: Diagnosis,
    *,
    shell: ShellName = "bash",
    version: str,
    knowledge: str,
    say: Language | None = None,
) -> str:
    """The whole script. version: the doctor's; knowledge: the date of its tables."""
    written = _Script(plan, acting(machine), shell, say or Language({}))
    lines = ["#!/bin/sh"] if shell == "bash" else []
    lines += written.header(machine, diagnosis, version, knowledge)
    lines += written.steps() if plan.steps else written.without_steps(diagnosis)
    return "\n".join(lines) + "\n"


_AS_YOURSELF = "Run these steps yourself, as your own user: only the lines with sudo need root."


class _Script:
    """The parts of one script."""

    def __init__(self, plan: Plan, machine: Machine, shell: ShellName, say: Language) -> None:
        self.plan, self.machine, self.name, self.say = plan, machine, shell, say
        self.words = shell_of(shell)

    def header(
        self, machine: Machine, diagnosis: Diagnosis, version: str, knowledge: str
    ) -> Iterator[str]:
        """What is wrong, and how old the knowledge is."""
        say = self.say
        yield comment(f"cudadoctor {version}, {say('knowledge base of')} {knowledge}")
        if machine.python.executable:
            yield comment(f"python: {machine.python.executable}")
        for finding in say.diagnosis(diagnosis).roots:
            yield "#"
            yield from _text(f"{say(finding.severity.label)}: {finding.title}", hang=4)
            yield from _text(finding.why, 2)
        yield "#"

    def without_steps(self, diagnosis: Diagnosis) -> Iterator[str]:
        """Why there is no step; "nothing to fix" only if nothing is wrong."""
        say, commands = self.say, diagnosis.next_commands
        yield ""
        if diagnosis.verdict == "undecided":
            yield from _text(say("There is not enough information to suggest a fix."))
            if commands:
                yield from _text(say("Run this first, then run cudadoctor again:"))
            for command in commands:
                yield comment(command_line(command, self.machine), 3)
            yield "exit 1"
        elif diagnosis.primary is not None:
            text = say(
                "There is no known fix for {cause}. For details, run: cudadoctor explain {cause}"
            )
            yield from _text(text.format(cause=diagnosis.primary))
            yield "exit 1"
        else:
            yield from _text(say("There is nothing to fix."))

    def steps(self) -> Iterator[str]:
        """The commands of the user; then those of root, commented; then what is left to do."""
        groups: dict[str, list[Step]] = {}
        for step in self.plan.steps:
            groups.setdefault(step.group, []).append(step)
        # What is run (or else preferred) comes first; a script cannot set the reader's variables.
        ordered = [
            sorted(steps, key=lambda step: not (is_runnable(step) and step.commands))
            for steps in groups.values()
        ]
        root = _reboot_last([steps for steps in ordered if _is_for_root(steps[0])])
        ordered = [steps for steps in ordered if not _is_for_root(steps[0])] + root
        body: list[str] = []
        block: list[str] = []
        for number, steps in enumerate(ordered, 1):
            (block if steps in root else body).extend(["", *self._group(number, steps)])
        # uv finds a report's environment from the folder of its project.
        apart = any(
            is_runnable(steps[0]) and any(argv[:2] != ("uv", "pip") for argv in steps[0].commands)
            for steps in ordered
        )
        commands = "\n".join(line for line in body if not line.startswith("#"))
        yield from map(self._spoken, self.words.start(commands, apart=apart))
        yield from self._needs_venv()
        yield from body
        if block:
            yield from ("", comment(BEGIN), *(f"# {line}".rstrip() for line in block[1:]))
            yield comment(END)
        yield from ("", *self._afterwards())
        left = [steps[0] for steps in ordered if not is_runnable(steps[0]) and steps not in root]
        if block or left:
            yield from ("", *self.words.printed(tuple(self._remains(block, left))), "exit 1")

    def _needs_venv(self) -> Iterator[str]:
        """Ends the script early where a package of the system has to come first."""
        first = next((step.commands[0] for step in self.plan.steps if _makes_venv(step)), None)
        package = next((step for step in self.plan.steps if step.id == "install-venv"), None)
        if first and package and self.name != "powershell":
            lines = (self.say("Run this first, then run this script again:"), *self._lines(package))
            told = " ".join(map(self.words.quoted, lines))
            check = self.words.shown(typed(first[0], "-c", "import ensurepip"))
            yield ""
            yield self.words.unless.format(check=check, told=f"printf '%s\\n' {told}")

    def _spoken(self, line: str) -> str:
        """A line of the shell's own in the user's language, if it is a comment."""
        return comment(self.say.spoken(line[2:])) if line.startswith("# ") else line

    def _group(self, number: int, steps: list[Step]) -> Iterator[str]:
        """The first step of a group as it can be run, its alternatives as comments."""
        say = self.say
        for step in steps:
            first = step is steps[0]
            head = f"{number}." if first else f"{say('Or')}:"
            yield from _text(f"{head} {say.spoken(step.title)} ({say(cost_of(step))})")
            yield from self._about(step, first=first)
            if first and is_runnable(step):
                yield from self._run(step)
            elif first and _is_for_root(step):
                yield from self._lines(step)
            else:
                yield from (comment(line, 5) for line in self._lines(step))

    def _about(self, step: Step, *, first: bool) -> Iterator[str]:
        say, build = self.say, self.plan.build
        reasons = build.why[:2] if build and step.packages and first else ()
        for text in (*reasons, manual_of(step), step.note, step.resolution):
            if text:
                yield from _text(say.spoken(text), 3)
        here = first and step.where == "here"
        kept = kept_by_conda(self.machine, step.variables, self.name) if here else ()
        for edit in (*edits_by_hand(step), *kept):
            yield comment(say("In {file}:", file=edit.file), 3)
            yield from (comment(line, 5) for line in edit.what.splitlines())

    def _run(self, step: Step) -> Iterator[str]:
        if step.variables:
            yield from _text(
                self.say(
                    "A script cannot set your shell's variables, so run this in your shell too:"
                ),
                3,
            )
        for name, value in step.variables.items():
            yield self.words.variable(name, value)
        for argv in step.commands:
            # The command runs in another folder than the script was started in.
            yield self.words.command(
                typed(*(f"{HERE}{word}" if word.startswith(BESIDE) else word for word in argv))
            )

    def _lines(self, step: Step) -> Iterator[str]:
        """A step that the script does not take, as it is to be typed."""
        words, root = self.words, elevation(step, self.machine, self.words)
        before, after = around(step)
        for name, value in before.items():
            yield words.variable(name, value)
        for edit in written_edits(step):
            yield " ".join(words.file(edit, root))
        for argv in step.commands:
            yield elevated(argv, root) + words.shown(argv)
        for name, value in after.items():
            yield words.variable(name, value)
        if step.reboot and has_lines(step) and not any("reboot" in argv for argv in step.commands):
            yield root + words.restart

    def _remains(self, block: list[str], left: list[Step]) -> Iterator[str]:
        """What the script leaves to do, as it prints it."""
        say = self.say
        if block:
            own = any(line.startswith(AS_USER) for line in block)
            yield say(_AS_YOURSELF if own else "These steps need root. Run them yourself:")
            yield from block[1:]
        for step in left:
            yield from [""] * bool(block or step is not left[0])
            yield f"{say.spoken(step.title)} ({say(cost_of(step))}):"
            # What cannot be installed is not offered to be pasted either.
            lines = () if step.verified is False else self._lines(step)
            yield from (f"  {say.spoken(text)}" for text in (step.manual, step.resolution) if text)
            for edit in edits_by_hand(step):
                yield f"  {say('In {file}:', file=edit.file)}"
                yield from (f"    {line}" for line in edit.what.splitlines())
            yield from (f"  {line}" for line in lines)

    def _afterwards(self) -> Iterator[str]:
        machine, words, say = self.machine, self.words, self.say
        own = interpreter(machine)
        tools = (BY_NAME.get(step.tool or "") for step in self.plan.steps)
        changed = {tool.changed(machine) for tool in tools if tool}
        python = _made_anew(self.plan, machine) or next(iter(changed - {own}), own)
        if python is None:
            yield comment(say("Then check again in a container based on that image:"))
            yield comment(words.shown(typed("cudadoctor", "check")), 3)
            return
        yield comment(say("Then check again:"))
        # No script sets the variable for the shell in which this is typed.
        named = () if python == PLACEHOLDER else ("--python", python)
        yield comment(words.shown(typed("cudadoctor", "check", *named)), 3)


def _makes_venv(step: Step) -> bool:
    return is_runnable(step) and bool(step.commands) and step.commands[0][1:3] == ("-m", "venv")


def _is_for_root(step: Step) -> bool:
    """Whether a step is typed on this machine by root, from its first command to its last."""
    by_hand = bool(step.edits) and not written_edits(step)
    return (
        step.where == "here"
        and not is_runnable(step)
        and has_lines(step)
        and ((step.needs_root or step.reboot) and not by_hand)
    )


def _reboot_last(groups: list[list[Step]]) -> list[list[Step]]:
    """The steps of root with one reboot, at the end of all: nothing pasted after it would run."""
    ordered = sorted(groups, key=lambda steps: steps[0].reboot + _only_reboots(steps[0]))
    return [
        [replace(steps[0], reboot=steps[0].reboot and steps is ordered[-1]), *steps[1:]]
        for steps in ordered
    ]


def _only_reboots(step: Step) -> bool:
    return bool(step.commands) and all("reboot" in argv for argv in step.commands)


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
