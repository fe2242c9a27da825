"""The whole history of a companion: how it enters the tables, and which release is the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from update_fixtures import (
    FILES,
    INDEX,
    Pages,
    copied,
    listed,
    metadata,
    project,
    source,
    zipped,
)

from cudadoctor import knowledge
from cudadoctor.knowledge import tables
from cudadoctor.knowledge.update.__main__ import main
from cudadoctor.knowledge.update.index import Release, files_of, requirements_of
from cudadoctor.knowledge.update.torch_rows import pins_on

KB = knowledge.load()
TABLES = Path(tables.FOLDER)
DAY = "2099-12-10"
PAGE = f"{INDEX}/vllm/"


def wheel(release: str, tag: str = "cp38-abi3-manylinux_2_28_x86_64") -> str:
    return f"vllm-{release}-{tag}.whl"


def needs(release: str, *requires: str) -> dict[str, bytes]:
    """What the index hands out beside the wheel of a release."""
    return {f"{FILES}/{wheel(release)}.metadata": metadata("vllm", release, requires)}


def updated(folder: Path, pages: dict[str, bytes], *files: dict[str, object]) -> Pages:
    """The tables in a folder after vllm's page listed these files. Its history begins in 0.31.0."""
    table = folder / "companions.json"
    if not table.exists():
        copied(folder.parent)
        rows = json.loads(table.read_bytes())
        rows["releases"] = [
            row
            for row in rows["releases"]
            if row["package"] != "vllm" or row["version"] in ("0.31.0", "0.33.0")
        ]
        rows["pins"] = [row for row in rows["pins"] if row["package"] != "vllm"]
        table.write_text(json.dumps(rows), encoding="utf-8")
    asked = Pages({PAGE: project(*files), **pages})
    assert main(["--only", "vllm", "--write"], folder=folder, fetch=asked, day=DAY) == 0
    return asked


