"""The environment that commands address: the examined one, or a new one if that is wiser."""

from msgspec.structs import replace

from cudadoctor.installers import conda, pip, uv
from cudadoctor.installers.tool import (
    Command,
    Written,
    folder_for,
    interpreter,
    joined,
    manager,
    parent,
    venv_package,
    within,
)
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine

_OWN_ENVIRONMENTS = frozenset({"venv", "uv", "conda", "conda-base", "pipx", "poetry"})


def is_closed(m: Machine) -> bool:
    """Whether the examined interpreter refuses packages: the system's own, by PEP 668."""
    return bool(m.python.externally_managed) and m.python.kind not in _OWN_ENVIRONMENTS


def is_apart(m: Machine) -> bool:
    """Whether packages go into a new environment.

    The system's own Python takes none, or has no pip, which only root can add; and an image of
    Apptainer is read-only.
    """
    bare = m.python.kind == "system" and m.python.pip is False and not manager(m, "uv")
    return is_closed(m) or _is_sealed(m) or (bare and m.platform.system == "Linux")


def _is_sealed(m: Machine) -> bool:
    inside = (m.python.prefix or "").startswith(("/usr", "/opt"))
    return m.container.kind == "apptainer" and inside


def beside(m: Machine, change: PackageChange) -> Written:
    """The change in a new environment made from an interpreter that takes no packages."""
    folder = folder_for(m, "torch")
    fresh = replace(change, remove=())
    made: Command
    if found := manager(m, "uv"):
        made = _uv_venv(found, interpreter(m), folder)
        installed = uv.install(m, fresh, found, within(m, folder))
    else:
        made = (interpreter(m), "-m", "venv", folder)
        installed = pip.install(m, fresh, within(m, folder))
    why = "The system Python does not accept packages from pip (PEP 668)"
    if _is_sealed(m):
        why = "An Apptainer image is read-only"
    elif not is_closed(m):
        why = "The system Python has no pip"
    note = (
        f"{why}, so this step creates an environment in {folder}. Run your programs with "
        f"{within(m, folder)}."
    )
    return replace(
        installed,
        commands=(made, *installed.commands),
        system=() if found or m.python.ensurepip else venv_package(m),
        note=joined(note, installed.note),
    )


def new_environment(m: Machine, version: str, change: PackageChange | None) -> Written:
    """An environment with another Python, and the change in it."""
    folder = folder_for(m, f"torch-py{version.replace('.', '')}")
    python, manual = within(m, folder), None
    if found := manager(m, "uv"):
        made = _uv_venv(found, version, folder)
        then = uv.install(m, change, found, python) if change else Written(tool="uv")
    else:
        program = manager(m, *conda.TOOL.programs)
        if program and (m.python.kind or "").startswith("conda"):
            made = (program, "create", "-y", "-p", folder, "-c", "conda-forge")
            made = (*made, f"python={version}", "pip")
            python = within(m, folder, conda=True)
        elif fetched := _fetched_uv(m, folder):
            before, start = fetched
            made = _uv_venv(start[0], version, folder)
            installed = uv.install(m, change, start[0], python) if change else Written(tool="uv")
            words = (made, *installed.commands)
            commands = (*before, *((*start, *argv[1:]) for argv in words))
            note = (
                f"This step uses uv to download Python {version}. Run your programs with {python}."
            )
            return replace(installed, commands=commands, note=joined(note, installed.note))
        else:
            windows = m.platform.system == "Windows"
            launcher = ("py", f"-{version}") if windows else (f"python{version}",)
            made = (*launcher, "-m", "venv", folder)
            manual = (
                f"First install Python {version} with the system's package manager or from "
                "python.org. `uv python install` also works and does not need root."
            )
        then = pip.install(m, change, python) if change else Written(tool="pip")
    note = f"Run your programs with {python}."
    return replace(
        then, commands=(made, *then.commands), manual=manual, note=joined(note, then.note)
    )


_UV_FROM = (3, 8)
"""The oldest Python that uv is installed with."""


def _fetched_uv(m: Machine, folder: str) -> tuple[tuple[Command, ...], Command] | None:
    """How to get uv, which brings any Python without root, and how it is called then.

    Within the folder of the new environment: the examined one stays as it is.
    """
    version = m.python.version
    if version is None or version.release[:2] < _UV_FROM or m.python.bits == 32:
        return None
    if m.python.ensurepip is False:
        return None
    place = parent(m, folder, "uv")
    own = within(m, place)
    made = (interpreter(m), "-m", "venv", place)
    return (made, (own, "-m", "pip", "install", "uv")), (own, "-m", "uv")


def _uv_venv(uv: str, python: str, folder: str) -> Command:
    return (uv, "venv", "--allow-existing", "--python", python, folder)
