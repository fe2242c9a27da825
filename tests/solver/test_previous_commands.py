"""The commands of pytorch.org's page of previous versions: ours are the same, or better."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.installers.registry import write
from cudadoctor.model.findings import PackageChange
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.solver.builds import best_build

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from grid_machines import machine_of
from previous_commands import Command, Ours, answer, commands, in_conda, judged, meant_for, verdict
from second_reading import Plain, of_tables

READING = of_tables()
KB = knowledge.load()
FEW = [command for command in commands() if command.torch in ("2.11.0", "2.5.1", "2.0.0", "1.7.1")]


@pytest.mark.parametrize("command", FEW, ids=lambda one: " ".join(one[:4]))
def test_a_command_of_the_page_has_no_better_answer_than_ours(command: Command) -> None:
    kind, why = judged(command, command.torch)
    assert kind != "worse", why


def test_every_release_of_the_page_is_asked_for() -> None:
    every = list(commands())
    assert len(every) > 400
    assert {command.system for command in every} == {"linux", "windows"}
    assert {"1.7.0", "1.8.2", "2.5.1", "2.11.0"} <= {command.torch for command in every}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "equal"),
        ({"torch": "2.10.0"}, "worse"),
        ({"torch": None}, "worse"),
        ({"variant": "cu126"}, "worse"),
        ({"variant": "cu126", "why": "cu130: It would also work."}, "better"),
        ({"pins": {"torch": "2.11.0", "torchvision": "0.25.0"}}, "worse"),
        ({"against": ("unfit: too new",)}, "worse"),
        ({"channel": "conda-forge"}, "worse"),
    ],
)
def test_a_worse_answer_is_noticed(changed: dict[str, Any], kind: str) -> None:
    command = next(one for one in commands() if one.torch == "2.11.0" and one.variant == "cu130")
    ours = Ours("2.11.0", "cu130", command.pins)
    assert verdict(command, ours._replace(**changed), READING)[0] == kind


def _windows(torch: str, variant: str) -> Plain:
    command = next(
        one for one in commands() if one[:3] == ("pip", "windows", torch) and one.variant == variant
    )
    plain = meant_for(command, READING)
    assert plain is not None
    return plain


def _change(plain: Plain) -> PackageChange:
    machine = machine_of(plain)
    build = best_build(machine, KB, keep=plain["wish"]).build
    assert build is not None
    change = remedy_for(build, machine, KB).packages
    assert change is not None
    return change


def test_a_companion_that_is_on_torchs_index_alone_comes_from_there() -> None:
    cuda = _change(_windows("1.7.1", "cu110"))
    assert "torchaudio==0.7.2" in cuda.install
    cpu = _change(_windows("1.7.1", "cpu"))
    assert ("torchaudio==0.7.2" in cpu.install, cpu.index) == (
        True,
        "https://download.pytorch.org/whl/cpu",
    )
    fresh = _change({**_windows("1.7.1", "cpu"), "installed": None})
    assert fresh.index == "https://download.pytorch.org/whl/cpu"
    # Its wheel of torch itself for Python 3.8 bears a tag that no Python takes.
    alone = {**_windows("1.7.0", "cpu"), "installed": None, "python": "3.8"}
    assert _change(alone).index == "https://download.pytorch.org/whl/cpu"
    # A near miss: the package index has the next release.
    assert _change(_windows("1.8.1", "cpu")).index is None


def test_conda_forge_is_named_with_the_reason() -> None:
    plain = _windows("2.5.1", "cu124")
    machine = in_conda(machine_of(plain))
    made = write(machine, KB, _change(plain))
    assert "conda-forge" in made.commands[-1]
    assert made.note is not None
    assert "the pytorch channel was discontinued after torch 2.5.1" in made.note
    newer = _change({**plain, "wish": "2.6.0"})
    assert "discontinued" not in (write(machine, KB, newer).note or "")


def test_a_variant_that_nobody_published_has_a_way_out() -> None:
    plain = {**_windows("1.12.1", "cu102"), "wish": "1.12.1+cu102"}
    choice = best_build(machine_of(plain), KB, keep="1.12.1+cu102")
    assert choice.build is None
    (way,) = choice.alternatives
    assert (way.kind, way.build and way.build.torch) == ("driver", Version("1.12.1"))
    # A near miss: of a published one the way out is to its own build.
    plain = {**_windows("1.12.1", "cu102"), "wish": "1.12.1+cu116"}
    (way,) = best_build(machine_of(plain), KB, keep="1.12.1+cu116").alternatives
    assert way.build is not None
    assert way.build.variant == "cu116"


def test_a_command_for_a_machine_that_is_none_is_worse() -> None:
    command = next(one for one in commands() if one.torch == "1.8.2")
    assert meant_for(command, READING) is None
    assert judged(command, "1.8.2")[0] == "worse"


def test_the_answer_of_conda_is_read_from_its_command() -> None:
    command = next(one for one in commands() if one[:4] == ("conda", "linux", "2.5.0", "cu121"))
    plain = meant_for(command, READING)
    assert plain is not None
    ours = answer(command, plain)
    assert (ours.channel, ours.torch, ours.pins["torchaudio"]) == ("pytorch", "2.5.0", "2.5.0")
