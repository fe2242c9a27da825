"""How bash, fish and PowerShell say things, safe against everything that a path may hold.

A word from outside (a path, a name, a package) may hold spaces, quotes, `$(...)`, newlines, escape
codes. It is quoted by the rules of the shell, and what a terminal or an editor would act upon is
written by its code, so that every command stands on one line and looks like what it is.
"""

import itertools
import re
import shlex
from abc import ABC, abstractmethod
from typing import Literal

from cudadoctor.model.findings import Step
from cudadoctor.model.machine import Machine
from cudadoctor.model.trust import PLACEHOLDER, Command, ours
from cudadoctor.render import inert

ShellName = Literal["bash", "fish", "powershell"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that every shell takes for a variable."""
HERE = "$HERE/"
"""Stands before a path from the folder in which the script is started."""
_EMPTY = "In an empty folder: Python would run a pip.py of the one that you are in."
# PowerShell takes typographic quotes for plain ones.
_POWERSHELL_QUOTES = re.compile("(['\u2018\u2019\u201a\u201b])")


class Shell(ABC):
    """What the script needs of a shell. elevate: what goes before a command for root."""

    elevate = "sudo "
    usual = "python3"
    """The interpreter, if the reader sets none."""
    default_python: str
    """The line that sets the variable of the interpreter, unless the reader has."""

    @abstractmethod
    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        """Lines that come first: stop at the first failure, and what the body's lines need.

        apart: go to an empty folder, since `python -m pip` runs a pip.py of the current one.
        """

    def python(self) -> tuple[str, ...]:
        """Lines that set the variable of the interpreter, unless the reader has."""
        needed = f"PYTHON is the interpreter to repair: set it first if that is not {self.usual}."
        return (comment(needed), self.default_python)

    @abstractmethod
    def command(self, argv: Command) -> str:
        """A command; the script ends where it fails."""

    @abstractmethod
    def shown(self, argv: Command) -> str:
        """The same, to be shown in a comment."""

    def variable(self, name: str, value: str | None) -> str:
        """Set or (None) unset a variable for all that follows."""
        if not VARIABLE.fullmatch(name):
            return comment(f"not a name of a variable: {name}")
        return self._unset(name) if value is None else self._set(name, self.quoted(value))

    @abstractmethod
    def _set(self, name: str, quoted: str) -> str: ...

    @abstractmethod
    def _unset(self, name: str) -> str: ...

    @abstractmethod
    def quoted(self, word: str) -> str:
        """The word as one word of the shell, on one line."""

    def _program(self, word: str) -> str:
        """A first word with = in it would set a variable; zsh looks for the program in =word."""
        quoted = self.quoted(word)
        return f"'{word}'" if quoted == word and "=" in word else quoted


def shell_of(name: ShellName) -> Shell:
    """The shell of that name."""
    if name == "bash":
        return Posix()
    return Fish() if name == "fish" else PowerShell()


def comment(text: str, indent: int = 0) -> str:
    """A comment that nothing in the text can end: all on one line, nothing that acts."""
    return f"# {' ' * indent}{inert(text)}".rstrip()


class Posix(Shell):
    """bash, and every other POSIX shell. newline: the variable that holds one, if needed."""

    default_python = 'PYTHON="${PYTHON:-python3}"'

    def __init__(self, newline: str = "newline") -> None:
        self._newline = newline

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        lines = ["set -eu"]
        if '"$PYTHON"' in body:
            lines += self.python()
            if apart:
                lines.append('case $PYTHON in /*) ;; */*) PYTHON="$PWD/$PYTHON" ;; esac')
        if apart:
            lines += [
                "",
                comment(_EMPTY),
                'HERE="$PWD"; cd /; empty="$(mktemp -d)"; [ -n "$empty" ]',
                """trap 'cd /; rmdir "$empty" || :' EXIT; cd "$empty\"""",
            ]
        return (*lines, *self.newlines(body))

    def newlines(self, body: str) -> tuple[str, ...]:
        """What a body needs that holds newlines within its words."""
        name = self._newline
        if f'"${name}"' not in body:
            return ()
        # A command substitution loses its last newlines, hence the x.
        return (f"{name}=\"$(printf '\\nx')\"", f'{name}="${{{name}%x}}"')

    def command(self, argv: Command) -> str:
        first, *others = argv or ("",)
        return " ".join((self._program(first), *map(self._argument, others)))

    def shown(self, argv: Command) -> str:
        return self.command(argv)

    def _argument(self, word: str) -> str:
        return self._program(word) if word.startswith("=") else self.quoted(word)

    def _set(self, name: str, quoted: str) -> str:
        return f"export {name}={quoted}"

    def _unset(self, name: str) -> str:
        return f"unset {name}"

    def quoted(self, word: str) -> str:
        if word == PLACEHOLDER:
            return '"$PYTHON"'
        if word.startswith(HERE):
            return f'"$HERE"/{self.quoted(word.removeprefix(HERE))}'
        pieces = (
            shlex.quote(text) if plain else "".join(map(self._by_code, text))
            for plain, text in _runs(word)
        )
        return "".join(pieces) or "''"

    def _by_code(self, character: str) -> str:
        if character == "\n":
            return f'"${self._newline}"'
        octal = "".join(f"\\{byte:03o}" for byte in _bytes(character))
        return f"\"$(printf '{octal}')\"" if octal else ""


