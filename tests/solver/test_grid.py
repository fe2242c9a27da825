"""Whatever the machine: the prescription passes a second reading that shares no code with it.

The whole grid of 50,000 machines is benchmarks/grid.py; here is a seeded sample of it, and proof
that the second reading notices when something is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.knowledge import TorchBuild
from cudadoctor.model.findings import Rejection
from cudadoctor.model.machine import Machine
from cudadoctor.solver.builds import Choice

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from grid import Prescription, found, prescribed
from grid_machines import KINDS, Plain, machine_of, machines
from second_keeping import admits
from second_reading import Reading, disagreements, numbers, of_tables

KB = knowledge.load()
READING = of_tables()

USUAL: Plain = {
    "kind": "linux",
    "platform": "linux_x86_64",
    "glibc": "2.39",
    "python": "3.12",
    "names": ("NVIDIA GeForce RTX 3090",),
    "capabilities": ("8.6",),
    "driver": "580.95.05",
    "level": "13.0",
    "numbers": "linux",
    "by_level": False,
    "told": True,
    "unnamed": True,
    "installed": None,
    "wish": None,
}
"""A machine for which nearly every build of the last years fits."""


def _made(**changed: object) -> Prescription:
    plain = {**USUAL, **changed}
    return prescribed(machine_of(plain), plain, KB)


def _row(torch: str, variant: str) -> TorchBuild:
    row = KB.build_of(Version(torch), variant, "linux_x86_64")
    assert row is not None
    return row


def _kinds(prescription: Prescription) -> set[str]:
    return {line.partition(":")[0] for line in found(prescription, READING)}


def _with_build(prescription: Prescription, build: TorchBuild) -> Prescription:
    """The same prescription with another build in it, chosen and installed."""
    from cudadoctor.plan.remedies.torch import remedy_for

    choice = Choice(build=build, why=("Wrong.",), why_not=prescription.choice.why_not)
    return prescription._replace(
        choice=choice, remedy=remedy_for(build, machine_of(prescription.plain), KB)
    )


def _with_change(prescription: Prescription, **changed: object) -> Prescription:
    assert prescription.remedy is not None
    assert prescription.remedy.packages is not None
    change = msgspec.structs.replace(prescription.remedy.packages, **changed)
    return prescription._replace(
        remedy=msgspec.structs.replace(prescription.remedy, packages=change)
    )


def _with_reason(prescription: Prescription, variant: str, reason: str) -> Prescription:
    kept = tuple(
        rejection for rejection in prescription.choice.why_not if rejection.variant != variant
    )
    wrong = (*kept, Rejection(variant=variant, reason=reason))
    return prescription._replace(choice=msgspec.structs.replace(prescription.choice, why_not=wrong))


def _installed(
    torch: str, variant: str, cuda: str | None, packages: dict[str, str] | None = None
) -> Plain:
    wheels = ("nvidia-cudnn-cu12", "nvidia-nccl-cu12") if cuda else ()
    here = {"torch": torch, "variant": variant, "cuda": cuda, "wheels": wheels}
    return {**here, "packages": packages or {}}


SAMPLE = [list(machines(200, seed)) for seed in (1, 2, 3)]


@pytest.mark.parametrize("sample", SAMPLE, ids=["first", "second", "third"])
def test_every_prescription_of_a_sample_passes(sample: list[tuple[Machine, Plain]]) -> None:
    for machine, plain in sample:
        assert found(prescribed(machine, plain, KB), READING) == [], plain


def test_most_machines_of_the_sample_have_a_build() -> None:
    every = [prescribed(machine, plain, KB) for sample in SAMPLE for machine, plain in sample]
    built = sum(prescription.choice.build is not None for prescription in every)
    assert built >= 0.6 * len(every)


def test_the_sample_holds_every_kind_of_machine() -> None:
    plains = [plain for sample in SAMPLE for _, plain in sample]
    kinds = {plain["kind"] for plain in plains}
    assert kinds == {*KINDS}
    assert any(len(set(plain["capabilities"])) > 1 for plain in plains)
    assert any(plain["wish"] for plain in plains)
    assert any(plain["files"] for plain in plains)
    assert any(plain["conda"] for plain in plains)
    assert any(plain["python"] is None for plain in plains)
    assert any("vllm" in (plain["installed"] or {}).get("packages", ()) for plain in plains)
    assert any(plain["installed"] for plain in plains)


def test_the_usual_machine_has_no_fault() -> None:
    assert found(_made(), READING) == []


@pytest.mark.parametrize(
    ("torch", "variant", "kind"),
    [
        ("2.15.0", "cu130", "unfit"),  # only announced
        ("2.15.0", "cu126", "unfit"),  # known not to exist
        ("2.13.0", "cu130", "newer"),
        ("2.14.1", "cpu", "unfit"),
    ],
)
def test_another_build_in_its_place_is_noticed(torch: str, variant: str, kind: str) -> None:
    wrong = _with_build(_made(), _row(torch, variant))
    assert kind in _kinds(wrong)


def test_a_build_that_no_table_has_is_noticed() -> None:
    build = msgspec.structs.replace(_row("2.14.1", "cu130"), variant="cu133")
    assert _kinds(_with_build(_made(), build)) == {"unknown"}


def test_a_build_that_the_driver_does_not_run_is_noticed() -> None:
    old = _made(driver="570.124.06", level="12.8")
    assert _kinds(old) == set()
    assert "unfit" in _kinds(_with_build(old, _row("2.15.0", "cu132")))


def test_a_build_without_code_for_the_gpu_is_noticed() -> None:
    old = _made(names=("NVIDIA GeForce GTX 1080 Ti",), capabilities=("6.1",))
    assert _kinds(old) == set()
    assert "unfit" in _kinds(_with_build(old, _row("2.14.1", "cu130")))


def test_a_build_for_another_python_or_an_older_system_is_noticed() -> None:
    newest = _made().choice.build
    assert newest is not None
    assert "unfit" in _kinds(_with_build(_made(python="3.9"), newest))
    assert "unfit" in _kinds(_with_build(_made(glibc="2.17"), newest))


def test_a_build_against_the_wish_is_noticed() -> None:
    wished = _made(wish="2.6")
    assert _kinds(wished) == set()
    assert "wish" in _kinds(_with_build(wished, _row("2.8.0", "cu128")))


def test_leaving_an_installed_release_that_fits_is_noticed() -> None:
    kept = _made(installed=_installed("2.8.0", "cpu", None))
    assert _kinds(kept) == set()
    assert "smaller" in _kinds(_with_build(kept, _row("2.14.1", "cu130")))
    present = _made(installed=_installed("2.8.0", "cu128", "12.8"))
    assert _kinds(present) == set()
    assert "kept" in _kinds(_with_build(present, _row("2.8.0", "cu126")))


def test_losing_a_package_that_another_build_keeps_is_noticed() -> None:
    # torchtext has a release for 2.3, none for 2.14.
    kept = _made(installed=_installed("2.3.0", "cpu", None, {"torchtext": "0.18.0"}))
    assert _kinds(kept) == set()
    assert "lost" in _kinds(_with_build(kept, _row("2.14.1", "cu130")))


def test_choosing_nothing_although_a_build_fits_is_noticed() -> None:
    nothing = _made()._replace(choice=Choice(build=None, why=("Wrong.",)), remedy=None)
    assert _kinds(nothing) == {"missed", "why-not"}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"install": ("torch==2.14.1", "torchvision==0.29.2")}, "torch"),
        ({"install": ("torch==2.15.0",)}, "vision"),
        ({"install": ("torch==2.15.0", "torchvision==0.28.0")}, "vision"),
        ({"install": ("torch==2.15.0", "torchvision==0.29.2", "torchaudio==2.10.0")}, "audio"),
        ({"install": ("torch==2.15.0+cu130", "torchvision==0.29.2")}, "variant"),
        ({"index": "https://download.pytorch.org/whl/cu126"}, "index"),
        ({"index": "https://example.org/simple"}, "index"),
        ({"variant": "cu130"}, "variant"),
        ({"cuda": "13.0"}, "variant"),
        ({"then": ("xformers==0.0.33",)}, "companion"),
    ],
)
def test_a_wrong_change_of_packages_is_noticed(changed: dict[str, object], kind: str) -> None:
    usual = _made()
    assert usual.choice.build == _row("2.15.0", "cu132")
    # What does not belong together is asked for otherwise by somebody, too.
    assert _kinds(_with_change(usual, **changed)) - {"needs"} == {kind}


def test_an_index_where_the_default_one_is_wrong_is_noticed() -> None:
    old = _made(driver="570.124.06", level="12.8")
    assert _kinds(_with_change(old, index=None)) == {"index"}


def test_a_companion_that_stays_beside_another_torch_is_noticed() -> None:
    packages = {"torchvision": "0.21.0", "xformers": "0.0.29.post3"}
    moved = _made(installed=_installed("2.6.0", "cu124", "12.4", packages), wish="2.8")
    assert _kinds(moved) == set()
    silent = _with_change(moved, install=("torch==2.8.0",), then=(), remove=())
    assert silent.remedy is not None
    unsaid = silent._replace(remedy=msgspec.structs.replace(silent.remedy, note=None))
    assert {"vision", "companion"} <= _kinds(unsaid)


def test_a_companion_without_a_wheel_for_this_python_is_noticed() -> None:
    old = _made(python="3.13", wish="2.5")
    assert _kinds(old) == set()
    pinned = ("torch==2.5.1", "torchvision==0.20.1")
    assert _kinds(_with_change(old, install=pinned)) == {"vision"}


def test_a_program_that_asks_for_another_torch_is_noticed() -> None:
    here = _installed("2.6.0", "cu124", "12.4", {"torchvision": "0.21.0", "house-models": "1.0"})
    asking = here | {"requires": {"house-models": ("torch<2.7", "torchvision==0.21.0")}}
    moved = _made(installed=asking, wish="2.8")
    assert _kinds(moved) == set()
    assert moved.remedy is not None
    unsaid = moved._replace(remedy=msgspec.structs.replace(moved.remedy, note=None))
    assert _kinds(unsaid) == {"needs"}
    # What another system or an extra asks for is no need.
    elsewhere = ('torch<2.7; sys_platform == "win32"', 'torch==1.0; extra == "old"')
    other = _made(installed=here | {"requires": {"house-models": elsewhere}}, wish="2.8")
    assert other.remedy is not None
    assert _kinds(other._replace(remedy=msgspec.structs.replace(other.remedy, note=None))) == set()


def test_a_file_of_the_project_that_asks_for_another_torch_is_noticed() -> None:
    files = (("requirements.txt", ("torch==2.6.0+cu124",)),)
    moved = _made(installed=_installed("2.6.0", "cu124", "12.4"), files=files, wish="2.8")
    assert _kinds(moved) == set()
    assert moved.remedy is not None
    unsaid = moved._replace(remedy=msgspec.structs.replace(moved.remedy, note=None))
    assert _kinds(unsaid) == {"needs"}
    # Of two builds that fit, the one is taken that the file allows.
    pinned = _made(
        installed=_installed("2.6.0", "cpu", None),
        files=(("requirements.txt", ("torch==2.8.0",)),),
    )
    assert _kinds(pinned) == set()
    assert "lost" in _kinds(_with_build(pinned, _row("2.6.0", "cu124")))


def _in_conda(**changed: object) -> Prescription:
    here = _installed("2.6.0", "cu124", "12.4", {"torchvision": "0.21.0"})
    return _made(conda=True, installed=here, **changed)


@pytest.mark.parametrize(
    ("wish", "old", "new"),
    [
        ("2.5.1", "pytorch-gpu=2.5.1", "pytorch-gpu=2.5.0"),
        ("2.5.1", "pytorch-gpu=2.5.1", "pytorch-cpu=2.5.1"),
        ("2.5.1", "torchvision", "rich"),
        ("2.5.0", "pytorch-cuda=12.4", "pytorch-cuda=11.8"),
        ("2.5.0", "pytorch==2.5.0", "pytorch==2.6.0"),
        ("2.7.1+cu118", "torch==2.7.1", "torch==2.6.0"),
    ],
)
def test_a_wrong_conda_command_is_noticed(wish: str, old: str, new: str) -> None:
    made = _in_conda(wish=wish)
    assert _kinds(made) == set()
    assert made.written is not None
    commands = tuple(
        tuple(new if word == old else word for word in argv) for argv in made.written.commands
    )
    assert commands != made.written.commands
    wrong = msgspec.structs.replace(made.written, commands=commands)
    assert _kinds(made._replace(written=wrong)) == {"conda"}


def test_a_conda_command_that_keeps_its_reason_to_itself_is_noticed() -> None:
    for wish in ("2.5.0", "2.7.1+cu118"):
        made = _in_conda(wish=wish)
        assert made.written is not None
        silent = msgspec.structs.replace(made.written, note=None)
        assert _kinds(made._replace(written=silent)) == {"conda"}


def test_what_is_left_of_the_old_torch_is_noticed() -> None:
    same = _made(installed=_installed("2.8.0", "cpu", None, {"torchvision": "0.23.0"}))
    assert same.choice.build == _row("2.8.0", "cu128")
    assert _kinds(_with_change(same, remove=())) == {"stale"}
    moved = _made(installed=_installed("2.6.0", "cu124", "12.4"), wish="2.15")
    assert _kinds(moved) == set()
    assert _kinds(_with_change(moved, remove=("torch", "nvidia-nccl-cu12"))) == {"stale"}


@pytest.mark.parametrize(
    "reason",
    [
        "It has no code for compute capability 8.6, only for sm_90.",
        "It needs glibc 2.28 or newer; this system has 2.17.",
        "CUDA 13.0 needs driver 580.65.06 or newer; yours is 570.",
        "It would also work.",
        "It was not liked.",
    ],
)
def test_a_reason_that_is_not_true_is_noticed(reason: str) -> None:
    # cu126 of 2.15.0 was not published: no other reason is true.
    assert _kinds(_with_reason(_made(), "cu126", reason)) == {"why-not"}


def test_a_variant_without_a_reason_is_noticed() -> None:
    usual = _made()
    fewer = msgspec.structs.replace(usual.choice, why_not=usual.choice.why_not[1:])
    assert _kinds(usual._replace(choice=fewer)) == {"why-not"}


def test_a_way_out_that_leads_nowhere_is_noticed() -> None:
    nothing = _made(python="3.16")
    assert nothing.choice.build is None
    assert _kinds(nothing) == set()
    way = nothing.choice.alternatives[0]
    wrong = msgspec.structs.replace(way, pythons=("3.6",))
    choice = msgspec.structs.replace(nothing.choice, alternatives=(wrong,))
    assert _kinds(nothing._replace(choice=choice)) == {"way"}


def test_conda_is_no_way_out_for_a_gpu_that_no_build_supports() -> None:
    alone: Plain = {"python": "3.15t", "glibc": "2.17", "driver": "570.195.03", "level": "12.8"}
    mixed = {"names": ("Tesla K40m", "NVIDIA B200"), "capabilities": ("3.5", "10.0")}
    assert "conda" not in {way.kind for way in _made(**alone, **mixed).choice.alternatives}
    newer = {"names": ("NVIDIA B200",), "capabilities": ("10.0",)}
    assert "conda" in {way.kind for way in _made(**alone, **newer).choice.alternatives}


def test_a_table_that_differs_from_the_collected_facts_is_noticed() -> None:
    facts = of_tables()
    assert disagreements(READING, facts) == []
    changed = next(row for row in facts.builds if row["cuda"])
    changed["archs"] = ["sm_30"]
    assert disagreements(READING, facts) == [
        f"facts: {changed['torch']} {changed['variant']} for {changed['platform']}: archs differ"
    ]


def test_the_second_reading_knows_the_thresholds() -> None:
    fits = Reading.fitting
    at = {**USUAL, "driver": "525.60.13", "level": "12.0"}
    below = {**USUAL, "driver": "525.60.12", "level": "12.0", "told": False}
    assert ("2.14.1", "cu126") in fits(READING, at)
    assert ("2.14.1", "cu126") not in fits(READING, below)
    assert numbers("525.60.13") > numbers("525.60.2")


@pytest.mark.parametrize(
    ("specifier", "version", "admitted"),
    [
        (">=2.10", "2.9.1", False),
        ("<3,>=2.3", "2.14.1", True),
        ("==2.9.1", "2.9.0", False),
        ("==2.9.*", "2.9.1", True),
        ("~=3.8.0", "3.8.4", True),
        ("~=3.8.0", "3.9.0", False),
        (">=3.10,!=3.14.1", "3.14", True),
        ("nonsense", "3.14", False),
    ],
)
def test_specifiers_are_compared_as_numbers(specifier: str, version: str, admitted: bool) -> None:
    assert admits(specifier, version) is admitted
