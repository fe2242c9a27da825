"""The commands of pytorch.org's page of previous versions, beside ours for the same machine.

    python benchmarks/previous_commands.py [--lines]

Each command is asked of cudadoctor on Linux and on Windows, for a machine that it is meant for: a
GPU that its build has code for, a driver whose own CUDA is that of the command (none for a CPU
command), a Python of its time, and another release of torch in the environment, with torchvision
and torchaudio; a conda environment for a command of conda. The wish is the release.

- equal: the same releases of all three, in the same variant, by the same tool.
- better: the same release of torch, in a build that fits by the second reading, and why it is
  another one than the page's: the page's command does not give what it is headed (on Windows it
  installs the CPU build), pairs other releases than torch's own wheels ask for, names a build that
  is not known to be published, or the page's build would work too and ours is as new as the driver.
- channel: conda-forge has the very release for that CUDA major, and the pytorch channel has ended.
- worse: anything else.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from grid_machines import (
    BEFORE_410,
    DESKTOP,
    DRIVERS,
    SERVER,
    WINDOWS_DRIVERS,
    Plain,
    machine_of,
)
from measuring import saved
from msgspec.structs import replace
from peer_choosers import CONDA_PLATFORMS
from prescription_check import faults
from second_reading import TABLES, Reading, Row, numbers, of_tables

from cudadoctor import knowledge
from cudadoctor.installers.registry import write
from cudadoctor.model.machine import Machine, Manager
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.solver.builds import best_build

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KB = knowledge.load()
PLATFORMS = {"linux": "linux_x86_64", "windows": "windows_amd64"}
BEFORE = {"linux": " ".join(BEFORE_410), "windows": "398.26 9.2 465.89 11.3"}
CARDS = sorted((*SERVER, *DESKTOP), key=lambda card: -card.weight)
GOOD = ("equal", "better", "channel")


class Command(NamedTuple):
    """One command of the page on one system. gives: the variant that it installs there."""

    tool: str
    system: str
    torch: str
    variant: str
    gives: str
    pins: dict[str, str]


class Ours(NamedTuple):
    """What cudadoctor answers. torch None: nothing. channel: of conda, "" for wheels.

    against: what the second reading has against it. ways: how many ways out are named.
    """

    torch: str | None = None
    variant: str = ""
    pins: Mapping[str, str] = MappingProxyType({})
    channel: str = ""
    why: str = ""
    against: tuple[str, ...] = ()
    ways: int = 0


def commands() -> Iterator[Command]:
    """Every command of the page for CUDA and the CPU, on both systems."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for row in tomllib.loads(text)["release"]:
        usual = [row["torch"], row["torchvision"], row["torchaudio"]]
        for tool in ("pip", "conda"):
            for variant in row.get(tool, "").split():
                pins = row.get("odd", {}).get(f"{tool} {variant}", usual)
                named = dict(zip(("torch", "torchvision", "torchaudio"), pins, strict=True))
                for system in PLATFORMS:
                    meant = row["usual"] if variant == "pypi" else variant
                    on_pypi = "cpu" if system == "windows" else meant
                    gives = on_pypi if variant == "pypi" else variant
                    yield Command(tool, system, row["torch"], meant, gives, named)


def meant_for(command: Command, reading: Reading) -> Plain | None:
    """A machine that the command is meant for, None where the tables know no such build."""
    platform = PLATFORMS[command.system]
    here = [row for row in reading.builds if row["torch"] == command.torch]
    mine = [row for row in here if row["platform"] == platform]
    row = _like(command, mine)
    if row is None:
        return None
    pythons = [python for python in row["pythons"] if not python.endswith("t")]

    def lacking(python: str) -> int:
        here = {"platform": platform, "python": python}
        names = ("torchvision", "torchaudio")
        return sum(reading.without_wheel(name, row[name], here) for name in names)

    plain: Plain = {
        "kind": command.system,
        "platform": platform,
        "glibc": "2.35" if command.system == "linux" else None,
        "python": min(reversed(pythons), key=lacking),
        "names": (),
        "capabilities": (),
        "driver": "1",
        "level": "0.0",
        "numbers": command.system,
        "by_level": False,
        "told": True,
        "unnamed": True,
        "installed": _other(command.torch, reading, platform),
        "wish": command.torch,
    }
    return plain if command.variant == "cpu" else _with_gpu(plain, command, row, reading)


