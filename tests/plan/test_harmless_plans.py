"""No plan costs anybody a torch: what is removed can be had again, and is another one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from packaging.version import Version
from scenario_reader import healthy_machine, read_scenario, scenario_paths
from share import share, share_of_each_cause

from cudadoctor import knowledge
from cudadoctor.model.findings import Diagnosis, PackageChange, Severity, Step, Wishes
from cudadoctor.model.machine import Machine
from cudadoctor.plan.planner import plan
from cudadoctor.plan.remedies.torch import installed_row, installed_variant
from cudadoctor.repair.begin import folder_made
from cudadoctor.rules.diagnose import diagnose
from cudadoctor.solver.demand import platform_of, python_of

KB = knowledge.load()
Facts = dict[str, Any]


def _python(version: str, **more: Any) -> Facts:
    return {"version": Version(version), "free_threaded": False} | more


PYTHONS: dict[str, Facts] = {
    **{f"3.{minor}": _python(f"3.{minor}.4") for minor in range(8, 17)},
    "3.13t": _python("3.13.4", free_threaded=True),
    "3.14t": _python("3.14.4", free_threaded=True),
    "3.15t": _python("3.15.0", free_threaded=True),
    "32-bit": _python("3.11.4", bits=32),
    "PyPy": _python("3.11.4", implementation="PyPy"),
    "unknown": {"version": None, "free_threaded": None},
}
PLATFORMS: dict[str, Facts] = {
    "x86_64": {},
    "aarch64": {"machine": "aarch64"},
    "ppc64le": {"machine": "ppc64le"},
    "musl": {"libc": "musl", "glibc": None},
    "glibc-2.17": {"libc": "glibc", "glibc": Version("2.17")},
    "glibc-2.27": {"libc": "glibc", "glibc": Version("2.27")},
    "glibc-unknown": {"glibc": None},
    "windows": {"system": "Windows", "libc": None, "glibc": None},
    "windows-arm": {"system": "Windows", "machine": "aarch64", "libc": None, "glibc": None},
    "macos": {"system": "Darwin", "machine": "arm64", "libc": None, "glibc": None},
    "macos-intel": {"system": "Darwin", "machine": "x86_64", "libc": None, "glibc": None},
    **{
        f"l4t-{release}": {"machine": "aarch64", "jetson": True, "l4t": Version(release)}
        for release in ("32.7", "35.4", "36.4", "38.2", "39.0")
    },
    "l4t-unknown": {"machine": "aarch64", "jetson": True, "l4t": None},
}
MUSL = PLATFORMS["musl"]
ON_EVERY_PLATFORM = ("3.9", "3.11", "3.14t")
WITH_EVERY_PYTHON = ("x86_64", "aarch64", "l4t-36.4")
MANAGERS: tuple[str, ...] = ("pip", "uv", "conda", "pixi", "docker")


@cache
def sick() -> tuple[tuple[str, Machine], ...]:
    """Every scenario in which something is found."""
    read = (read_scenario(path) for path in scenario_paths())
    return tuple((case.name, case.machine) for case in read if case.expect.findings)


def some(start: int) -> list[tuple[str, Machine]]:
    """Of each cause every third scenario; from another one for each start."""
    chosen = {*share_of_each_cause((name for name, _ in sick()), 3, start)}
    return [(name, machine) for name, machine in sick() if name in chosen]


def moved(m: Machine, platform: Facts, python: Facts) -> Machine:
    return msgspec.structs.replace(
        m,
        platform=msgspec.structs.replace(m.platform, **platform),
        python=msgspec.structs.replace(m.python, **python),
    )


def pin_of(change: PackageChange) -> str | None:
    return next(
        (requirement for requirement in change.install if requirement.split("==")[0] == "torch"),
        None,
    )


def removes_torch(step: Step) -> bool:
    gone = [argv for argv in step.commands if {"uninstall", "remove"} & {*argv}]
    return any({"torch", "pytorch"} & {*argv} for argv in gone)


def asks_first(step: Step) -> bool:
    """Whether a resolver has its say before anything is removed."""
    verbs = [
        next((w for w in argv if w in ("--dry-run", "uninstall")), "") for argv in step.commands
    ]
    return "--dry-run" in verbs and verbs.index("--dry-run") < verbs.index("uninstall")


def proven(m: Machine, change: PackageChange) -> bool:
    """By the tables' wheel tags; what the installed wheel needs stands in for unknown facts."""
    pin, python, glibc = pin_of(change), python_of(m), m.platform.glibc
    if pin is None or m.platform.libc == "musl" or m.python.bits == 32:
        return False
    if m.python.implementation not in (None, "CPython"):
        return False
    board = KB.jetson_build(m.platform.l4t.major) if m.platform.l4t else None
    if board and change.index == board.index:
        return board is not None and board.python == python
    own = installed_row(m, KB)
    pythons = {python} if python else set(own.pythons) if own else {"?"}
    glibc = glibc or (own.glibc if own else None)
    build = KB.build_of(Version(pin.split("==")[1]), change.variant or "", platform_of(m) or "")
    if build is None or not build.published or not pythons <= {*build.pythons}:
        return False
    return build.glibc is None or (glibc is not None and glibc >= build.glibc)


