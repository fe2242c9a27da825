"""The commands of a step as they are pasted into the shell of the machine that was examined."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.model.trust import PLACEHOLDER, ours
from cudadoctor.render.shells import shell_of

if TYPE_CHECKING:
    from cudadoctor.model.findings import Step
    from cudadoctor.model.machine import Machine
    from cudadoctor.model.trust import Command

# What neither PowerShell nor cmd takes for more than a letter.
_PLAIN = re.compile(r"[A-Za-z0-9_./\\:=+-]+")


def lines(step: Step, machine: Machine) -> list[str]:
    """A line for each variable and each command."""
    shell = shell_of("powershell" if _is_windows(machine) else "bash")
    root = shell.elevate if step.needs_root else ""
    found = [shell.variable(name, value) for name, value in step.variables.items()]
    return found + _pasted(step.commands, machine, root)


def asked(argv: Command, machine: Machine) -> list[str]:
    """The same for one command that needs no root."""
    return _pasted((argv,), machine)


def command(argv: Command, machine: Machine) -> str:
    """That command alone, on one line."""
    return _on_windows(argv) if _is_windows(machine) else shell_of("bash").shown(argv)


def _pasted(commands: tuple[Command, ...], machine: Machine, root: str = "") -> list[str]:
    named = [_named(argv, machine) for argv in commands]
    shell = shell_of("powershell" if _is_windows(machine) else "bash")
    first = shell.python() if any(PLACEHOLDER in argv for argv in named) else ()
    return [*first, *(root + command(argv, machine) for argv in named)]


def _is_windows(machine: Machine) -> bool:
    return machine.platform.system == "Windows"


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