def _like(command: Command, mine: list[Row]) -> Row | None:
    """The row of the command's build; of one of conda's alone, the nearest CUDA of the major."""
    if command.variant == "cpu":
        return next((row for row in mine if row["cuda"] is None), None)
    cuda = _cuda(command.variant)
    alike = [row for row in mine if row["cuda"] and numbers(row["cuda"])[0] == cuda[0]]
    near = sorted(alike, key=lambda row: abs(numbers(row["cuda"])[1] - cuda[1]))
    return near[0] if near else None


def _with_gpu(plain: Plain, command: Command, row: Row, reading: Reading) -> Plain | None:
    """The most usual GPU that this build serves, with a driver of the command's own CUDA."""
    told = f"{BEFORE[command.system]} {WINDOWS_DRIVERS if command.system == 'windows' else DRIVERS}"
    pairs = list(zip(told.split()[::2], told.split()[1::2], strict=True))
    # Of a build that was never published for Windows, the code of the one for Linux is meant.
    platform = plain["platform"] if row["archs"] else "linux_x86_64"
    number = reading.number(command.torch, row["variant"], platform)
    cuda = ".".join(map(str, _cuda(command.variant)))
    for driver, level in [pair for pair in pairs if pair[1] == cuda][::-1]:
        for card in CARDS:
            branch = int(driver.split(".")[0])
            served = reading.code(number, card.capability, sound=True) == "native"
            if served and card.first <= branch <= (card.last or 999):
                gpu = {"names": (card.name,), "capabilities": (card.capability,)}
                return {**plain, **gpu, "driver": driver, "level": level}
    return None


def _other(torch: str, reading: Reading, platform: str) -> Plain:
    """Another release that somebody has: the next one, with its companions, for the CPU."""
    rows = [
        row
        for row in reading.builds
        if row["platform"] == platform and row["cuda"] is None and row["torchaudio"]
    ]
    order = sorted({row["torch"] for row in rows} - {torch}, key=numbers)
    near = min(order, key=lambda one: abs(_place(one) - _place(torch)))
    row = next(row for row in rows if row["torch"] == near)
    packages = {name: row[name] for name in ("torchvision", "torchaudio")}
    return {"torch": near, "variant": "cpu", "cuda": None, "packages": packages, "wheels": ()}


def _place(torch: str) -> float:
    major, minor, patch = numbers(torch)
    return major * 14 + minor + patch / 10


def answer(command: Command, plain: Plain) -> Ours:
    """What cudadoctor prescribes there, and what the second reading has against it."""
    machine = machine_of(plain)
    if command.tool == "conda":
        machine = in_conda(machine)
    choice = best_build(machine, KB, keep=plain["wish"])
    said = " ".join(f"{other.variant}: {other.reason}" for other in choice.why_not)
    if choice.build is None:
        against = tuple(faults(choice, None, "", plain, READING))
        return Ours(why=said, against=against, ways=len(choice.alternatives))
    remedy = remedy_for(choice.build, machine, KB)
    assert remedy.packages is not None
    variant, note = choice.build.variant, remedy.note or ""
    if command.tool == "pip":
        against = tuple(faults(choice, remedy.packages, note, plain, READING))
        pins = _pins(remedy.packages.install)
        return Ours(str(choice.build.torch), variant, pins, why=f"{note} {said}", against=against)
    made = write(machine, KB, remedy.packages)
    install = next(argv for argv in made.commands if "install" in argv)
    specs = {name: pin.lstrip("=") for name, _, pin in (word.partition("=") for word in install)}
    torch = next(
        specs[name] for name in ("pytorch", "pytorch-gpu", "pytorch-cpu") if specs.get(name)
    )
    cuda = specs.get("pytorch-cuda") or specs.get("cudatoolkit")
    kind = f"cu{cuda.replace('.', '')}" if cuda else variant
    channel = "pytorch" if "pytorch-cuda" in specs or "cudatoolkit" in specs else ""
    channel = "pytorch" if "cpuonly" in specs else channel or "conda-forge"
    return Ours(torch, kind, {**specs, "torch": torch}, channel, f"{made.note or ''} {said}")


def in_conda(machine: Machine) -> Machine:
    """The same machine with a conda environment that conda filled."""
    prefix = "C:\\conda\\envs\\t" if machine.platform.system == "Windows" else "/opt/conda/envs/t"
    conda = Manager(name="conda", path="conda")
    python = replace(machine.python, kind="conda", prefix=prefix, managers=(conda,))
    packages = tuple(replace(package, installer="conda") for package in machine.packages or ())
    torch = replace(machine.torch, installer="conda")
    return replace(machine, python=python, packages=packages, torch=torch)