def is_the_same(m: Machine, change: PackageChange) -> bool:
    pin, version = pin_of(change), m.torch.version
    if m.torch.installed is False or version is None or pin != f"torch=={version.public}":
        return False
    build = KB.build_of(Version(version.public), change.variant or "", platform_of(m) or "")
    sure = build.archs if build is not None and not build.archs_uncertain else None
    rebuilt = bool(sure and m.torch.archs) and {*(m.torch.archs or ())} != {*(sure or ())}
    return installed_variant(m) == change.variant and not rebuilt


def does_nothing(m: Machine, change: PackageChange, step: Step) -> bool:
    """Whether pip finds torch, or everything it is asked for, already installed."""
    asked = [word for argv in step.commands for word in argv if "==" in word]
    wanted = dict(word.split("==") for word in asked if "*" not in word)
    if step.tool not in ("pip", "uv") or "venv" in step.commands[0]:
        return False
    stay = [name for name, version in wanted.items() if name not in change.remove]
    kept = [name for name in stay if _present(m, name) == wanted[name].split("+")[0]]
    bare = m.torch.copies and m.torch.copies[0].kind in ("folder", "local")
    return bool(kept) and not bare and ("torch" in kept or len(kept) == len(wanted))


def _present(m: Machine, name: str) -> str | None:
    if name == "torch" and m.torch.version is not None and m.torch.installed:
        return m.torch.version.public
    package = m.package(name)
    return package.version.split("+")[0] if package else None


def complaints(m: Machine, diagnosis: Diagnosis, wishes: Wishes) -> Iterator[str]:
    for step in plan(m, KB, diagnosis, wishes).steps:
        change = step.packages
        if removes_torch(step) and not asks_first(step) and not (change and proven(m, change)):
            yield f"{step.id} removes torch without a proof: {step.commands}"
        if step.id == "install-torch" and change and is_the_same(m, change):
            yield f"{step.id} installs what is there: {step.commands}"
        if change and step.commands and does_nothing(m, change, step):
            yield f"{step.id} is satisfied with what is there: {step.commands}"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_plan_removes_a_torch_that_cannot_be_had_again(platform: str) -> None:
    pythons = list(PYTHONS) if platform in WITH_EVERY_PYTHON else ON_EVERY_PLATFORM
    bad = []
    for number, (name, machine) in enumerate(some([*PLATFORMS].index(platform))):
        # A third of the Pythons each: together, every Python is tried on every platform.
        for python in pythons[(number + len(platform)) % 3 :: 3]:
            m = moved(machine, PLATFORMS[platform], PYTHONS[python])
            bad += [
                f"{name}, {python}: {complaint}"
                for complaint in complaints(m, diagnose(m, KB), Wishes())
            ]
    assert not bad, bad[:5]


@pytest.mark.parametrize("manager", MANAGERS)
def test_no_manager_and_no_wish_removes_one_either(manager: str) -> None:
    bad = []
    for number, (name, machine) in enumerate(some(MANAGERS.index(manager))):
        for python in share(("3.9", "3.12"), 2, number):
            m = moved(machine, {}, PYTHONS[python])
            diagnosis = diagnose(m, KB)
            for torch in (None, "2.6", "2.14.1+cu126"):
                wishes = Wishes(manager=manager, torch=torch)
                bad += [
                    f"{name}, {torch}: {complaint}"
                    for complaint in complaints(m, diagnosis, wishes)
                ]
    assert not bad, bad[:5]


