"""How bash, fish and PowerShell say things, safe against everything that a path may hold.

A word from outside (a path, a name, a package) may hold spaces, quotes, `$(...)`, newlines, escape
codes. It is quoted by the rules of the shell, and what a terminal or an editor would act upon is
written by its code, so that every command stands on one line and looks like what it is.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal, Protocol

from cudadoctor.model.trust import PLACEHOLDER, Command
from cudadoctor.render import inert

ShellName = Literal["bash", "fish", "powershell"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that every shell takes for a variable."""
_NEEDED = "PYTHON is the interpreter to repair: set it first if that is not {usual}."
HERE = "$HERE/"
"""Stands before a path from the folder in which the script is started."""
_EMPTY = "In an empty folder: Python would run a pip.py of the one that you are in."
# PowerShell takes typographic quotes for plain ones.
_POWERSHELL_QUOTES = re.compile("(['\u2018\u2019\u201a\u201b])")


class Shell(Protocol):
    """What the script needs of a shell. elevate: what goes before a command for root."""

    elevate: str

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        """Lines that come first: stop at the first failure, and what the body's lines need.

        apart: go to an empty folder, since `python -m pip` runs a pip.py of the current one.
        """

    def python(self) -> tuple[str, ...]:
        """Lines that set the variable of the interpreter, unless the reader has."""

    def command(self, argv: Command) -> str:
        """A command; the script ends where it fails."""

    def shown(self, argv: Command) -> str:
        """The same, to be shown in a comment."""

    def variable(self, name: str, value: str | None) -> str:
        """Set or (None) unset a variable for all that follows."""


def shell_of(name: ShellName) -> Shell:
    """The shell of that name."""
    if name == "fish":
        return Fish()
    return PowerShell() if name == "powershell" else Posix()


def comment(text: str, indent: int = 0) -> str:
    """A comment that nothing in the text can end: all on one line, nothing that acts."""
    return f"# {' ' * indent}{inert(text)}".rstrip()


class Posix:
    """bash, and every other POSIX shell. newline: the variable that holds one, where needed."""

    elevate = "sudo "

    def __init__(self, newline: str = "newline") -> None:
        self._newline = newline

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        lines = ["set -eu"]
        if '"$PYTHON"' in body:
            lines += self.python()
        if apart and '"$PYTHON"' in body:
            lines.append('case $PYTHON in /*) ;; */*) PYTHON="$PWD/$PYTHON" ;; esac')
        if apart:
            lines += [
                "",
                comment(_EMPTY),
                'HERE="$PWD"; cd /; empty="$(mktemp -d)"; [ -n "$empty" ]',
            ]
            lines.append("""trap 'cd /; rmdir "$empty" || :' EXIT; cd "$empty\"""")
        return (*lines, *self.newlines(body))

    def python(self) -> tuple[str, ...]:
        return (comment(_NEEDED.format(usual="python3")), 'PYTHON="${PYTHON:-python3}"')

    def newlines(self, body: str) -> tuple[str, ...]:
        """What a body needs that holds newlines within its words."""
        name = self._newline
        if f'"${name}"' not in body:
            return ()
        # A command substitution loses its last newlines, hence the x.
        return (f"{name}=\"$(printf '\\nx')\"", f'{name}="${{{name}%x}}"')

    def command(self, argv: Command) -> str:
        first, *others = argv or ("",)
        # A first word with = in it would set a variable; zsh looks for the program in =word.
        started = f"'{first}'" if self.quoted(first) == first and "=" in first else ""
        return " ".join((started or self.quoted(first), *map(self._argument, others)))

    def shown(self, argv: Command) -> str:
        return self.command(argv)

    def _argument(self, word: str) -> str:
        quoted = self.quoted(word)
        return f"'{word}'" if quoted == word and word.startswith("=") else quoted

    def variable(self, name: str, value: str | None) -> str:
        if not VARIABLE.fullmatch(name):
            return comment(f"not a name of a variable: {name}")
        return f"unset {name}" if value is None else f"export {name}={self.quoted(value)}"

    def quoted(self, word: str) -> str:
        """The word as one word of the shell, on one line."""
        if word == PLACEHOLDER:
            return '"$PYTHON"'
        if word.startswith(HERE):
            return f'"$HERE"/{self.quoted(word.removeprefix(HERE))}'
        pieces = _runs(word)
        return (
            "".join(
                shlex.quote(text) if plain else "".join(self._by_code(one) for one in text)
                for plain, text in pieces
            )
            or "''"
        )

    def _by_code(self, one: str) -> str:
        if one == "\n":
            return f'"${self._newline}"'
        octal = "".join(f"\\{byte:03o}" for byte in _bytes(one))
        return f"\"$(printf '{octal}')\"" if octal else ""