def _pins(wanted: Iterable[str]) -> dict[str, str]:
    return {name: pin for name, _, pin in (one.partition("==") for one in wanted)}


def verdict(command: Command, ours: Ours, reading: Reading) -> tuple[str, str]:
    """The class of our answer, and why it is another one than the page's."""
    platform = PLATFORMS[command.system]
    page = reading.row(command.torch, command.gives, platform)
    unpublished = page is None or page["published"] is not True
    if ours.against:
        return "worse", "; ".join(ours.against)
    if ours.torch is None and unpublished and ours.ways:
        return "better", UNPUBLISHED
    if ours.torch != command.torch:
        return "worse", f"{ours.torch} {ours.why}"
    family = {name: ours.pins.get(name) for name in command.pins}
    if ours.channel == "conda-forge":
        told = "pytorch channel was discontinued" in ours.why
        return ("channel", "") if told and _on_forge(command, platform) else ("worse", ours.why)
    same = ours.variant == command.gives
    if same and family == command.pins:
        return "equal", ""
    row = reading.row(command.torch, ours.variant, platform)
    paired = row and {"torch": row["torch"], **{n: row[n] for n in ("torchvision", "torchaudio")}}
    if family not in (command.pins, paired):
        return "worse", f"{family}, the page has {command.pins}"
    if same:
        return "better", "it pairs other releases than their wheels ask for"
    if command.gives != command.variant:
        return "better", "on Windows it installs the CPU build"
    if unpublished:
        return "better", UNPUBLISHED
    if f"{command.gives}: It would also work" in ours.why:
        return "better", "its build would work too, and ours is the default or of newer CUDA"
    return "worse", "unexplained"


UNPUBLISHED = "its build is not known to be published for this system"


def _on_forge(command: Command, platform: str) -> bool:
    """Whether conda-forge built that release there, for that CUDA major or the CPU."""
    text = (TABLES / "conda.json").read_text(encoding="utf-8")
    rows = [row for row in json.loads(text)["conda_forge"] if row["torch"] == command.torch]
    made = [pair.partition(":") for row in rows for pair in row["cuda"]]
    here = [cuda for where, _, cuda in made if where == CONDA_PLATFORMS[platform]]
    wanted = None if command.variant == "cpu" else _cuda(command.variant)[0]
    return any(wanted in (None, numbers(cuda)[0]) for cuda in here)


def _cuda(variant: str) -> tuple[int, int]:
    """cu126 is (12, 6)."""
    return int(variant[2:-1]), int(variant[-1])


READING = of_tables()


def measured() -> tuple[dict[str, Any], list[str]]:
    """The figures, and a line for each command."""
    found, because, exact = Counter[str](), Counter[str](), Counter[str]()
    by_tool: dict[str, Counter[str]] = {}
    lines = []
    for command in commands():
        kind, why = judged(command, command.torch)
        name = f"{command.tool} {command.system}"
        if command.tool == "pip":
            exact[judged(command, f"{command.torch}+{command.variant}")[0]] += 1
        by_tool.setdefault(name, Counter())[kind] += 1
        found[kind] += 1
        if kind == "better":
            because[why] += 1
        lines.append(f"{kind}: {name} {command.torch} {command.variant}: {why}")
    total, good = sum(found.values()), sum(found[kind] for kind in GOOD)
    figures = {
        "commands": total,
        "equal_or_better": good,
        "share": round(good / total, 4),
        "verdicts": dict(found),
        "better_because": dict(because),
        "by_tool_and_system": {name: dict(kinds) for name, kinds in by_tool.items()},
        "pip_with_the_variant_named_too": dict(exact),
        "worse": [line for line in lines if line.startswith("worse")],
    }
    return figures, lines


def judged(command: Command, wish: str) -> tuple[str, str]:
    plain = meant_for(command, READING)
    if plain is None:
        return "worse", "the tables have no such release"
    return verdict(command, answer(command, {**plain, "wish": wish}), READING)


def main(arguments: list[str]) -> int:
    figures, lines = measured()
    if "--lines" in arguments:
        print("\n".join(lines))
    else:
        saved("previous_commands", figures)
    return 0 if figures["share"] >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
