"""Environment variables as texts: for a shell at once, and for a conda environment for good.

conda runs every script in `etc/conda/activate.d` of an environment when it is activated, and those
in `etc/conda/deactivate.d` when it is left. The first keeps what a variable held before, the second
brings that back.
"""

from collections.abc import Mapping

from cudadoctor.model.findings import Edit
from cudadoctor.model.machine import Machine
from cudadoctor.render.shells import VARIABLE, Posix, ShellName, comment, shell_of

KEPT = "CUDADOCTOR_BEFORE_"
"""Begins the name of the variable that keeps an earlier value while the environment is active."""

_NEWLINE = "_cudadoctor_newline"

FOR_GOOD = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE"}
    | {"CUDA_HOME", "CUDA_PATH", "CUDACXX", "CC", "CXX", "CUDAHOSTCXX"}
)
"""What an environment may keep: where its programs find things.

Others belong to one job or launch (CUDA_VISIBLE_DEVICES, RANK, WORLD_SIZE), or cure or trace one
program and slow others (NCCL_*, CUDA_LAUNCH_BLOCKING): those are set for a shell.
"""


def files(
    prefix: str, variables: Mapping[str, str | None], shell: ShellName
) -> tuple[tuple[str, str], ...]:
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