class Fish(Shell):
    """fish, which has no `set -e`: each command ends the script itself where it fails."""

    default_python = "set -q PYTHON; or set PYTHON python3"

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        lines: list[str] = []
        if "$PYTHON" in body:
            lines += self.python()
            if apart:
                lines.append("switch $PYTHON; case '/*'; case '*/*'; set PYTHON $PWD/$PYTHON; end")
        if apart:
            lines += [
                "",
                comment(_EMPTY),
                "set HERE $PWD; cd /; set empty (mktemp -d); or exit $status",
                "function leave --on-event fish_exit; cd /; rmdir $empty; end",
                "cd $empty; or exit $status",
            ]
        return tuple(lines)

    def command(self, argv: Command) -> str:
        return f"{self.shown(argv)}; or exit $status"

    def shown(self, argv: Command) -> str:
        first, *others = argv or ("",)
        return " ".join((self._program(first), *map(self.quoted, others)))

    def _set(self, name: str, quoted: str) -> str:
        return f"set -gx {name} {quoted}"

    def _unset(self, name: str) -> str:
        return f"set -e {name}"

    def quoted(self, word: str) -> str:
        """In single quotes only \\ and ' are special."""
        if word == PLACEHOLDER:
            return "$PYTHON"
        if word.startswith(HERE):
            return f"$HERE/{self.quoted(word.removeprefix(HERE))}"
        if re.fullmatch(r"[A-Za-z0-9_./:=+,@-]+", word):
            return word
        return "".join(self._piece(plain, text) for plain, text in _runs(word)) or "''"

    @staticmethod
    def _piece(plain: bool, text: str) -> str:
        if plain:
            escaped = text.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        return "".join(f"\\X{byte:02x}" for character in text for byte in _bytes(character))


