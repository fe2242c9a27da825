"""The tables of drivers and GPUs: floors, branches, names, and which code serves which GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.knowledge import tables
from cudadoctor.knowledge.gpus import spellings
from cudadoctor.model.versions import DriverVersion

KB = knowledge.load()
TABLES = Path(tables.FOLDER)


def version(text: str) -> Version:
    return Version(text)


# Drivers


@pytest.mark.parametrize(
    ("cuda", "system", "floor"),
    [
        ("13.2", "Linux", "580.65.06"),
        ("13.0", "Windows", "580"),
        ("12.1", "Linux", "525.60.13"),
        ("12.9", "Windows", "528.33"),
        ("11.8", "Linux", "450.80.02"),
        ("11.1", "Windows", "452.39"),
        ("10.2", "Linux", "440.33"),
        ("10.1", "Windows", "418.96"),
        ("9.2", "Linux", "396.37"),
    ],
)
def test_the_floor_is_the_majors_from_11_on_and_the_toolkits_before(
    cuda: str, system: str, floor: str
) -> None:
    found = KB.driver_floor(version(cuda), system)
    assert found is not None
    assert str(found.driver) == floor
    assert KB.source(found.source).title


def test_no_floor_is_made_up_for_a_cuda_to_come() -> None:
    assert KB.driver_floor(version("14.0"), "Linux") is None
    assert KB.driver_floor(version("7.5"), "Linux") is None


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("535.104.05", "12.2"),
        ("580.65.06", "13.0"),
        ("581.57", "13.0"),
        ("475.14", "11.4"),
        ("553.62", "12.4"),
        ("596.49", "13.2"),
        ("616.92", "13.4"),
        ("617.42", "13.4"),
        ("418.87.00", "10.1"),
        ("440.100", "10.2"),
        ("435.21", None),
        ("540.4.0", None),
        ("620.10", None),
        ("304.137", None),
    ],
)
def test_a_driver_brings_the_cuda_of_its_branch(driver: str, cuda: str | None) -> None:
    found = KB.native_cuda(DriverVersion(driver))
    assert found == (version(cuda) if cuda else None)


def test_windows_machines_report_what_the_branches_say() -> None:
    rows = json.loads((TABLES / "drivers.json").read_text(encoding="utf-8"))["windows_levels"]
    for row in rows:
        assert KB.native_cuda(DriverVersion(row["driver"])) == version(row["cuda"])


def test_a_current_branch_is_recommended_for_a_cuda() -> None:
    wanted = [KB.branch_for(version(text)) for text in ("12.6", "13.0", "13.2", "13.3", "14.0")]
    assert wanted == [580, 580, 595, 615, None]
    assert KB.branch_is_current(610) is False
    assert KB.branch_is_current(999) is None


def test_forward_compatibility_is_read_from_the_guide() -> None:
    assert KB.forward_compat(version("13.0"), 535) == "compatible"
    assert KB.forward_compat(version("13.0"), 580) == "native"
    assert KB.forward_compat(version("12.8"), 580) == "older"
    assert KB.forward_compat(version("12.8"), 550) is None


# GPUs


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA GeForce RTX 3090", "8.6"),
        ("GeForce RTX 3090", "8.6"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "8.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA A16-4Q", "8.6"),
        ("GeForce GTX 1060 6GB", "6.1"),
        ("GeForce GTX 1070 with Max-Q Design", "6.1"),
        ("Orin (nvgpu)", "8.7"),
        ("NVIDIA GB10", "12.1"),
        ("Tesla K80", "3.7"),
        ("GRID V100D-8Q", "7.0"),
        ("GRID T4-1B4", "7.5"),
        ("NVIDIA A100D-4-40C", "8.0"),
        ("A100D", "8.0"),
        ("GRID P100C-12Q", "6.0"),
        ("GRID M60-8Q", "5.2"),
        ("NVIDIA RTX6000-Ada-48Q", "8.9"),
        ("GRID RTX6000P-6Q", "7.5"),
        ("NVIDIA RTXA6000-48Q", "8.6"),
        ("NVIDIA H100XM-80C", "9.0"),
        ("NVIDIA RTX Pro 6000 Blackwell DC-48Q", "12.0"),
        ("RTX 6000 Ada", "8.9"),
        ("NVIDIA RTX 2000 Ada Generation Laptop GPU", "8.9"),
        ("NVIDIA GeForce RTX 5090D", "12.0"),
        ("NVIDIA TITAN X (Pascal)", "6.1"),
        ("AD107M [GeForce RTX 4060 Max-Q / Mobile]", "8.9"),
        ("GeForce RTX 3060 Lite Hash Rate", "8.6"),
        ("rtx4090", "8.9"),
    ],
)
def test_a_gpu_is_known_by_the_name_that_the_driver_prints(name: str, capability: str) -> None:
    model = KB.gpu_by_name(name)
    assert model is not None
    assert model.capability == version(capability)


@pytest.mark.parametrize("name", ["GeForce GT 1030", "GeForce GTX 750 Ti", "GeForce GT 730"])
def test_a_name_of_several_chips_decides_nothing(name: str) -> None:
    assert KB.gpu_by_name(name) is None
    models = KB.gpus_by_name(f"NVIDIA {name}")
    assert len({model.capability for model in models}) == 2
    usual = [model for model in models if KB.is_usual(model)]
    assert usual == ([] if name.endswith("730") else [models[0]])


def test_an_unknown_name_is_unknown() -> None:
    assert KB.gpu_by_name("NVIDIA Graphics Device") is None
    assert KB.gpu_by_name("") is None
    for name in ("NVIDIA X100D-8Q", "GRID T-8Q", "RTX 4000", "4090", "V100", "RTX 6000", "Ada"):
        assert KB.gpu_by_name(name) is None
    assert spellings("") == ("",)


def test_a_pci_id_decides_in_any_spelling() -> None:
    for text in ("1b80", "1B80", "0x1b80"):
        assert {gpu.capability for gpu in KB.gpus_by_pci(text)} == {version("6.1")}
    assert KB.gpus_by_pci("ffff") == ()


def test_data_center_boards_are_told_apart() -> None:
    boards = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA GH200 480GB")
    models = [KB.gpu_by_name(name) for name in boards]
    assert all(model is not None and model.data_center for model in models)
    for name in ("NVIDIA GeForce RTX 4090", "NVIDIA RTX A2000 12GB", "NVIDIA TITAN V"):
        model = KB.gpu_by_name(name)
        assert model is not None
        assert not model.data_center
    grace = KB.gpu_by_name("NVIDIA GH200 480GB")
    assert grace is not None
    assert grace.open_modules == "only"


@pytest.mark.parametrize(
    ("capability", "name", "first", "last", "modules"),
    [
        ("2.0", "Fermi", None, 390, "none"),
        ("3.7", "Kepler", 304, 470, "none"),
        ("6.1", "Pascal", 367, 580, "none"),
        ("7.0", "Volta", 384, 580, "none"),
        ("7.5", "Turing", 410, None, "both"),
        ("8.0", "Ampere", 450, None, "both"),
        ("8.9", "Ada Lovelace", 520, None, "both"),
        ("9.0", "Hopper", 520, None, "both"),
        ("12.0", "Blackwell", 570, None, "only"),
    ],
)
def test_a_generation_has_its_branches_and_its_kernel_modules(
    capability: str, name: str, first: int | None, last: int | None, modules: str
) -> None:
    found = KB.architecture(version(capability))
    assert found is not None
    assert (found.name, found.first_branch, found.last_branch) == (name, first, last)
    assert found.open_modules == modules


def test_a_gpu_newer_than_the_tables_is_neither_fine_nor_wrong() -> None:
    assert KB.architecture(version("13.0")) is None
    assert KB.known_bad_arch(version("13.0"))
    assert not KB.known_bad_arch(version("12.1"))


@pytest.mark.parametrize(
    ("code", "capability", "served"),
    [
        ("sm_86", "8.9", "native"),
        ("sm_86", "8.0", None),
        ("sm_80", "8.6", "native"),
        ("sm_80", "8.7", None),
        ("sm_86", "8.7", None),
        ("sm_87", "8.7", "native"),
        ("sm_70", "7.5", "native"),
        ("sm_70", "7.2", None),
        ("sm_90", "10.0", None),
        ("sm_100", "10.3", "native"),
        ("sm_100", "10.1", None),
        ("sm_101", "11.0", "native"),
        ("sm_100", "11.0", None),
        ("sm_120", "12.1", "native"),
        ("sm_90a", "9.0", "native"),
        ("sm_100a", "10.3", None),
        ("sm_100f", "10.3", "native"),
        ("compute_90", "12.0", "ptx"),
        ("compute_120", "9.0", None),
        ("compute_90a", "10.0", None),
        ("gfx90a", "9.0", None),
    ],
)
def test_which_code_serves_which_gpu(code: str, capability: str, served: str | None) -> None:
    assert KB.serves(code, version(capability), None, None) == served


def test_jetson_runs_server_code_from_torch_2_15_with_cuda_13_2_on() -> None:
    orin = version("8.7")
    assert KB.serves("sm_80", orin, version("2.15.0"), version("13.2")) == "native"
    assert KB.serves("sm_80", orin, version("2.15.0"), version("13.0")) is None
    assert KB.serves("sm_80", orin, version("2.14.1"), version("13.2")) is None
    assert KB.serves("sm_50", version("5.3"), version("2.15.0"), version("13.2")) is None
