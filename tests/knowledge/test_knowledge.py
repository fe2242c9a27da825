"""The tables: in order, every number with a source, and the traps of the facts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.knowledge import renewed
from cudadoctor.knowledge.tables import FOLDER
from cudadoctor.knowledge.update.rows import row_of, written
from cudadoctor.model.requirements import admits
from cudadoctor.solver.demand import serves_all

KB = knowledge.load()
TABLES = Path(FOLDER)
PACKAGED = Path(knowledge.__file__).parent / "tables"
FACTS = Path(__file__).parent.parent.parent.parent / "shared" / "facts"


def version(text: str) -> Version:
    return Version(text)


def tables(folder: Path = TABLES) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}


def facts(name: str) -> dict[str, Any]:
    """A file of collected facts, if somebody has it beside the checkout."""
    file = FACTS / f"{name}.json"
    if not file.exists():
        pytest.skip("the collected facts are not beside the checkout")
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def test_the_tables_lie_as_an_update_writes_them() -> None:
    for name in renewed.TABLES:
        text = (PACKAGED / f"{name}.json").read_text(encoding="utf-8")
        assert text == written(json.loads(text))


@pytest.mark.parametrize("folder", [PACKAGED, TABLES], ids=["packaged", "frozen"])
def test_the_tables_hold_together(folder: Path) -> None:
    assert [*renewed.problems(tables(folder))] == []


KEYS = {
    "conda.pytorch": ("torch",),
    "libraries.wheels": ("toolkit",),
    "drivers.floors": ("major",),
    "compilers.nvcc": ("toolkit",),
    "compilers.hosts": ("toolkit",),
    "gpus.models": ("name", "capability", "architecture"),
}
"""Lists that no update writes."""


@pytest.mark.parametrize("name", KEYS)
def test_the_keys_of_a_table_are_unique(name: str) -> None:
    table, _, part = name.partition(".")
    keys = [tuple(row[column] for column in KEYS[name]) for row in tables()[table][part]]
    assert len(set(keys)) == len(keys)


Harm = Callable[[dict[str, dict[str, Any]]], object]
HARMS: dict[str, Harm] = {
    "has no unique key": lambda of: of["torch"]["builds"].insert(0, of["torch"]["builds"][0]),
    "out of order": lambda of: of["torch"]["releases"].reverse(),
    "differ in their columns": lambda of: of["libraries"]["nccl"][0].pop("bundled"),
    "cites no known source": lambda of: of["pins"]["pins"][0].update(sources=[]),
    "cites no known source: {": lambda of: of["pins"]["pins"][0].update(sources=["no.such"]),
    "belongs to no release": lambda of: of["torch"]["releases"].pop(0),
    "is not of CUDA 11.1": lambda of: of["torch"]["builds"][0].update(cuda="11.1"),
    "is a second default": lambda of: [
        build.update(default=True) for build in of["torch"]["builds"][:4]
    ],
    "is not allowed in drivers.toolkits": lambda of: of["drivers"]["toolkits"][0].update(linux="x"),
}


@pytest.mark.parametrize("what", HARMS)
def test_tables_that_do_not_hold_together_are_told(what: str) -> None:
    harmed = tables()
    HARMS[what](harmed)
    assert what in next(renewed.problems(harmed))


def test_the_releases_agree_with_the_collected_facts() -> None:
    for fact in facts("torch_releases")["releases"]:
        row = row_of(tables()["torch"]["releases"], {"torch": fact["torch"]})
        assert row is not None
        assert row["released"] == fact["released"]


def test_the_drivers_agree_with_the_collected_facts() -> None:
    for fact in facts("cuda_driver")["toolkits"]:
        row = row_of(tables()["drivers"]["toolkits"], {"toolkit": fact["toolkit"]})
        assert row is not None
        assert row["linux"] == fact["linux_x86_64"]


def test_nccl_agrees_with_the_collected_facts() -> None:
    for fact in facts("nccl")["torch"]:
        row = row_of(tables()["libraries"]["nccl"], {"torch": fact["torch"]})
        assert row is not None
        assert (row["default"], row["bundled"]) == (
            fact["nccl_pin_default"],
            fact["bundled_statically"],
        )


def _source_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*(_source_keys(part) for part in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for name, part in value.items():
        if name == "source" or name.endswith("sources"):
            found |= (
                {part} if isinstance(part, str) else set(part) if isinstance(part, list) else set()
            )
        found |= _source_keys(part)
    return found


def test_every_source_key_of_every_table_has_a_source() -> None:
    for path in TABLES.glob("*.json"):
        if path.stem != "sources":
            for key in _source_keys(json.loads(path.read_text(encoding="utf-8"))):
                assert KB.source(key).title


def _without_source(value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [
            place for n, part in enumerate(value) for place in _without_source(part, f"{path}.{n}")
        ]
    if not isinstance(value, dict):
        return []
    empty = [path] if value.get("sources") == [] or value.get("source") == "" else []
    return empty + [
        place for k, part in value.items() for place in _without_source(part, f"{path}.{k}")
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
    assert KB.date >= "2026-11-21"
    assert KB.date == json.loads((TABLES / "torch.json").read_bytes())["collected"]


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
    assert done.stdout.strip() == "['_architectures', '_by_capability', '_drivers'] False"


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
    assert KB.torch_releases()[0] == version("2.15.0")
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
        return [row.variant for row in rows if row.default and row.torch == version(release)]

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
    assert KB.companion("xformers", version("2.14.1")) == ("0.0.35",)
    assert KB.companion("xformers", version("2.9.1")) == ("0.0.33.post2",)
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
    assert KB.companion_torch("flash-attn", "2.8.3") == ""
    assert KB.companion_torch("flash-attn", "2.0.0") is None
    assert KB.companion_torch("xformers", "0.0.35") == ">=2.10"
    assert KB.built_against("xformers", "0.0.34") == version("2.10.0")
    assert KB.built_against("xformers", "0.0.35") is None
    assert KB.built_against("vllm", "0.33.0") == version("2.14.0")
    assert KB.built_against("torchvision", "0.29.1") is None
    assert KB.companion_torch("torch-tensorrt", "2.8.0") == "<2.9.0,>=2.8.0"


def test_binaries_per_cuda_are_known_where_they_are_listed() -> None:
    newest = KB.companion_cuda("bitsandbytes", "0.50.1")
    assert newest is not None
    assert version("12.9") not in newest
    assert KB.companion_cuda("bitsandbytes", "0.30.0") is None
    assert KB.companion_python("torchvision", "0.29.1") == ">=3.10,!=3.14.1"


def test_every_specifier_in_the_table_is_one() -> None:
    rows = json.loads((TABLES / "companions.json").read_text(encoding="utf-8"))["releases"]
    for row in rows:
        assert SpecifierSet(row["torch"] or "") is not None


@pytest.mark.parametrize("torch", ["1.7.0", "2.0.1", "2.4.0", "2.7.1", "2.9.1", "2.10.0", "2.14.1"])
def test_our_reading_of_specifiers_agrees_with_packaging(torch: str) -> None:
    rows = json.loads((TABLES / "companions.json").read_text(encoding="utf-8"))["releases"]
    for text in {row["torch"] for row in rows if row["torch"]}:
        assert admits(text, version(torch)) == SpecifierSet(text).contains(torch), text


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
    assert KB.nvcc_capabilities(version("12.7")) is None
    for toolkit, span in (("13.0", ("7.5", "12.1")), ("12.6.3", ("5.0", "9.0"))):
        found = KB.nvcc_capabilities(version(toolkit))
        assert found is not None
        assert (min(found), max(found)) == tuple(map(version, span))
    assert version("8.8") in (KB.nvcc_capabilities(version("13.0")) or ())


@pytest.mark.parametrize(
    ("cuda", "glibc", "first"),
    [
        ("12.9", "2.40", None),
        ("12.9", "2.41", "13.0"),
        ("13.0", "2.41", None),
        ("12.9", "2.42", "13.2"),
        ("13.1", "2.43", "13.2"),
        ("13.2", "2.43", None),
    ],
)
def test_headers_of_cuda_fit_a_glibc_from_some_release_on(
    cuda: str, glibc: str, first: str | None
) -> None:
    found = KB.glibc_conflict(version(cuda), version(glibc))
    assert (found and found.cuda) == (first and version(first))
    host = row_of(tables()["compilers"]["hosts"], {"toolkit": "12.3"})
    assert host is not None
    assert host["msc_below"] == 1940


def test_wheels_belong_to_toolkits() -> None:
    wheels = row_of(tables()["libraries"]["wheels"], {"toolkit": "12.6.3"})
    assert wheels is not None
    assert wheels["packages"]["nvidia-cublas-cu12"] == "12.6.4.1"
    assert "nvidia-cublas-cu12" in KB.projects


def test_the_newest_tag_of_a_minor_is_found() -> None:
    assert KB.newest_docker_tag(version("12.6"), "base", "ubuntu24.04") == "12.6.3-base-ubuntu24.04"
    assert KB.newest_docker_tag(version("12.6"), "base", "ubuntu99.04") is None
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
