"""What setup shows: what is made and how, the machine, the build and why; then how to use it."""

import textwrap
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from cudadoctor.cli.speech import current, say, spoken
from cudadoctor.installers.registry import BY_NAME
from cudadoctor.installers.tool import Command, Recipe, Wanted
from cudadoctor.knowledge import Knowledge, TorchBuild
from cudadoctor.model.machine import Machine, OptInt, OptStr
from cudadoctor.model.trust import typed
from cudadoctor.render import inert, shells, summary
from cudadoctor.render.shells import ShellName, shell_of
from cudadoctor.render.terminal import Line
from cudadoctor.repair.begin import shown as bytes_shown
from cudadoctor.repair.begin import unpacked
from cudadoctor.repair.setup.choosing import Chosen, NoWay
from cudadoctor.solver.builds import Choice
from cudadoctor.solver.companions import download_of


class Room(Struct, frozen=True, kw_only=True):
    """What is downloaded and what it takes on disk. None not known. counted: from the real files.

    free_bytes: on the file system of the folder.
    """

    download_bytes: OptInt
    installed_bytes: OptInt
    counted: bool = False
    free_bytes: OptInt = None

    @property
    def too_small(self) -> bool:
        needed, free = self.installed_bytes, self.free_bytes
        return needed is not None and free is not None and free < needed


def room(
    build: TorchBuild, kb: Knowledge, sizes: Iterable[OptInt] = (), free: OptInt = None
) -> Room:
    """The room for a build; sizes: of the files that a resolver found, in bytes."""
    found = tuple(sizes)
    counted = bool(found) and None not in found
    download = sum(size or 0 for size in found) if counted else download_of(build, kb)
    return Room(
        download_bytes=download,
        installed_bytes=None if download is None else unpacked(download),
        counted=counted,
        free_bytes=free,
    )


MARGIN, INDENT = 12, 6
LEAST_ROOM = 20
_RISKY = frozenset("\"'$`\\!")
"""Activation scripts of older Pythons hand these to the shell as code."""


def plan(
    chosen: Chosen, recipe: Recipe, room: Room, verified: OptStr, width: int
) -> Iterator[Line]:
    """What is made and by which commands; then the machine, the build and why, and its size."""
    base, folder = chosen.base, recipe.wanted.folder
    what = spoken(BY_NAME[chosen.tool].makes)
    yield from heading(
        say("cudadoctor will create {what} in {folder}:", what=what, folder=folder), width
    )
    if recipe.files:
        names = ", ".join(recipe.files)
        yield Line(((" " * INDENT + inert(say("write {files}", files=names)), "green"),))
    for command in recipe.commands:
        argv = typed(*command)
        for line in shells.command_lines((argv,), chosen.machine, "", width - INDENT):
            # Folded, and never wrapped: a command must survive being copied.
            yield Line(((" " * INDENT + inert(line), "green"),))
    yield Line(())
    yield from _machine(chosen.machine, width)
    python = f"{base.version} ({base.path})" if base else ""
    if base is None:
        python = say("{version}, downloaded by {tool}", version=chosen.python, tool=chosen.tool)
    yield from rows("Python", [python, *chosen.because], width)
    yield from _build(chosen.choice, recipe.wanted, width)
    if recipe.note:
        yield from rows(say("Note"), [spoken(recipe.note)], width)
    if verified:
        yield from rows(say("Verified"), [spoken(verified)], width)
    yield from rows(say("Size"), [size(room)], width)


def heading(text: str, width: int) -> Iterator[Line]:
    """A sentence over the whole width."""
    for part in textwrap.wrap(inert(text), width, break_long_words=False, break_on_hyphens=False):
        yield Line(((part, "bold"),))


def rows(label: str, texts: list[str], width: int) -> Iterator[Line]:
    """Sentences beneath each other, right of their label."""
    wrapper = textwrap.TextWrapper(
        max(LEAST_ROOM, width - MARGIN), break_long_words=False, break_on_hyphens=False
    )
    for text in texts:
        for part in wrapper.wrap(inert(text)) or [""]:
            yield _line(label, part)
            label = ""


