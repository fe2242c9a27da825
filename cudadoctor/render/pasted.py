"""The commands of a step as they are pasted into the shell of the machine that was examined."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.dialects.address import PLACEHOLDER
from cudadoctor.render.shells import shell_of

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.plan import Step

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


def command(argv: tuple[str, ...], machine: Machine) -> str:
    """One command that needs no root."""
    windows = machine.platform.system == "Windows"
    return _on_windows(argv) if windows else shell_of("bash").shown(argv)


def _named(argv: tuple[str, ...], machine: Machine) -> tuple[str, ...]:
    """The interpreter of a report by the name under which its author calls it: nobody set $PYTHON.

    A script keeps the variable, and asks for it.
    """
    if machine.look != "report" or machine.python.executable not in (None, PLACEHOLDER):
        return argv
    return tuple("python" if word == PLACEHOLDER else word for word in argv)


def _on_windows(argv: tuple[str, ...]) -> str:
    """Without quotes where none are needed, so that it runs in cmd too."""
    if all(_PLAIN.fullmatch(word) for word in argv):
        return " ".join(argv)
    return shell_of("powershell").shown(argv)