class PowerShell(Shell):
    """PowerShell, whose native commands never end a script by themselves.

    A double quote inside an argument reaches the program unharmed from version 7.3 on.
    """

    elevate = ""
    usual = "python"
    default_python = (
        "if (-not $PYTHON) { $PYTHON = if ($env:PYTHON) { $env:PYTHON } else { 'python' } }"
    )

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        lines = ["$ErrorActionPreference = 'Stop'"]
        if "$PYTHON" in body:
            lines += self.python()
            if apart:
                lines.append("if (Test-Path $PYTHON) { $PYTHON = Convert-Path $PYTHON }")
        if apart:
            lines += [
                "",
                comment(_EMPTY),
                "$HERE = (Get-Location).Path",
                "$empty = Join-Path ([IO.Path]::GetTempPath()) (New-Guid)",
                "$null = New-Item -ItemType Directory $empty; Set-Location $empty",
            ]
        return tuple(lines)

    def command(self, argv: Command) -> str:
        return f"{self.shown(argv)}; if ($LASTEXITCODE) {{ exit $LASTEXITCODE }}"

    def shown(self, argv: Command) -> str:
        return "& " + " ".join(map(self.quoted, argv))

    def _set(self, name: str, quoted: str) -> str:
        return f"$env:{name} = {quoted}"

    def _unset(self, name: str) -> str:
        return f"Remove-Item Env:{name} -ErrorAction SilentlyContinue"

    def quoted(self, word: str) -> str:
        """A single-quoted string, or a sum of strings and character codes."""
        if word == PLACEHOLDER:
            return "$PYTHON"
        if word.startswith(HERE):
            return f"($HERE + '/' + {self.quoted(word.removeprefix(HERE))})"
        runs = _runs(word)
        pieces = [self._piece(plain, text) for plain, text in runs]
        if len(pieces) == 1 and runs[0][0]:
            return pieces[0]
        return "(" + " + ".join(("''", *pieces)) + ")" if pieces else "''"

    @staticmethod
    def _piece(plain: bool, text: str) -> str:
        if plain:
            return "'" + _POWERSHELL_QUOTES.sub(r"\1\1", text) + "'"
        units = text.encode("utf-16-le", "surrogatepass")
        pairs = zip(units[::2], units[1::2], strict=True)
        return " + ".join(f"[char]{low + 256 * high}" for low, high in pairs)


def _runs(word: str) -> list[tuple[bool, str]]:
    """The word cut into runs that can stand as they are (True) and runs that cannot."""
    grouped = itertools.groupby(word.replace("\0", ""), str.isprintable)
    return [(plain, "".join(run)) for plain, run in grouped]


def _bytes(character: str) -> bytes:
    foreign = "\udc80" <= character <= "\udcff"
    return character.encode("utf-8", "surrogateescape" if foreign else "replace")


# --- commands as they are pasted into the shell of the machine that was examined ----------------

# What neither PowerShell nor cmd takes for more than a letter.
_PLAIN = re.compile(r"[A-Za-z0-9_./\\:=+-]+")


def step_lines(step: Step, machine: Machine) -> list[str]:
    """The lines of a step to paste: one for each variable and each command."""
    shell = _shell_of(machine)
    found = [shell.variable(name, value) for name, value in step.variables.items()]
    return found + command_lines(step.commands, machine, shell.elevate if step.needs_root else "")


def command_lines(commands: tuple[Command, ...], machine: Machine, root: str = "") -> list[str]:
    """Commands, one a line, after the variable of the interpreter if they need it.

    The interpreter of a report goes by the name under which its author calls it; elsewhere the
    variable stays, as in a script. root: what goes before each.
    """
    if machine.look == "report":
        commands = tuple(
            tuple(ours("python") if word == PLACEHOLDER else word for word in argv)
            for argv in commands
        )
    needed = any(PLACEHOLDER in argv for argv in commands)
    first = _shell_of(machine).python() if needed else ()
    return [*first, *(root + command_line(argv, machine) for argv in commands)]


def command_line(argv: Command, machine: Machine) -> str:
    """That command alone, on one line; without quotes if none are needed, so that cmd runs it."""
    windows = machine.platform.system == "Windows"
    if windows and all(_PLAIN.fullmatch(word) for word in argv):
        return " ".join(argv)
    return _shell_of(machine).shown(argv)


def _shell_of(machine: Machine) -> Shell:
    return shell_of("powershell" if machine.platform.system == "Windows" else "bash")