class Fish:
    """fish, which has no `set -e`: each command ends the script itself where it fails."""

    elevate = "sudo "

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        lines = [*self.python()] if "$PYTHON" in body else []
        if apart and "$PYTHON" in body:
            lines.append("switch $PYTHON; case '/*'; case '*/*'; set PYTHON $PWD/$PYTHON; end")
        if apart:
            lines += [
                "",
                comment(_EMPTY),
                "set HERE $PWD; cd /; set empty (mktemp -d); or exit $status",
            ]
            lines.append("function leave --on-event fish_exit; cd /; rmdir $empty; end")
            lines.append("cd $empty; or exit $status")
        return tuple(lines)

    def python(self) -> tuple[str, ...]:
        usual = "set -q PYTHON; or set PYTHON python3"
        return (comment(_NEEDED.format(usual="python3")), usual)

    def command(self, argv: Command) -> str:
        return f"{self.shown(argv)}; or exit $status"

    def shown(self, argv: Command) -> str:
        first, *others = argv or ("",)
        # A first word with = in it would set a variable.
        started = f"'{first}'" if self.quoted(first) == first and "=" in first else ""
        return " ".join((started or self.quoted(first), *map(self.quoted, others)))

    def variable(self, name: str, value: str | None) -> str:
        if not VARIABLE.fullmatch(name):
            return comment(f"not a name of a variable: {name}")
        return f"set -e {name}" if value is None else f"set -gx {name} {self.quoted(value)}"

    def quoted(self, word: str) -> str:
        """The word as one word of fish: in single quotes only \\ and ' are special."""
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
        return "".join(f"\\X{byte:02x}" for one in text for byte in _bytes(one))


class PowerShell:
    """PowerShell, whose native commands never end a script by themselves.

    A double quote inside an argument reaches the program unharmed from version 7.3 on.
    """

    elevate = ""

    def start(self, body: str, *, apart: bool = False) -> tuple[str, ...]:
        stop = "$ErrorActionPreference = 'Stop'"
        lines = [stop, *(self.python() if "$PYTHON" in body else ())]
        if apart and "$PYTHON" in body:
            lines.append("if (Test-Path $PYTHON) { $PYTHON = Convert-Path $PYTHON }")
        if apart:
            lines += ["", comment(_EMPTY), "$HERE = (Get-Location).Path"]
            lines.append("$empty = Join-Path ([IO.Path]::GetTempPath()) (New-Guid)")
            lines.append("$null = New-Item -ItemType Directory $empty; Set-Location $empty")
        return tuple(lines)

    def python(self) -> tuple[str, ...]:
        usual = "if (-not $PYTHON) { $PYTHON = if ($env:PYTHON) { $env:PYTHON } else { 'python' } }"
        return (comment(_NEEDED.format(usual="python")), usual)

    def command(self, argv: Command) -> str:
        return f"{self.shown(argv)}; if ($LASTEXITCODE) {{ exit $LASTEXITCODE }}"

    def shown(self, argv: Command) -> str:
        return "& " + " ".join(self.quoted(word) for word in argv)

    def variable(self, name: str, value: str | None) -> str:
        if not VARIABLE.fullmatch(name):
            return comment(f"not a name of a variable: {name}")
        if value is None:
            return f"Remove-Item Env:{name} -ErrorAction SilentlyContinue"
        return f"$env:{name} = {self.quoted(value)}"

    def quoted(self, word: str) -> str:
        """The word as a single-quoted string, or as a sum of strings and character codes."""
        if word == PLACEHOLDER:
            return "$PYTHON"
        if word.startswith(HERE):
            return f"($HERE + '/' + {self.quoted(word.removeprefix(HERE))})"
        pieces = [self._piece(plain, text) for plain, text in _runs(word)]
        if len(pieces) == 1 and _runs(word)[0][0]:
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
    runs: list[tuple[bool, str]] = []
    for one in word.replace("\0", ""):
        plain = one.isprintable()
        if runs and runs[-1][0] is plain:
            runs[-1] = (plain, runs[-1][1] + one)
        else:
            runs.append((plain, one))
    return runs


def _bytes(one: str) -> bytes:
    return one.encode("utf-8", "surrogateescape" if "\udc80" <= one <= "\udcff" else "replace")