def rows_of(folder: Path, part: str = "releases") -> dict[str, dict[str, Any]]:
    """Release -> its row, in the order of the table."""
    table = json.loads((folder / "companions.json").read_bytes())
    return {row["version"]: row for row in table[part] if row["package"] == "vllm"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tables"


# --- how it enters ----------------------------------------------------------------------------


def test_releases_older_than_the_tables_enter_and_what_the_index_lost_stays(folder: Path) -> None:
    old = listed(wheel("0.10.0"), "2025-07-24", **{"requires-python": ">=3.9"})
    new = listed(wheel("0.33.0"), "2026-11-01")
    requires = ("numpy", "torch==2.7.1", "torchvision==0.22.1", "xformers==0.0.31; x == 'y'")
    updated(folder, needs("0.10.0", *requires[:3]), old, new)
    rows = rows_of(folder)
    assert list(rows) == ["0.10.0", "0.31.0", "0.33.0"]
    assert (rows["0.10.0"]["torch"], rows["0.10.0"]["python"]) == ("==2.7.1", ">=3.9")
    assert rows["0.10.0"]["platforms"] == ["linux_x86_64"]
    assert rows["0.10.0"]["pythons"] == ["3.8+"]
    assert rows_of(folder, "pins")["0.10.0"]["requires"] == ["torchvision==0.22.1"]
    assert "0.33.0" not in rows_of(folder, "pins")


def test_what_is_known_is_not_read_again(folder: Path) -> None:
    old = listed(wheel("0.10.0"), "2025-07-24")
    first = updated(folder, needs("0.10.0", "torch==2.7.1"), old)
    assert first.asked == [PAGE, f"{FILES}/{wheel('0.10.0')}.metadata"]
    before = (folder / "companions.json").read_bytes()
    assert updated(folder, {}, old).asked == [PAGE]
    assert (folder / "companions.json").read_bytes() == before


def test_a_wheel_that_comes_later_is_added_to_its_release(folder: Path) -> None:
    old = listed(wheel("0.10.0"), "2025-07-24")
    updated(folder, needs("0.10.0", "torch==2.7.1"), old)
    updated(folder, {}, listed(wheel("0.10.0", "cp312-cp312-win_amd64"), "2025-08-24"))
    row = rows_of(folder)["0.10.0"]
    assert row["platforms"] == ["linux_x86_64", "windows_amd64"]
    assert row["pythons"] == ["3.8+", "3.12"]


def test_a_yanked_release_of_old_stays_out(folder: Path) -> None:
    updated(folder, {}, listed(wheel("0.10.0"), "2025-07-24", yanked="broken"))
    assert list(rows_of(folder)) == ["0.31.0", "0.33.0"]


def test_a_requirement_of_old_that_nobody_can_read_is_not_known(folder: Path) -> None:
    old = listed(wheel("0.10.0"), "2025-07-24")
    wrong = needs("0.10.0", "torch (>=1.9.*)")
    body = zipped({"vllm-0.10.0.dist-info/METADATA": next(iter(wrong.values()))})
    updated(folder, {**wrong, f"{FILES}/{wheel('0.10.0')}": body}, old)
    assert rows_of(folder)["0.10.0"]["torch"] is None


def asked_of(name: str, pages: dict[str, bytes]) -> list[str] | None:
    """What the release of that one file requires."""
    files = files_of("vllm", project(listed(name, DAY)), PAGE)
    return requirements_of(Pages(pages), Release("0.1.0", files))


def test_a_source_archive_speaks_only_where_it_lists_what_it_requires() -> None:
    name = "vllm-0.1.0.tar.gz"
    body = source("vllm", "0.1.0", ("numpy", "torch>=2.0"))
    assert asked_of(name, {f"{FILES}/{name}": body}) == ["numpy", "torch>=2.0"]
    assert asked_of(name, {f"{FILES}/{name}": source("vllm", "0.1.0", ())}) is None
    assert asked_of(name, {f"{FILES}/{name}": b"<html>no archive</html>"}) is None
    # Only the beginning is read, and it ends within a member.
    assert asked_of(name, {f"{FILES}/{name}": body[:-40]}) == ["numpy", "torch>=2.0"]
    assert asked_of(name, {f"{FILES}/{name}": body[:60]}) is None


def test_an_index_without_metadata_beside_the_wheel_is_read_through_the_wheel() -> None:
    inside = metadata("vllm", "0.1.0", ("torch==2.0.1",))
    body = zipped({"vllm-0.1.0.dist-info/METADATA": inside})
    assert asked_of(wheel("0.1.0"), {f"{FILES}/{wheel('0.1.0')}": body}) == ["torch==2.0.1"]


def test_the_wheel_for_the_usual_processor_speaks_for_its_release(folder: Path) -> None:
    # torchvision 0.11.3 for ARM requires any torch, that for x86-64 the one of its day.
    arm = listed(wheel("0.10.0", "cp38-abi3-manylinux2014_aarch64"), "2025-07-24")
    usual = listed(wheel("0.10.0"), "2025-07-24")
    asked = updated(folder, needs("0.10.0", "torch==2.7.1"), arm, usual).asked
    assert asked == [PAGE, f"{FILES}/{wheel('0.10.0')}.metadata"]
    assert KB.companion_torch("torchvision", "0.11.3") == "==1.10.2"


def test_an_exact_requirement_on_a_companion_is_a_pin_and_each_bound_of_what_is_shared() -> None:
    requires = (
        "xformers==0.0.27.post2; platform_machine == 'x86_64'",
        "transformers<5,>=4.56.0",
        "torchvision>=0.22.1",
        "torchaudio==2.7.*",
        "numpy",
        "requests==2.32.3",
        "flashinfer-python==0.5.2; extra == 'all'",
    )
    names = {"xformers", "torchvision", "torchaudio", "flashinfer-python"}
    assert pins_on(names, requires) == [*requires[:2]]


# --- which release is the answer --------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "torch", "releases"),
    [
        ("xformers", "2.5.1", ("0.0.29.post1", "0.0.29", "0.0.28.post3")),
        ("xformers", "2.5", ("0.0.28.post2",)),
        ("xformers", "2.0.1", ("0.0.22", "0.0.21", "0.0.20")),
        ("xformers", "1.13.1", ("0.0.16",)),
        ("xformers", "1.12.1", ()),
        ("vllm", "2.5.1", ("0.7.3", "0.7.2", "0.7.1")),
        ("torchtext", "1.13.1", ("0.14.1",)),
        ("torchdata", "1.13.1", ("0.5.1",)),
        ("torch-tensorrt", "2.7.0", ("2.7.0",)),
        ("accelerate", "1.9.1", ("0.20.3", "0.20.2")),
        ("lightning", "1.10.2", ("1.9.5", "1.9.4")),
        ("bitsandbytes", "2.2.2", ("0.47.0", "0.46.1")),
        ("flash-attn", "2.2.2", ("2.7.4.post1", "2.7.3")),
        ("triton", "2.3.1", ("2.3.1",)),
        ("torchvision", "1.4.0", ("0.5.0",)),
    ],
)
def test_an_old_torch_has_the_companions_of_its_day(
    package: str, torch: str, releases: tuple[str, ...]
) -> None:
    found = KB.companion(package, Version(torch))
    assert found[: len(releases)] == releases
    assert bool(found) == bool(releases)


