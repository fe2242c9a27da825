"""How bash, fish and PowerShell say things, safe against everything that a path may hold.

A word from outside (a path, a name, a package) may hold spaces, quotes, `$(...)`, newlines, escape
codes. It is quoted by the rules of the shell, and what a terminal or an editor would act upon is
written by its code, so that every command stands on one line and looks like what it is.
"""

from __future__ import annotations

import itertools
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from cudadoctor.model.findings import Edit, Step
from cudadoctor.model.machine import Machine, OptInt, OptStr, Strings, StrPair
from cudadoctor.model.trust import PLACEHOLDER, USER, Command, Foreign, ours, typed
from cudadoctor.model.variables import OF_LOADER, in_notebook
from cudadoctor.render import inert

ShellName = Literal["bash", "fish", "powershell"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that every shell takes for a variable."""
HERE = "$HERE/"
"""Stands before a path from the folder in which the script is started."""
HOME = "$HOME/"
"""Stands before a path from the user's home, which a page shows as ~/."""
_EMPTY = "This runs in an empty folder so that Python does not import files from the current one."
# PowerShell takes typographic quotes for plain ones.
_POWERSHELL_QUOTES = re.compile("(['\u2018\u2019\u201a\u201b])")


class Shell(ABC):
    """How a shell says what a script needs: templates of its lines, and its way to quote.

    suffix: of the names of its files. elevate: what goes before a command for root. restart: what
    restarts the machine. fold: ends a line whose command goes on. usual: the interpreter, if the
    reader sets none; python: the variable that names it, set by python_default, and by
    python_absolute as seen from another folder.
    """

    suffix: str
    elevate = "sudo "
    unless = "{check} 2>/dev/null || {{ {told} >&2; exit 1; }}"
    """Ends a script, with some words, if a command fails."""
    restart = "reboot"
    usual = "python3"
    python: str
    python_default: str
    python_absolute: str
    user = '"$USER"'
    fold = " \\"
    first: Strings = ()
    """What stops a script at the first failure."""
    apart: Strings
    """Goes to an empty folder and remembers the first one."""
    here: str
    """A path from the folder in which the script is started."""
    call, ending = "", ""
    """What stands before a command, and what ends the script after it where it fails."""
    setting: str
    unsetting: str
    keeping: str
    restoring: str
    """What keeps the earlier value of a variable, and what brings it back."""

    def start(self, body: str, *, apart: bool = False) -> Strings:
        """Lines that come first: stop at the first failure, and what the body's lines need.

        apart: go to an empty folder, since `python -m pip` runs a pip.py of the current one.
        """
        lines = [*self.first]
        if self.python in body:
            lines += self.choice_of_python()
            lines += [self.python_absolute] if apart else []
        lines += ["", comment(_EMPTY), *self.apart] if apart else []
        return (*lines, *self.newlines(body))

    def choice_of_python(self) -> Strings:
        """Lines that set the variable of the interpreter, unless the reader has."""
        needed = (
            f"The Python to repair. To repair a Python other than {self.usual}, set PYTHON first."
        )
        return (comment(needed), self.python_default)

    def newlines(self, body: str) -> Strings:  # noqa: ARG002 - most shells need none
        """What a body needs that holds newlines within its words."""
        return ()

    def command(self, argv: Command) -> str:
        """A command; the script ends where it fails."""
        return self.shown(argv) + self.ending

    def shown(self, argv: Command) -> str:
        """The same, to be shown in a comment."""
        return " ".join(self.arguments(argv))

    def arguments(self, argv: Command) -> list[str]:
        """The words of a command as they are typed."""
        words = [self._argument(*numbered) for numbered in enumerate(argv)]
        return [f"{self.call}{words[0]}", *words[1:]]

    def folded(self, words: list[str], room: OptInt) -> list[str]:
        """Words as they are typed, on lines of at most that many columns (None: on one line).

        An option and its value stay on one line, and so does a word that is too long for any.
        """
        line = " ".join(words)
        if room is None or not self.fold or len(line) <= room:
            return [line]
        pieces = words[:1]
        for word in words[1:]:
            valued = pieces[-1].startswith("--") and " " not in pieces[-1]
            if valued and not word.startswith("-"):
                pieces[-1] += f" {word}"
            else:
                pieces.append(word)
        lines = pieces[:1]
        for piece in pieces[1:]:
            if len(lines[-1]) + len(piece) + 1 + len(self.fold) <= room:
                lines[-1] += f" {piece}"
            else:
                lines.append(f"    {piece}")
        return [*(f"{line}{self.fold}" for line in lines[:-1]), lines[-1]]

    def _argument(self, place: int, word: str) -> str:
        """A first word with = in it would set a variable; zsh looks for the program in =word."""
        quoted, risky = self.quoted(word), "=" in (word[:1] if place else word)
        return f"'{word}'" if quoted == word and risky else quoted

    def variable(self, name: str, value: OptStr) -> str:
        """Set or (None) unset a variable for all that follows."""
        if not VARIABLE.fullmatch(name):
            return comment(f"not a name of a variable: {name}")
        if value is None:
            return self.unsetting.format(name=name)
        return self.setting.format(name=name, value=self.quoted(value))

    def file(self, edit: Edit, root: str) -> list[str]:
        """The words that write the file of an edit or append to it. root: stands before a command.

        No here-document: pasted from a page, its lines would keep the page's indentation.
        """
        lines = edit.what.strip("\n").splitlines()
        # An echo may take a backslash for more than it is.
        alone = len(lines) == 1 and "\\" not in lines[0] and not lines[0].startswith("-")
        target = "-a " * (edit.mode == "append") + self.quoted(edit.file)
        printing = ["echo" if alone else "printf '%s\\n'", *map(self.quoted, lines)]
        if ".service.d/" in edit.file:  # a folder that is there only after the first such file
            return [*printing, f"| {root}install -D -m 644 /dev/stdin {target}"]
        return [*printing, f"| {root}tee {target}", ">/dev/null"]

    @abstractmethod
    def printed(self, lines: Strings) -> Strings:
        """Commands that print these lines, and do nothing else whatever these hold."""

    def quoted(self, word: str) -> str:
        """The word as one word of the shell, on one line."""
        if word == PLACEHOLDER:
            return self.python
        if word == USER:
            return self.user
        if word.startswith(HERE):
            return self.here.format(self.quoted(word.removeprefix(HERE)))
        if word.startswith(HOME):
            return f"~/{self._quoted(word.removeprefix(HOME))}"
        return self._quoted(word)

    @abstractmethod
    def _quoted(self, word: str) -> str: ...


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

    suffix = "sh"
    python = '"$PYTHON"'
    python_default = 'PYTHON="${PYTHON:-python3}"'
    python_absolute = 'case $PYTHON in /*) ;; */*) PYTHON="$PWD/$PYTHON" ;; esac'
    first = ("set -eu",)
    apart = (
        'HERE="$PWD"; cd /; empty="$(mktemp -d)"; [ -n "$empty" ]',
        """trap 'cd /; rmdir "$empty" || :' EXIT; cd "$empty\"""",
    )
    here = '"$HERE"/{}'
    setting = "export {name}={value}"
    unsetting = "unset {name}"
    keeping = 'if [ -n "${{{name}+x}}" ]; then export {kept}="${name}"; fi'
    restoring = (
        'if [ -n "${{{kept}+x}}" ]; then export {name}="${kept}"; unset {kept}; '
        "else unset {name}; fi"
    )

    def __init__(self, newline: str = "newline") -> None:
        self._newline = newline

    def printed(self, lines: Strings) -> Strings:
        lines, end = tuple(map(inert, lines)), "END"
        while end in lines:
            end += "_"
        return (f"cat <<'{end}'", *lines, end)

    def newlines(self, body: str) -> Strings:
        name = self._newline
        if f'"${name}"' not in body:
            return ()
        # A command substitution loses its last newlines, hence the x.
        return (f"{name}=\"$(printf '\\nx')\"", f'{name}="${{{name}%x}}"')

    def _quoted(self, word: str) -> str:
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

    suffix = "fish"
    python = "$PYTHON"
    python_default = "set -q PYTHON; or set PYTHON python3"
    python_absolute = "switch $PYTHON; case '/*'; case '*/*'; set PYTHON $PWD/$PYTHON; end"
    apart = (
        "set HERE $PWD; cd /; set empty (mktemp -d); or exit $status",
        "function leave --on-event fish_exit; cd /; rmdir $empty; end",
        "cd $empty; or exit $status",
    )
    here = "$HERE/{}"
    unless = "{check} 2>/dev/null; or begin; {told} >&2; exit 1; end"
    ending = "; or exit $status"
    setting = "set -gx {name} {value}"
    unsetting = "set -e {name}"
    keeping = "set -q {name}; and set -gx {kept} ${name}"
    restoring = "if set -q {kept}; set -gx {name} ${kept}; set -e {kept}; else; set -e {name}; end"

    def printed(self, lines: Strings) -> Strings:
        return tuple(f"printf '%s\\n' {self.quoted(inert(line))}" for line in lines)

    def _quoted(self, word: str) -> str:
        """In single quotes only \\ and ' are special."""
        if re.fullmatch(r"[A-Za-z0-9_./:=+,@-]+", word):
            return word
        pieces = (
            "'" + re.sub(r"([\\'])", r"\\\1", text) + "'"
            if plain
            else "".join(f"\\X{byte:02x}" for mark in text for byte in _bytes(mark))
            for plain, text in _runs(word)
        )
        return "".join(pieces) or "''"


class PowerShell(Shell):
    """PowerShell, whose native commands never end a script by themselves.

    A double quote inside an argument reaches the program unharmed from version 7.3 on.
    """

    suffix = "ps1"
    elevate = ""
    restart = "Restart-Computer"
    usual = "python"
    python = "$PYTHON"
    user = "$env:USERNAME"
    fold = ""  # cmd, which may stand in its place, takes no backtick at the end of a line.
    python_default = (
        "if (-not $PYTHON) { $PYTHON = if ($env:PYTHON) { $env:PYTHON } else { 'python' } }"
    )
    python_absolute = "if (Test-Path $PYTHON) { $PYTHON = Convert-Path $PYTHON }"
    first = ("$ErrorActionPreference = 'Stop'",)
    apart = (
        "$HERE = (Get-Location).Path",
        "$empty = Join-Path ([IO.Path]::GetTempPath()) (New-Guid)",
        "$null = New-Item -ItemType Directory $empty; Set-Location $empty",
    )
    here = "($HERE + '/' + {})"
    call = "& "
    ending = "; if ($LASTEXITCODE) { exit $LASTEXITCODE }"
    setting = "$env:{name} = {value}"
    unsetting = "Remove-Item Env:{name} -ErrorAction SilentlyContinue"
    keeping = "if (Test-Path Env:{name}) {{ $env:{kept} = $env:{name} }}"
    restoring = (
        "if (Test-Path Env:{kept}) {{ $env:{name} = $env:{kept}; Remove-Item Env:{kept} }} "
        "else {{ Remove-Item Env:{name} -ErrorAction SilentlyContinue }}"
    )

    def file(self, edit: Edit, root: str) -> list[str]:  # noqa: ARG002 - it has no sudo
        verb = "Add-Content" if edit.mode == "append" else "Set-Content"
        lines = ", ".join(map(self.quoted, edit.what.strip("\n").splitlines()))
        return [verb, f"-LiteralPath {self.quoted(edit.file)}", f"-Value {lines}"]

    def printed(self, lines: Strings) -> Strings:
        return tuple(f"Write-Output {self.quoted(inert(line))}" for line in lines)

    def _quoted(self, word: str) -> str:
        """A single-quoted string, or a sum of strings and character codes."""
        runs = _runs(word)
        pieces = [
            "'" + _POWERSHELL_QUOTES.sub(r"\1\1", text) + "'" if plain else _codes(text)
            for plain, text in runs
        ]
        if len(pieces) == 1 and runs[0][0]:
            return pieces[0]
        return "(" + " + ".join(("''", *pieces)) + ")" if pieces else "''"


def _codes(text: str) -> str:
    """Characters by their UTF-16 codes, as a sum of PowerShell."""
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


def step_lines(step: Step, machine: Machine, room: OptInt = None) -> list[str]:
    """The lines of a step to paste: each variable, each file that is written, each command.

    A restart of the machine stands last where the step needs one. room: columns that commands are
    folded to, None for one line each.
    """
    shell = _shell_of(machine)
    root = elevation(step, machine, shell)
    before, after = around(step)
    cell = is_for_cell(step, machine)
    setting = _cell_variable if cell else shell.variable
    lines = [setting(name, value) for name, value in before.items()]
    for edit in written_edits(step):
        lines += shell.folded(shell.file(edit, root), room)
    lines += command_lines(step.commands, machine, "!" if cell else root, room)
    lines += [setting(name, value) for name, value in after.items()]
    restarts = step.reboot and lines and not any("reboot" in argv for argv in step.commands)
    return [*lines, f"{root}{shell.restart}"] if restarts else lines


def is_for_cell(step: Step, machine: Machine) -> bool:
    """Whether the reader types this step into a cell of a notebook.

    A cell has no terminal for a password, and no shell whose variables outlast a line.
    """
    return (
        in_notebook(machine.env)
        and not isinstance(machine, Foreign)
        and machine.platform.system == "Linux"
        and step.where == "here"
        and not elevation(step, machine, _shell_of(machine))
        and not written_edits(step)
        and not any(PLACEHOLDER in argv for argv in step.commands)
        and not any(name in OF_LOADER for name in step.variables)
    )


def _cell_variable(name: str, value: OptStr) -> str:
    if value is None:
        return f'import os; os.environ.pop("{name}", None)'
    return f"%env {name}={inert(value)}"


def around(step: Step) -> tuple[dict[str, OptStr], dict[str, OptStr]]:
    """The variables of a step for its commands, and those that name what its commands install."""
    late = _INSTALLED if step.commands else ()
    before: dict[str, OptStr] = {
        name: value for name, value in step.variables.items() if name not in late
    }
    return before, {name: value for name, value in step.variables.items() if name in late}


_INSTALLED = ("CUDA_HOME", "CC", "CXX", "NVCC_CCBIN")


def written_edits(step: Step) -> tuple[Edit, ...]:
    """The edits of a step that commands make; none where the user makes one of them."""
    by_hand = any(edit.mode == "by hand" for edit in step.edits)
    return () if by_hand else step.edits


def edits_by_hand(step: Step) -> tuple[Edit, ...]:
    """The edits of a step that the user makes, since no command does."""
    return () if written_edits(step) else step.edits


def edits_lead(step: Step) -> bool:
    """Whether the commands of a step need its edits: a project's file, a system's configuration.

    Elsewhere an edit says the same for another way to start a program, or makes it last.
    """
    return bool(edits_by_hand(step)) and bool(step.packages or step.tool == "nixos-rebuild")


def has_lines(step: Step) -> bool:
    """Whether a step holds anything that can be pasted."""
    return bool(step.commands or step.variables or written_edits(step))


def elevation(step: Step, machine: Machine, shell: Shell) -> str:
    """What goes before a step's commands: nothing where they run as root already.

    Root of a container is not root of its host; Proxmox VE has no sudo, and its shell is root's.
    """
    proxmox = (machine.platform.kernel or "").endswith("-pve")
    is_root = machine.platform.root if step.where == "here" else step.where == "host" and proxmox
    return shell.elevate if step.needs_root and not is_root else ""


AS_USER = ("git ", "makepkg ")
"""Programs that refuse to run as root, or whose files would then belong to root."""


def elevated(argv: Command, root: str) -> str:
    """What goes before this one command of a step for root."""
    return "" if f"{argv[0]} " in AS_USER else root


def command_lines(
    commands: tuple[Command, ...], machine: Machine, root: str = "", room: OptInt = None
) -> list[str]:
    """Commands, one a line, after the variable of the interpreter if they need it.

    The interpreter of a report goes by the name under which its author calls it; elsewhere the
    variable stays, as in a script. root: what goes before each. room: as of step_lines.
    """
    if machine.look == "report":
        commands = tuple(
            tuple(ours("python") if word == PLACEHOLDER else word for word in argv)
            for argv in commands
        )
    needed = any(PLACEHOLDER in argv for argv in commands)
    home = (machine.identity.home or "").rstrip("/")
    if home and machine.platform.system != "Windows":
        commands = tuple(_from_home(argv, home) for argv in commands)
    shell = _shell_of(machine)
    lines = [*shell.choice_of_python()] if needed else []
    for argv in commands:
        first, *others = _arguments(argv, machine)
        lines += shell.folded([f"{elevated(argv, root)}{first}", *others], room)
    return lines


def _from_home(argv: Command, home: str) -> Command:
    return tuple(
        ours(f"{HOME}{word[len(home) + 1 :]}") if word.startswith(f"{home}/") else word
        for word in argv
    )


def command_line(argv: Command, machine: Machine) -> str:
    """That command alone, on one line."""
    return " ".join(_arguments(argv, machine))


def _arguments(argv: Command, machine: Machine) -> list[str]:
    """The words as they are typed; without quotes if none are needed, so that cmd runs it."""
    if machine.platform.system == "Windows" and all(_PLAIN.fullmatch(word) for word in argv):
        return [*argv]
    return _shell_of(machine).arguments(argv)


def _shell_of(machine: Machine) -> Shell:
    return shell_of("powershell" if machine.platform.system == "Windows" else "bash")


# --- variables that a conda environment keeps ---------------------------------------------------
#
# conda runs every script in `etc/conda/activate.d` of an environment when it is activated, and
# those in `etc/conda/deactivate.d` when it is left. The first keeps what a variable held before,
# the second brings that back.

KEPT = "CUDADOCTOR_BEFORE_"
"""Begins the name of the variable that keeps an earlier value while the environment is active."""

_NEWLINE = "_cudadoctor_newline"

FOR_GOOD = OF_LOADER | {
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDACXX",
    "CC",
    "CXX",
    "CUDAHOSTCXX",
    "NVCC_CCBIN",
}
"""What an environment may keep: where its programs find things.

Others belong to one job or launch (CUDA_VISIBLE_DEVICES, RANK, WORLD_SIZE), or cure or trace one
program and slow others (NCCL_*, CUDA_LAUNCH_BLOCKING): those are set for a shell.
"""


def activation_files(
    prefix: str, variables: Mapping[str, OptStr], shell: ShellName
) -> tuple[StrPair, ...]:
    """The files of a conda environment that do it at each activation: (path, text).

    The paths are relative to the prefix, with forward slashes. Their name is that of the variables,
    so that files of several repairs stand beside each other.
    """
    sound = {name: value for name, value in variables.items() if VARIABLE.fullmatch(name)}
    named = "-".join(sorted(sound)).lower().replace("_", "-")[:100] or "nothing"
    words = Posix(_NEWLINE) if shell == "bash" else shell_of(shell)
    entered: list[str] = []
    left: list[str] = []
    for name, value in sound.items():
        kept = f"{KEPT}{name}"
        entered += [words.keeping.format(name=name, kept=kept), words.variable(name, value)]
        left.insert(0, words.restoring.format(name=name, kept=kept))
    # What newlines in values need before and after them.
    if newlines := words.newlines("\n".join(entered)):
        entered = [*newlines, *entered, f"unset {_NEWLINE}"]
    return tuple(
        (
            f"etc/conda/{folder}.d/cudadoctor-{named}.{words.suffix}",
            "\n".join((comment(f"Written by cudadoctor for {prefix}"), *lines, "")),
        )
        for folder, lines in (("activate", entered), ("deactivate", left))
    )


def kept_by_conda(
    m: Machine, variables: Mapping[str, OptStr], shell: ShellName
) -> tuple[Edit, ...]:
    """Where a conda environment keeps these variables; () elsewhere or where nothing is to stay."""
    prefix = m.python.prefix
    lasting = {name: value for name, value in variables.items() if name in FOR_GOOD}
    conda = (m.python.kind or "").startswith("conda")
    if not conda or not lasting or not prefix or prefix.startswith(("~", "<")):
        return ()
    mark = "\\" if m.platform.system == "Windows" else "/"
    return tuple(
        Edit(file=mark.join((prefix.rstrip(mark), *path.split("/"))), what=what.rstrip("\n"))
        for path, what in activation_files(prefix, lasting, shell)
    )


def activation_note(m: Machine, variables: Mapping[str, OptStr], shell: ShellName) -> OptStr:
    """How a conda environment keeps these variables, None elsewhere."""
    found = kept_by_conda(m, variables, shell)
    lasting = [f"{name}={value}" for name, value in variables.items() if name in FOR_GOOD and value]
    if not found or not lasting:
        return None
    words = typed("conda", "env", "config", "vars", "set", "-p", m.python.prefix or "", *lasting)
    command = " ".join(shell_of(shell).arguments(words))
    return f"To make this permanent in the conda environment, run `{command}`."
