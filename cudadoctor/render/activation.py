"""Environment variables as texts: for a shell at once, and for a conda environment for good.

conda runs every script in `etc/conda/activate.d` of an environment when it is activated, and those
in `etc/conda/deactivate.d` when it is left. The first keeps what a variable held before, the second
brings that back.
"""

from collections.abc import Mapping

from cudadoctor.model.findings import Edit
from cudadoctor.model.machine import Machine
from cudadoctor.render.shells import VARIABLE, Posix, Shell, ShellName, comment, shell_of

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
    words = _words(shell)
    return _whole(shell, [words.variable(name, value) for name, value in variables.items()])


def files(
    prefix: str, variables: Mapping[str, str | None], shell: ShellName
) -> tuple[tuple[str, str], ...]:
    """The files of a conda environment that do it at each activation: (path, text).

    The paths are relative to the prefix, with forward slashes. Their name is that of the variables,
    so that files of several repairs stand beside each other.
    """
    sound = {name: value for name, value in variables.items() if VARIABLE.fullmatch(name)}
    named = "-".join(sorted(sound)).lower().replace("_", "-")[:100] or "nothing"
    file = f"cudadoctor-{named}.{SUFFIX[shell]}"
    head = comment(f"Written by cudadoctor for {prefix}")
    words, (keep, restore) = _words(shell), _KEEPING[shell]
    entered: list[str] = []
    left: list[str] = []
    for name, value in sound.items():
        kept = f"{KEPT}{name}"
        entered += [keep.format(name=name, kept=kept), words.variable(name, value)]
        left.insert(0, restore.format(name=name, kept=kept))
    return (
        (f"etc/conda/activate.d/{file}", f"{head}\n{_whole(shell, entered)}"),
        (f"etc/conda/deactivate.d/{file}", f"{head}\n{_whole(shell, left)}"),
    )


def kept_by_conda(
    m: Machine, variables: Mapping[str, str | None], shell: ShellName
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
        for path, what in files(prefix, lasting, shell)
    )


def note(m: Machine, variables: Mapping[str, str | None], shell: ShellName) -> str | None:
    """Where a conda environment would keep these variables, None elsewhere."""
    found = kept_by_conda(m, variables, shell)
    if not found:
        return None
    return f"To keep this in the conda environment, {found[0].file} can do it at each activation."


_NEWLINE = "_cudadoctor_newline"


def _words(shell: ShellName) -> Shell:
    return Posix(_NEWLINE) if shell == "bash" else shell_of(shell)


def _whole(shell: ShellName, lines: list[str]) -> str:
    """The lines, with what newlines in values need before and after them."""
    body = "\n".join(lines)
    if shell == "bash" and (first := Posix(_NEWLINE).newlines(body)):
        lines = [*first, *lines, f"unset {_NEWLINE}"]
    return "".join(f"{line}\n" for line in lines)


_KEEPING: dict[ShellName, tuple[str, str]] = {
    "bash": (
        'if [ -n "${{{name}+x}}" ]; then export {kept}="${name}"; fi',
        'if [ -n "${{{kept}+x}}" ]; then export {name}="${kept}"; unset {kept}; '
        "else unset {name}; fi",
    ),
    "fish": (
        "set -q {name}; and set -gx {kept} ${name}",
        "if set -q {kept}; set -gx {name} ${kept}; set -e {kept}; else; set -e {name}; end",
    ),
    "powershell": (
        "if (Test-Path Env:{name}) {{ $env:{kept} = $env:{name} }}",
        "if (Test-Path Env:{kept}) {{ $env:{name} = $env:{kept}; Remove-Item Env:{kept} }} "
        "else {{ Remove-Item Env:{name} -ErrorAction SilentlyContinue }}",
    ),
}
"""What keeps the earlier value of a variable when it is entered, and what brings it back."""