def test_what_old_wheels_left_open_ends_where_a_later_release_pins_torch() -> None:
    assert KB.companion_torch("vllm", "0.2.2") == ">=2.1.0"
    assert "0.2.2" in KB.companion("vllm", Version("2.1.0"))
    assert KB.companion("vllm", Version("2.12.0")) == ()
    assert "0.3.0" not in KB.companion("torchvision", Version("2.14.1"))
    # Nothing later pins it.
    assert "0.29.1" in KB.companion("torchvision", Version("2.15.0"))


def test_a_release_says_which_other_companions_it_wants() -> None:
    pins = KB.companion_pins("vllm", "0.10.0")
    assert KB.companion_torch("vllm", "0.10.0") == "==2.7.1"
    assert pins[:3] == ("transformers>=4.53.2", "torchaudio==2.7.1", "torchvision==0.22.1")
    assert pins[3].startswith("xformers==0.0.31;")
    assert KB.companion_pins("vllm", "0.1.4") == ()
    assert KB.companion_pins("unheard-of", "1") == ()


@pytest.mark.parametrize(
    ("package", "release", "platform", "python", "has"),
    [
        ("xformers", "0.0.29", "linux_x86_64", "3.12", True),
        ("xformers", "0.0.29", "linux_x86_64", "3.13", False),
        ("xformers", "0.0.29", "linux_aarch64", "3.12", False),
        # PyPI has no wheel of it for Windows, torch's own index has.
        ("xformers", "0.0.29", "windows_amd64", "3.12", True),
        ("xformers", "0.0.28", "windows_amd64", "3.12", False),
        ("xformers", "0.0.31", "linux_x86_64", "3.13", True),
        ("xformers", "0.0.31", "linux_x86_64", "3.8", False),
        ("xformers", "0.0.31", "linux_x86_64", "3.13t", False),
        ("xformers", "0.0.12", "linux_x86_64", "3.9", False),
        ("bitsandbytes", "0.45.0", "linux_aarch64", "3.11", False),
        ("bitsandbytes", "0.46.0", "linux_aarch64", "3.11", True),
        ("accelerate", "0.20.3", "macos_x86_64", "3.8", True),
        ("torchtext", "0.18.0", "linux_x86_64", "3.13", False),
        ("torchvision", "0.14.1", "linux_x86_64", "3.11", True),
        ("accelerate", "99.0", "linux_x86_64", "3.11", True),
        ("xformers", "0.0.29", None, None, True),
    ],
)
def test_a_wheel_is_for_one_platform_and_some_pythons(
    package: str, release: str, platform: str | None, python: str | None, has: bool
) -> None:
    assert KB.has_wheel(package, release, platform, python) is has