def no_way(found: NoWay, machine: Machine, width: int) -> Iterator[Line]:
    """Why nothing is made, and what would help."""
    yield from heading(say("No PyTorch build works in a new environment on this system."), width)
    yield Line(())
    yield from rows(say("Instead"), list(map(spoken, found.ways_out)), width)
    yield from rows(say("Why"), list(map(spoken, found.why)), width)
    if found.choice is not None:
        yield from rows(say("Rejected"), _rejected(found.choice), width)
    yield from _machine(machine, width)


def _machine(machine: Machine, width: int) -> Iterator[Line]:
    known = dict(summary.machine_rows(machine, current()))
    yield from rows("GPU", [known[say("gpu")]], width)
    yield from rows(say("Driver"), [known[say("driver")]], width)


def _build(choice: Choice, wanted: Wanted, width: int) -> Iterator[Line]:
    build = wanted.build
    pinned = f"torchvision=={build.torchvision}" in wanted.change.install
    beside = f" + torchvision {build.torchvision}" if pinned else ""
    yield _line(say("Build"), f"torch {build.torch} {build.variant}{beside}", "bold")
    yield from rows(say("Why"), list(map(spoken, choice.why)), width)
    if build.cuda is None and wanted.machine.platform.system != "Darwin":
        yield from rows(
            "",
            [
                say(
                    "With a CPU build, the training step shows that torch works, but it does not "
                    "test a GPU."
                )
            ],
            width,
        )
    yield from rows(say("Rejected"), _rejected(choice), width)


def _rejected(choice: Choice) -> list[str]:
    said = (replace(why, reason=spoken(why.reason)) for why in choice.why_not)
    return summary.rejection_reasons(said)


def _line(label: str, text: str, style: str = "") -> Line:
    return Line(((f"{f'  {label}' if label else '':<{MARGIN}}", "dim"), (text, style)))


def shown(command: Command, machine: Machine) -> str:
    """The command as it is pasted into the shell of this machine."""
    return inert(shells.command_line(typed(*command), machine))


def size(room: Room) -> str:
    """What is downloaded and what it takes, as far as that is known."""
    free = ""
    if room.free_bytes is not None:
        free = say("; {size} free", size=bytes_shown(room.free_bytes))
    if room.download_bytes is None or room.installed_bytes is None:
        return say("not known") + free
    template = "about {download} to download, about {installed} on disk"
    if room.counted:
        template = "{download} to download, about {installed} on disk"
    download, installed = bytes_shown(room.download_bytes), bytes_shown(room.installed_bytes)
    return say(template, download=download, installed=installed) + free


def too_small(room: Room, folder: str) -> str:
    """The sentence for a disk that will not do."""
    return say(
        "Nothing was created: about {needed} is needed in {folder}, but only {free} is available.",
        folder=folder,
        needed=bytes_shown(room.installed_bytes or 0),
        free=bytes_shown(room.free_bytes or 0),
    )


def activation(recipe: Recipe) -> dict[str, str]:
    """For each shell (or tool) the line that makes the environment its own."""

    def line(shell: ShellName, *argv: str) -> str:
        return shell_of(shell).shown(typed(*argv))

    machine, folder = recipe.wanted.machine, recipe.wanted.folder
    windows = machine.platform.system == "Windows"
    own = {name: shown(argv, machine) for name, argv in recipe.use.items()}
    if not recipe.scripts or _RISKY & set(folder.replace("\\", "/") if windows else folder):
        return own
    inside = recipe.python.rpartition("\\" if windows else "/")[0]
    if windows:
        return {"powershell": line("powershell", f"{inside}\\Activate.ps1")} | own
    return {
        "bash": line("bash", "source", f"{inside}/activate"),
        "fish": line("fish", "source", f"{inside}/activate.fish"),
    } | own


def use(recipe: Recipe, width: int) -> Iterator[Line]:
    """How to use the environment from now on."""
    found = activation(recipe)
    yield from heading(say("To use it:"), width)
    for name, text in found.items():
        yield _line(name, inert(text), "green")
    yield _line("python", shown((recipe.python,), recipe.wanted.machine), "green")
    if recipe.scripts and found.keys() == recipe.use.keys():
        why = say(
            "Run this environment's Python by its full path; activation scripts would execute "
            "parts of the folder name as code."
        )
        yield from rows(say("Note"), [why], width)
