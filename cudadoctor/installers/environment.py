"""The environment that commands address: the examined one, or a new one where that is wiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cudadoctor.installers import pip, uv
from cudadoctor.installers.address import interpreter, manager, parent, within
from cudadoctor.installers.written import Command, Written, joined

if TYPE_CHECKING:
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_OWN_ENVIRONMENTS = frozenset({"venv", "uv", "conda", "conda-base", "pipx", "poetry"})


BESIDE = ".venv-"
"""How the name of a new environment begins that is made where the reader stands."""


def is_closed(m: Machine) -> bool:
    """Whether the examined interpreter refuses packages: the system's own, by PEP 668."""
    return bool(m.python.externally_managed) and m.python.kind not in _OWN_ENVIRONMENTS


def beside(m: Machine, change: PackageChange) -> Written:
    """The change in a new environment made from an interpreter that takes no packages."""
    folder = folder_for(m, "torch")
    fresh = msgspec.structs.replace(change, remove=())
    made: Command
    if found := manager(m, "uv"):
        made = (found, "venv", "--allow-existing", "--python", interpreter(m), folder)
        installed = uv.install(m, fresh, found, within(m, folder))
    else:
        made = (interpreter(m), "-m", "venv", folder)
        installed = pip.install(m, fresh, within(m, folder))
    note = joined(
        "The system's Python takes no packages from pip (PEP 668), so this makes a virtual "
        f"environment in {folder}; run programs with its python.",
        installed.note,
    )
    commands = (made, *installed.commands)
    manual = None if found else _before_venv(m)
    return Written(tool=installed.tool, commands=commands, manual=manual, note=note)


def new_environment(m: Machine, version: str, change: PackageChange | None) -> Written:
    """An environment with another Python, and the change in it."""
    folder = folder_for(m, f"torch-py{version.replace('.', '')}")
    python = within(m, folder)
    if found := manager(m, "uv"):
        made: Command = (found, "venv", "--allow-existing", "--python", version, folder)
        then = uv.install(m, change, found, python) if change else Written(tool="uv")
        return _made(made, then, folder)
    conda = manager(m, "mamba", "micromamba", "conda")
    if conda and (m.python.kind or "").startswith("conda"):
        made = (
            conda,
            "create",
            "-y",
            "-p",
            folder,
            "-c",
            "conda-forge",
            f"python={version}",
            "pip",
        )
        python = within(m, folder, conda=True)
    else:
        made = (*_launcher(m, version), "-m", "venv", folder)
    then = pip.install(m, change, python) if change else Written(tool="pip")
    written = _made(made, then, folder)
    if conda and made[0] == conda:
        return written
    text = f"Python {version} must be installed: by the system's package manager, python.org or uv."
    return msgspec.structs.replace(written, manual=text)


def _before_venv(m: Machine) -> str | None:
    """What Debian and its kin keep in a package of its own."""
    debian = {"debian", "ubuntu"} & {m.platform.distro, *(m.platform.distro_like or ())}
    if not debian or m.python.ensurepip:
        return None
    return "This takes the system's package python3-venv (root: apt-get install python3-venv)."


def _made(made: Command, then: Written, folder: str) -> Written:
    note = joined(f"The new environment lies in {folder}; run programs with its python.", then.note)
    return Written(tool=then.tool, commands=(made, *then.commands), note=note)


def _launcher(m: Machine, version: str) -> Command:
    return ("py", f"-{version}") if m.platform.system == "Windows" else (f"python{version}",)


def folder_for(m: Machine, name: str) -> str:
    """Where a new environment of that name is made."""
    home = m.identity.home
    if not home or m.redacted:
        return f"{BESIDE}{name}"
    return parent(m, home, ".venvs", name)