def test_binaries_of_a_release_differ_by_platform() -> None:
    def cuda(package: str, release: str, platform: str | None = None) -> list[str] | None:
        found = KB.companion_cuda(package, release, platform)
        return None if found is None else [str(version) for version in found]

    assert cuda("xformers", "0.0.29.post3") == ["11.8", "12.4", "12.6"]
    assert cuda("xformers", "0.0.29.post3", "windows_amd64") == ["12.4", "12.6"]
    assert cuda("xformers", "0.0.29.post3+cu118", "windows_amd64") == ["12.4", "12.6"]
    assert cuda("xformers", "0.0.26") is None
    assert cuda("bitsandbytes", "0.41.1", "linux_x86_64") is not None
    assert cuda("bitsandbytes", "0.41.1", "windows_amd64") == []
    assert cuda("bitsandbytes", "0.30.0", "windows_amd64") is None
    assert KB.on_torch_index("xformers", "0.0.23")
    assert not KB.on_torch_index("xformers", "0.0.22")


@pytest.mark.parametrize(
    ("torch", "cuda", "python", "release"),
    [
        ("2.3.1", "11.8", "3.12", "2.7.3"),
        ("2.1.2", "12.1", "3.12", None),
        ("2.1.2", "12.1", "3.11", "2.7.3"),
        ("2.0.1", "11.7", "3.8", "2.6.3"),
        ("2.6.0", "11.8", "3.11", None),
        ("2.8.0", "12.8", "3.13", "2.8.3"),
        # The wheels of 2.8 for torch 2.6 have the new ABI of C++, its build for CUDA 12.4 the old.
        ("2.6.0", "12.4", "3.11", "2.7.4.post1"),
        ("2.6.0", "12.6", "3.11", "2.8.3"),
    ],
)
def test_old_torch_has_prebuilt_flash_attn(
    torch: str, cuda: str, python: str, release: str | None
) -> None:
    assert next(iter(KB.prebuilt_flash(Version(torch), Version(cuda), python)), None) == release


# --- the table --------------------------------------------------------------------------------


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((TABLES / "companions.json").read_bytes())["releases"]
    return found


def test_the_table_has_each_package_in_one_piece_the_oldest_release_first() -> None:
    keys = [(row["package"], Version(row["version"])) for row in rows()]
    packages = list(dict.fromkeys(package for package, _ in keys))
    assert keys == sorted(set(keys), key=lambda key: (packages.index(key[0]), key[1]))


def test_the_history_is_whole() -> None:
    counted = dict.fromkeys(KB.companion_names, 0)
    for row in rows():
        counted[row["package"]] += 1
    assert counted["vllm"] >= 100
    assert counted["deepspeed"] >= 124
    assert counted["xformers"] >= 48
    assert min(counted.values()) >= 6


def test_the_pair_of_a_torch_is_a_release_that_admits_it() -> None:
    torch = json.loads((TABLES / "torch.json").read_bytes())["releases"]
    for row in torch:
        for name in ("torchvision", "torchaudio", "torchtext"):
            if row[name]:
                release, wanted = row[name], KB.companion_torch(name, row[name])
                assert KB.companion(name, Version(row["torch"]))[0] == release
                assert not wanted or Version(row["torch"]) in _specifier(wanted), (name, row)


def _specifier(text: str) -> Any:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(text)


def test_what_xformers_was_compiled_against_is_what_it_requires() -> None:
    for release in (row["version"] for row in rows() if row["package"] == "xformers"):
        made_for = KB.built_against("xformers", release)
        if made_for is not None:
            assert made_for in _specifier(KB.companion_torch("xformers", release) or ""), release
