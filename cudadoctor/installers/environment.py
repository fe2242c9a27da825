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
    within,
)
from cudadoctor.model.findings import PackageChange
from cudadoctor.model.machine import Machine

_OWN_ENVIRONMENTS = frozenset({"venv", "uv", "conda", "conda-base", "pipx", "poetry"})


def is_closed(m: Machine) -> bool:
    """Whether the examined interpreter refuses packages: the system's own, by PEP 668."""
    return bool(m.python.externally_managed) and m.python.kind not in _OWN_ENVIRONMENTS


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
    # Debian and its kin keep venv in a package of its own.
    debian = {"debian", "ubuntu"} & {m.platform.distro, *(m.platform.distro_like or ())}
    manual = "This takes the system's package python3-venv (root: apt-get install python3-venv)."
    note = (
        "The system's Python takes no packages from pip (PEP 668), so this makes a virtual "
        f"environment in {folder}; run programs with its python."
    )
    return replace(
        installed,
        commands=(made, *installed.commands),
        manual=manual if debian and not found and not m.python.ensurepip else None,
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
        else:
            windows = m.platform.system == "Windows"
            launcher = ("py", f"-{version}") if windows else (f"python{version}",)
            made = (*launcher, "-m", "venv", folder)
            manual = (
                f"Python {version} must be installed: by the system's package manager, "
                "python.org or uv."
            )
        then = pip.install(m, change, python) if change else Written(tool="pip")
    note = f"The new environment lies in {folder}; run programs with its python."
    return replace(
        then, commands=(made, *then.commands), manual=manual, note=joined(note, then.note)
    )


def _uv_venv(uv: str, python: str, folder: str) -> Command:
    return (uv, "venv", "--allow-existing", "--python", python, folder)
