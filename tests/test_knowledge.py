"""The tables: equal to a rebuild, every number with a source, and the traps of the facts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.builds import serves_all
from cudadoctor.knowledge.build import make, written
from cudadoctor.knowledge.gpu_names import spellings
from cudadoctor.versions import DriverVersion

KB = knowledge.load()
TABLES = Path(knowledge.__file__).parent / "tables"
FACTS = Path(__file__).parent.parent.parent / "shared" / "facts"


def version(text: str) -> Version:
    return Version(text)


@pytest.mark.skipif(not FACTS.is_dir(), reason="the collected facts are not beside the checkout")
def test_the_tables_equal_a_rebuild_from_the_collected_facts() -> None:
    rebuilt = {name: written(table) for name, table in make(FACTS).items()}
    there = {path.stem: path.read_text(encoding="utf-8") for path in TABLES.glob("*.json")}
    assert rebuilt.keys() == there.keys()
    assert [name for name, text in rebuilt.items() if text != there[name]] == []


def test_the_builder_wants_a_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cudadoctor.knowledge.build"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"usage" in done.stderr


def _source_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*(_source_keys(one) for one in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for name, one in value.items():
        if name == "source" or name.endswith("sources"):
            found |= {one} if isinstance(one, str) else set(one) if isinstance(one, list) else set()
        found |= _source_keys(one)
    return found


def test_every_source_key_of_every_table_has_a_source() -> None:
    for path in TABLES.glob("*.json"):
        if path.stem != "sources":
            for key in _source_keys(json.loads(path.read_text(encoding="utf-8"))):
                assert KB.source(key).title


def _without_source(value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [one for n, part in enumerate(value) for one in _without_source(part, f"{path}.{n}")]
    if not isinstance(value, dict):
        return []
    empty = [path] if value.get("sources") == [] or value.get("source") == "" else []
    return empty + [
        one for k, part in value.items() for one in _without_source(part, f"{path}.{k}")
    ]


def test_no_row_has_an_empty_list_of_sources() -> None:
    for path in TABLES.glob("*.json"):
        assert _without_source(json.loads(path.read_text(encoding="utf-8")), path.stem) == []


def test_no_table_says_where_a_copy_was_read() -> None:
    for path in TABLES.glob("*.json"):
        text = path.read_text(encoding="utf-8").lower()
        assert "mirror" not in text
        assert "../shared" not in text


def test_an_unknown_source_is_our_own_mistake() -> None:
    with pytest.raises(knowledge.KnowledgeError, match="nowhere"):
        KB.source("nowhere")


def test_the_tables_know_their_day() -> None:
    assert KB.date == "2026-11-21"


def test_a_fast_look_reads_no_table_that_it_does_not_need() -> None:
    code = (
        "import sys; from cudadoctor import knowledge; from packaging.version import Version as V;"
        "kb = knowledge.load(); kb.driver_floor(V('13.0'), 'Linux'); kb.architecture(V('8.9'));"
        "kb.serves('sm_86', V('8.9'), None, None);"
        "print(sorted(kb.__dict__), 'packaging.specifiers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "['_architectures', '_drivers'] False"


def test_looking_up_companions_does_not_load_the_grammar_of_specifiers() -> None:
    code = (
        "import sys; from cudadoctor import knowledge; from packaging.version import Version as V;"
        "kb = knowledge.load(); kb.companion('torchvision', V('2.14.1'));"
        "print('packaging.specifiers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "False"


# Builds of torch


def test_builds_come_newest_release_first_and_compare_as_versions() -> None:
    releases = [build.torch for build in KB.builds]
    assert releases == sorted(releases, reverse=True)
    assert KB.newest_torch() == version("2.15.0")
    assert KB.torch_releases()[-1] == version("1.7.0")


def test_announced_is_neither_published_nor_absent() -> None:
    published = {
        variant: getattr(KB.build_of(version("2.15.0"), variant, "linux_x86_64"), "published", "?")
        for variant in ("cu126", "cu130", "cu132", "cpu")
    }
    assert published == {"cu126": False, "cu130": None, "cu132": True, "cpu": None}
    windows = KB.build_of(version("2.15.0"), "cu132", "windows_amd64")
    assert windows is not None
    assert windows.published is None


def test_what_plain_pip_gives_is_marked_per_platform() -> None:
    def default(release: str, platform: str) -> list[str]:
        rows = KB.builds_on(platform)
        return [one.variant for one in rows if one.default and one.torch == version(release)]

    assert default("2.10.0", "linux_x86_64") == ["cu128"]
    assert default("2.10.0", "linux_aarch64") == ["cpu"]
    assert default("2.11.0", "linux_aarch64") == ["cu130"]
    assert default("2.15.0", "linux_x86_64") == ["cu132"]
    assert default("2.15.0", "windows_amd64") == ["cpu"]
    assert default("2.14.1", "macos_arm64") == ["cpu"]


def test_the_old_wheel_tag_stands_for_the_glibc_of_its_build_system() -> None:
    def glibc(release: str, variant: str, platform: str = "linux_x86_64") -> str:
        build = KB.build_of(version(release), variant, platform)
        assert build is not None
        return str(build.glibc)

    assert glibc("2.5.1", "cu124") == "2.17"
    assert glibc("2.6.0", "cu124") == "2.17"
    assert glibc("2.6.0", "cu126") == "2.28"
    assert glibc("2.7.0", "cu126") == "2.28"
    assert glibc("2.14.1", "cu126", "windows_amd64") == "None"


def test_windows_lists_differ_from_linux_lists() -> None:
    linux = KB.build_of(version("2.8.0"), "cu126", "linux_x86_64")
    windows = KB.build_of(version("2.8.0"), "cu126", "windows_amd64")
    assert linux is not None
    assert windows is not None
    assert "sm_50" in (linux.archs or ())
    assert (windows.archs or ())[0] == "sm_61"


def test_a_local_version_finds_the_row_of_its_release() -> None:
    build = KB.build_of(version("2.14.1+cu126"), "cu126", "linux_x86_64")
    assert build is not None
    assert build.torchvision == "0.29.1"
    assert build.index == "https://download.pytorch.org/whl/cu126"
    assert build.toolkit == "12.6.3"


def test_every_published_cuda_build_has_a_floor_and_code() -> None:
    for build in KB.builds:
        if build.published and build.cuda is not None:
            system = "Windows" if build.platform.startswith("windows") else "Linux"
            assert KB.driver_floor(build.cuda, system) is not None, build
            assert build.archs, build
            assert build.pythons, build


def test_no_published_build_pairs_a_gpu_with_a_cudnn_that_refuses_it() -> None:
    for build in KB.builds:
        if build.published and build.cudnn and Version(build.cudnn) >= Version("8.9"):
            for text in ("5.0", "5.2", "6.0", "6.1", "7.0"):
                if serves_all(build.archs or (), (version(text),), None, None, KB):
                    assert KB.cudnn_refuses(version(build.cudnn), version(text)) is False, build


def test_the_default_wheel_of_2_11_pins_through_the_meta_package() -> None:
    pins = KB.default_pins(version("2.11.0"), "linux_x86_64")
    assert pins is not None
    assert pins[0].startswith("cuda-toolkit[cublas,")
    assert "==13.0.2" in pins[0]
    older = KB.default_pins(version("2.8.0"), "linux_x86_64")
    assert older is not None
    assert any(pin.startswith("nvidia-cudnn-cu12==9.10.2.21") for pin in older)
    assert KB.default_pins(version("2.8.0"), "windows_amd64") is None


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
    ],
)
def test_a_gpu_is_known_by_the_name_that_the_driver_prints(name: str, capability: str) -> None:
    model = KB.gpu_by_name(name)
    assert model is not None
    assert model.capability == version(capability)


@pytest.mark.parametrize("name", ["GeForce GT 1030", "GeForce GTX 750 Ti", "GeForce GT 730"])
def test_a_name_of_several_chips_decides_nothing(name: str) -> None:
    assert KB.gpu_by_name(name) is None


def test_an_unknown_name_is_unknown() -> None:
    assert KB.gpu_by_name("NVIDIA Graphics Device") is None
    assert KB.gpu_by_name("") is None
    assert spellings("") == ("",)


def test_a_pci_id_decides_in_any_spelling() -> None:
    for text in ("1b80", "1B80", "0x1b80"):
        assert {one.capability for one in KB.gpus_by_pci(text)} == {version("6.1")}
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


# Companions


def test_the_companion_released_with_a_torch_comes_first() -> None:
    assert KB.companion("torchvision", version("2.14.1"))[0] == "0.29.1"
    assert KB.companion("torchvision", version("2.15.0+cu132"))[0] == "0.29.2"
    assert "0.29.0" not in KB.companion("torchvision", version("2.14.1"))
    assert KB.companion("torchvision", version("2.5.1")) == ("0.20.1",)
    assert KB.companion("torchaudio", version("2.11.0"))[0] == "2.11.0"
    assert KB.companion("torchaudio", version("2.14.1")) == ("2.11.0",)
    assert KB.companion("torchtext", version("2.2.2"))[0] == "0.17.2"


def test_compiled_extensions_match_the_torch_they_were_built_against() -> None:
    assert KB.companion("xformers", version("2.10.0")) == ("0.0.35", "0.0.34")
    assert KB.companion("xformers", version("2.14.1")) == ()
    assert KB.companion("flash_attn", version("2.8.0"))[0] == "2.8.3.post1"
    assert KB.companion("triton", version("2.14.1")) == ("3.8.0",)
    assert KB.companion("triton", version("2.0.1")) == ("2.0.0",)
    assert KB.companion("triton-windows", version("2.13.0"))[0] == "3.7.1.post27"
    assert KB.companion("vllm", version("2.14.0")) == ("0.33.0",)
    assert KB.companion("unheard-of", version("2.14.0")) == ()


def test_a_requirement_that_is_not_known_is_not_no_requirement() -> None:
    assert KB.companion_torch("torchvision", "0.20.1") == "==2.5.1"
    assert KB.companion_torch("torchvision", "0.29.1+cu126") == ">=2.14.0"
    assert KB.companion_torch("torchaudio", "2.11.0") == ""
    assert KB.companion_torch("flash-attn", "2.8.3") is None
    assert KB.companion_torch("xformers", "0.0.35") == ">=2.10"
    assert KB.built_against("xformers", "0.0.35") == version("2.10.0")
    assert KB.built_against("vllm", "0.33.0") == version("2.14.0")
    assert KB.built_against("torchvision", "0.29.1") is None
    assert KB.companion_torch("torch-tensorrt", "2.8.0") == "<2.9.0,>=2.8.0"


def test_binaries_per_cuda_are_known_where_they_are_listed() -> None:
    newest = KB.companion_cuda("bitsandbytes", "0.50.1")
    assert newest is not None
    assert version("12.9") not in newest
    assert KB.companion_cuda("bitsandbytes", "0.40.0") is None
    assert KB.companion_python("torchvision", "0.29.1") == ">=3.10,!=3.14.1"


def test_every_specifier_in_the_table_is_one() -> None:
    rows = json.loads((TABLES / "companions.json").read_text(encoding="utf-8"))["releases"]
    for row in rows:
        assert SpecifierSet(row["torch"] or "") is not None


@pytest.mark.parametrize("torch", ["1.7.0", "2.0.1", "2.4.0", "2.7.1", "2.9.1", "2.10.0", "2.14.1"])
def test_our_reading_of_specifiers_agrees_with_packaging(torch: str) -> None:
    from cudadoctor.knowledge.companions import allows

    rows = json.loads((TABLES / "companions.json").read_text(encoding="utf-8"))["releases"]
    for text in {row["torch"] for row in rows if row["torch"]}:
        assert allows(text, version(torch)) == SpecifierSet(text).contains(torch), text


# Libraries, compilers, images, conda


@pytest.mark.parametrize(
    ("cudnn", "capability", "refuses"),
    [
        ("9.10.2", "6.1", False),
        ("9.10.2.21", "7.0", False),
        ("9.11.0", "7.0", True),
        ("9.11.0", "7.5", False),
        ("9.28.0.42", "6.1", True),
        ("9.0.0", "12.0", None),
        ("9.26.0.51", "12.1", None),
        ("8.9.2", "3.7", True),
        ("8.5.0", "3.7", None),
    ],
)
def test_cudnn_refuses_old_gpus_from_9_11_on(
    cudnn: str, capability: str, refuses: bool | None
) -> None:
    assert KB.cudnn_refuses(version(cudnn), version(capability)) is refuses


def test_compilers_are_known_per_toolkit() -> None:
    assert [KB.gcc_max(version(text)) for text in ("11.7", "12.6", "13.0", "13.4")] == [
        *(11, 13, 15, 16)
    ]
    assert KB.gcc_max(version("12.7")) is None
    assert KB.nvcc_range(version("13.0")) == (version("7.5"), version("12.1"))
    assert KB.nvcc_range(version("12.6.3")) == (version("5.0"), version("9.0"))
    assert KB.nvcc_range(version("12.7")) is None
    assert version("8.8") in (KB.nvcc_capabilities(version("13.0")) or ())
    host = KB.host_compilers(version("12.3"))
    assert host is not None
    assert host.msc_below == 1940


def test_wheels_belong_to_toolkits() -> None:
    wheels = KB.cuda_wheels("12.6.3")
    assert wheels is not None
    assert wheels["nvidia-cublas-cu12"] == "12.6.4.1"
    assert "12.6.3" in KB.toolkits_of_wheel("nvidia-cublas-cu12", "12.6.4.1")
    assert KB.toolkits_of_wheel("nvidia-cublas-cu12", "1.0") == ()
    assert KB.nccl_of(version("2.14.1"), "cu126") == "2.29.3"
    assert KB.nccl_of(version("2.15.0"), "cu132") == "2.30.7"
    assert KB.nccl_of(version("2.15.0"), "cu130") is None


def test_a_tag_beyond_the_full_list_is_not_known_to_be_absent() -> None:
    assert KB.docker_tag("12.6.3", "base", "ubuntu22.04") is True
    assert KB.docker_tag("12.6.3", "base", "ubuntu99.04") is False
    assert KB.docker_tag("13.4.3", "base", "ubuntu24.04") is None
    assert KB.newest_docker_tag(version("12.6"), "base", "ubuntu24.04") == "12.6.3-base-ubuntu24.04"
    assert KB.newest_docker_tag(version("12.7"), "base", "ubuntu24.04") is None


def test_conda_channels_end_where_they_end() -> None:
    linux = "linux_x86_64"
    assert KB.conda_cuda("pytorch", version("2.5.1"), linux) == (
        *(version("11.8"), version("12.1"), version("12.4")),
    )
    assert KB.conda_cuda("pytorch", version("2.6.0"), linux) is None
    assert KB.conda_cuda("conda-forge", version("2.13.0"), "windows_amd64") == (
        *(version("12.8"), version("13.0")),
    )
    assert KB.newest_on_conda("pytorch") == version("2.5.1")
