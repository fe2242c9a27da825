"""Environment variables as texts: for a shell at once, and for a conda environment for good.

conda runs every script in `etc/conda/activate.d` of an environment when it is activated, and those
in `etc/conda/deactivate.d` when it is left. The first keeps what a variable held before, the second
brings that back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudadoctor.model.findings import Edit
from cudadoctor.render.shells import VARIABLE, Fish, Posix, PowerShell, ShellName, comment, shell_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cudadoctor.model.machine import Machine

SUFFIX: dict[ShellName, str] = {"bash": "sh", "fish": "fish", "powershell": "ps1"}

KEPT = "CUDADOCTOR_BEFORE_"
"""Begins the name of the variable that keeps an earlier value while the environment is active."""

FOR_GOOD = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE"}
    | {"CUDA_HOME", "CUDA_PATH", "CUDACXX", "CC", "CXX", "CUDAHOSTCXX"}
)
"""What an environment may keep: where its programs find things.

Others belong to one job or launch (CUDA_VISIBLE_DEVICES, RANK, WORLD_SIZE), or cure or trace one
program and slow others (NCCL_*, CUDA_LAUNCH_BLOCKING): those are set for a shell.
"""


def text(shell: ShellName, variables: Mapping[str, str | None]) -> str:
    """Set or (None) unset the variables in a running shell; to be sourced or pasted."""
    words = Posix(_NEWLINE) if shell == "bash" else shell_of(shell)
    lines = [words.variable(name, value) for name, value in variables.items()]
    return _whole(shell, lines)


def files(
    prefix: str, variables: Mapping[str, str | None], shell: ShellName
) -> tuple[tuple[str, str], ...]:
    """The files of a conda environment that do it at each activation: (path, text).

    The paths are relative to the prefix, with forward slashes. Their name is that of the variables,
    so that files of several repairs stand beside each other.
    """
    sound = {one: value for one, value in variables.items() if VARIABLE.fullmatch(one)}
    words = "-".join(sorted(sound)).lower().replace("_", "-")[:100] or "nothing"
    name = f"cudadoctor-{words}.{SUFFIX[shell]}"
    head = comment(f"Written by cudadoctor for {prefix}")
    activated, left = _SHELLS[shell]
    entered = [line for one, value in sound.items() for line in activated(one, value)]
    after = [line for one in reversed(list(sound)) for line in left(one)]
    return (
        (f"etc/conda/activate.d/{name}", f"{head}\n{_whole(shell, entered)}"),
        (f"etc/conda/deactivate.d/{name}", f"{head}\n{_whole(shell, after)}"),
    )


def kept_by_conda(
    m: Machine, variables: Mapping[str, str | None], shell: ShellName
) -> tuple[Edit, ...]:
    """Where a conda environment keeps these variables; () elsewhere or where nothing is to stay."""
    prefix = m.python.prefix
    lasting = {one: value for one, value in variables.items() if one in FOR_GOOD}
    conda = (m.python.kind or "").startswith("conda")
    if not conda or not lasting or not prefix or prefix.startswith(("~", "<")):
        return ()
    mark = "\\" if m.platform.system == "Windows" else "/"
    return tuple(
        Edit(file=mark.join((prefix.rstrip(mark), *path.split("/"))), what=what.rstrip("\n"))
        for path, what in files(prefix, lasting, shell)
    )


def note(m: Machine, variables: Mapping[str, str | None], shell: ShellName) -> str | None:
    """Where a conda environment would keep these variables, None elsewhere."""
    found = kept_by_conda(m, variables, shell)
    if not found:
        return None
    return f"To keep this in the conda environment, {found[0].file} can do it at each activation."


_NEWLINE = "_cudadoctor_newline"


def _whole(shell: ShellName, lines: list[str]) -> str:
    """The lines, with what newlines in values need before and after them."""
    body = "\n".join(lines)
    if shell == "bash" and (first := Posix(_NEWLINE).newlines(body)):
        lines = [*first, *lines, f"unset {_NEWLINE}"]
    return "".join(f"{line}\n" for line in lines)


def _enter_posix(name: str, value: str | None) -> tuple[str, ...]:
    return (
        f'if [ -n "${{{name}+x}}" ]; then export {KEPT}{name}="${name}"; fi',
        Posix(_NEWLINE).variable(name, value),
    )


def _leave_posix(name: str) -> tuple[str, ...]:
    kept = f"{KEPT}{name}"
    return (
        f'if [ -n "${{{kept}+x}}" ]; then export {name}="${kept}"; unset {kept}; '
        f"else unset {name}; fi",
    )


def _enter_fish(name: str, value: str | None) -> tuple[str, ...]:
    return (f"set -q {name}; and set -gx {KEPT}{name} ${name}", Fish().variable(name, value))


def _leave_fish(name: str) -> tuple[str, ...]:
    kept = f"{KEPT}{name}"
    back = f"set -gx {name} ${kept}; set -e {kept}"
    return (f"if set -q {kept}; {back}; else; set -e {name}; end",)


def _enter_powershell(name: str, value: str | None) -> tuple[str, ...]:
    return (
        f"if (Test-Path Env:{name}) {{ $env:{KEPT}{name} = $env:{name} }}",
        PowerShell().variable(name, value),
    )


def _leave_powershell(name: str) -> tuple[str, ...]:
    kept = f"{KEPT}{name}"
    back = f"$env:{name} = $env:{kept}; Remove-Item Env:{kept}"
    gone = f"Remove-Item Env:{name} -ErrorAction SilentlyContinue"
    return (f"if (Test-Path Env:{kept}) {{ {back} }} else {{ {gone} }}",)


_SHELLS = {
    "bash": (_enter_posix, _leave_posix),
    "fish": (_enter_fish, _leave_fish),
    "powershell": (_enter_powershell, _leave_powershell),
}