def test_the_check_itself_sees_a_harmful_plan() -> None:
    m = moved(healthy_machine("orin-jetson"), {}, PYTHONS["3.11"])
    board = KB.jetson_build(36)
    assert board is not None
    assert not proven(
        m, PackageChange(install=("torch==2.8.0",), remove=("torch",), index=board.index)
    )
    pascal = PackageChange(install=("torch==2.6.0",), remove=("torch",), variant="cu124")
    assert proven(healthy_machine("rtx4090-linux"), pascal)
    assert not proven(moved(healthy_machine("rtx4090-linux"), {}, PYTHONS["3.14"]), pascal)


def steps_of(m: Machine, torch: str | None = None) -> dict[str, Step]:
    return {step.id: step for step in plan(m, KB, diagnose(m, KB), Wishes(torch=torch)).steps}


def scenario(name: str) -> Machine:
    return next(machine for known, machine in sick() if known == name)


def test_a_jetson_with_another_python_gets_an_environment_beside_its_own() -> None:
    m = moved(scenario("jetson-build--generic-wheel"), {}, PYTHONS["3.11"])
    step = steps_of(m)["jetson-torch"]
    folder = "/home/ada/.venvs/torch-py310"
    assert step.commands[0][1:] == ("-m", "venv", f"{folder}/uv")
    assert step.commands[2][-3:] == ("--python", "3.10", folder)
    assert folder_made(step) == folder
    assert not any("uninstall" in argv for argv in step.commands)
    assert "new environment with Python 3.10" in step.title


def test_the_python_of_the_jetpack_gets_its_wheels_in_place() -> None:
    step = steps_of(scenario("jetson-build--generic-wheel"))["jetson-torch"]
    assert step.commands[0][1:5] == ("-m", "pip", "uninstall", "-y")


def test_where_the_python_is_not_known_the_resolver_is_asked_before_torch_goes() -> None:
    m = scenario("jetson-build--generic-wheel")
    m = moved(m, {}, PYTHONS["unknown"])
    step = steps_of(m)["jetson-torch"]
    assert step.commands[0][1:6] == ("-m", "pip", "install", "--dry-run", "--ignore-installed")
    assert step.commands[1][3] == "uninstall"


def test_a_torch_that_no_wheel_replaces_is_not_reinstalled() -> None:
    """The Python is newer than any wheel of this release: damaged or not, it stays."""
    m = moved(scenario("torch-install-corrupt--empty-library"), {}, PYTHONS["3.16"])
    steps = steps_of(m)
    assert "reinstall-torch" not in steps
    made = steps["install-python"]
    assert not any("uninstall" in argv for argv in made.commands)


def test_the_code_that_was_read_from_a_build_counts_and_not_what_was_announced() -> None:
    """cu132 of 2.14.1 has no code for the GPU, whatever its build scripts promised."""
    steps = steps_of(scenario("torch-arch-unsupported-new--ptx-and-an-older-driver"))
    change = steps["install-torch"].packages
    assert change is not None
    assert change.variant != "cu132"


def test_every_cause_keeps_a_way_out() -> None:
    """Dropping remedies that harm or change nothing leaves every cause with a remedy."""
    lost = []
    for number, (name, machine) in enumerate(sick()):
        for platform, facts in share([*PLATFORMS.items()], 3, number):
            m = moved(machine, facts, {})
            diagnosis = diagnose(m, KB)
            cured = {cause for step in plan(m, KB, diagnosis).steps for cause in step.cures}
            lost += [
                f"{name} on {platform}: {finding.cause}"
                for finding in diagnosis.findings
                if finding.remedies and not finding.because_of and finding.severity < Severity.INFO
                if finding.cause not in cured
            ]
    assert not lost, lost[:5]


def test_gpus_of_two_ages_on_musl_are_judged_without_a_crash() -> None:
    m = moved(scenario("torch-arch-unsupported-old--old-card-beside-a-new-one"), MUSL, {})
    assert not any(removes_torch(step) for step in steps_of(m).values())
