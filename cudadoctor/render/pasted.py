"""The commands of a step as they are pasted into the shell of the machine that was examined."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.render.shells import shell_of
from cudadoctor.trust import PLACEHOLDER, ours

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.plan import Step
    from cudadoctor.trust import Command

# What neither PowerShell nor cmd takes for more than a letter.
_PLAIN = re.compile(r"[A-Za-z0-9_./\\:=+-]+")


def lines(step: Step, machine: Machine) -> list[str]:
    """A line for each variable and each command."""
    windows = machine.platform.system == "Windows"
    shell = shell_of("powershell" if windows else "bash")
    root = shell.elevate if step.needs_root else ""
    set_first = [shell.variable(name, value) for name, value in step.variables.items()]
    commands = [_named(argv, machine) for argv in step.commands]
    if windows:
        return set_first + [_on_windows(argv) for argv in commands]
    return set_first + [root + shell.shown(argv) for argv in commands]


def command(argv: Command, machine: Machine) -> str:
    """One command that needs no root."""
    windows = machine.platform.system == "Windows"
    return _on_windows(argv) if windows else shell_of("bash").shown(argv)


def asks_for_python(step: Step, machine: Machine) -> bool:
    """Whether the lines of a step hold the variable that the reader has to set."""
    return machine.look != "report" and any(PLACEHOLDER in argv for argv in step.commands)


def _named(argv: Command, machine: Machine) -> Command:
    """The interpreter of a report by the name under which its author calls it.

    Elsewhere the variable stays, as in a script.
    """
    if machine.look != "report":
        return argv
    return tuple(ours("python") if word == PLACEHOLDER else word for word in argv)


def _on_windows(argv: Command) -> str:
    """Without quotes where none are needed, so that it runs in cmd too."""
    if all(_PLAIN.fullmatch(word) for word in argv):
        return " ".join(argv)
    return shell_of("powershell").shown(argv)
