"""What is run and written to make the environment, in the words of each tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from cudadoctor.installers import conda, pip
from cudadoctor.installers.tool import parent, within
from cudadoctor.plan.remedies.torch import remedy_for

if TYPE_CHECKING:
    from cudadoctor.installers.tool import Command
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.repair.setup.choosing import Chosen, Tools


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How the environment is made.

    python: the interpreter that it will have. files: names in the folder -> text, written before
    the commands run. alone: the tool makes the folder itself and takes none that is there.
    """

    tool: str
    python: str
    commands: tuple[Command, ...]
    change: PackageChange
    files: dict[str, str] = {}
    alone: bool = False
    note: str | None = None


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What every tool's recipe is made from."""

    chosen: Chosen
    folder: str
    tools: Tools
    kb: Knowledge
    build: TorchBuild
    change: PackageChange


def recipe(chosen: Chosen, folder: str, tools: Tools, kb: Knowledge) -> Recipe:
    """The recipe for what was chosen, in that folder (absolute)."""
    build = chosen.choice.build
    if build is None:
        raise ValueError("nothing was chosen, so nothing can be made")
    remedy = remedy_for(build, chosen.machine, kb)
    assert remedy.packages is not None
    wanted = _Wanted(
        chosen=chosen, folder=folder, tools=tools, kb=kb, build=build, change=remedy.packages
    )
    return {"pip": _venv, "uv": _uv, "conda": _conda, "pixi": _pixi}[chosen.tool](wanted)


def _venv(one: _Wanted) -> Recipe:
    """A virtual environment, and pip in it."""
    base, machine = one.chosen.base, one.chosen.machine
    assert base is not None, "pip fetches no Python"
    python = within(machine, one.folder)
    installed = pip.install(machine, one.change, python)
    commands = ((base.path, "-m", "venv", one.folder), *installed.commands)
    return Recipe(
        tool="pip", python=python, commands=commands, change=one.change, note=installed.note
    )


def _uv(one: _Wanted) -> Recipe:
    """A uv project: its pyproject.toml, and the environment .venv that `uv sync` makes."""
    base, machine = one.chosen.base, one.chosen.machine
    python = base.path if base else one.chosen.python
    uv = one.tools.uv or "uv"
    command: Command = (uv, "sync", "--project", one.folder, "--python", python)
    return Recipe(
        tool="uv",
        python=within(machine, parent(machine, one.folder, ".venv")),
        commands=(command,),
        change=one.change,
        files={"pyproject.toml": _file("pyproject", one)},
    )


def _conda(one: _Wanted) -> Recipe:
    """A conda environment with a channel's build of the same release and CUDA."""
    channels, specs = conda.packages_of(one.chosen.machine, one.kb, one.change)
    program = one.tools.conda or "conda"
    start: Command = (program, "create", "-y", "-p", one.folder, *channels)
    return Recipe(
        tool="conda",
        python=within(one.chosen.machine, one.folder, conda=True),
        commands=((*start, f"python={one.chosen.python}", *specs),),
        change=one.change,
        alone=True,
        note=conda.note_on(one.chosen.machine, one.kb, one.change, specs),
    )


def _pixi(one: _Wanted) -> Recipe:
    """A pixi project: its pixi.toml, and the environment that `pixi install` makes."""
    machine = one.chosen.machine
    manifest = parent(machine, one.folder, "pixi.toml")
    home = parent(machine, one.folder, ".pixi", "envs", "default")
    return Recipe(
        tool="pixi",
        python=within(machine, home, conda=True),
        commands=((one.tools.pixi or "pixi", "install", "--manifest-path", manifest),),
        change=one.change,
        files={"pixi.toml": _file("pixi", one)},
    )


def _file(kind: Literal["pyproject", "pixi"], one: _Wanted) -> str:
    from cudadoctor.installers.registry import project_file

    return project_file(kind, one.chosen.machine, one.kb, one.build, python=one.chosen.python)
