"""The update of the tables as its user runs it: what it shows, what it writes, how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from update_fixtures import (
    CODE,
    FILES,
    INDEX,
    NEW,
    NEWEST,
    REQUIRES,
    ROOT,
    Pages,
    bytes_of,
    copied,
    html,
    known_pages,
    listed,
    new_pages,
    project,
    source,
    tables,
    wheel_name,
)

from cudadoctor.knowledge import tables as tables_module
from cudadoctor.knowledge.renewed import ORDER
from cudadoctor.knowledge.torch_builds import TorchBuilds
from cudadoctor.knowledge.update.__main__ import NOT_ASKED, main

PYPI_ONLY = "pypi"
DAY = "2099-12-10"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


def table(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tables" / f"{name}.json").read_bytes())
    return found


def build(folder: Path, torch: str, variant: str, platform: str) -> dict[str, Any]:
    rows = table(folder, "torch")["builds"]
    key = (torch, variant, platform)
    found = [row for row in rows if (row["torch"], row["variant"], row["platform"]) == key]
    assert len(found) == 1
    only: dict[str, Any] = found[0]
    return only


def torch_alone(requires: tuple[str, ...] = REQUIRES) -> dict[str, bytes]:
    """The index after the next torch came out and nothing else."""
    page = f"{INDEX}/torchvision/"
    return {**new_pages(requires), page: known_pages()[page]}


def run(folder: Path, pages: dict[str, bytes], *words: str) -> int:
    return main(list(words), folder=folder / "tables", fetch=Pages(pages), day=DAY)


# --- nothing new ------------------------------------------------------------------------------


def test_an_index_that_the_tables_know_gives_no_difference_and_no_write(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(folder)
    assert run(folder, known_pages(), "--only", PYPI_ONLY, "--write") == 0
    shown = capsys.readouterr()
    assert shown.out == "No row differs from the tables.\nWritten: nothing.\n"
    assert shown.err == ""
    assert bytes_of(folder) == before


def test_a_check_says_that_the_newest_torch_is_known(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, known_pages(), "--check") == 0
    assert f"The tables have the newest torch ({NEWEST})." in capsys.readouterr().out


def test_a_check_asks_for_one_page_only(folder: Path) -> None:
    pages = Pages(known_pages())
    main(["--check"], folder=folder / "tables", fetch=pages)
    assert pages.asked == [f"{INDEX}/torch/"]


def test_candidates_and_yanked_releases_are_no_newer_torch(folder: Path) -> None:
    pages = new_pages()
    files = json.loads(pages[f"{INDEX}/torch/"])["files"]
    for file in files:
        file["yanked"] = "broken wheels" if f"-{NEW}-" in file["filename"] else False
    candidate = listed(wheel_name("torch", "99.0.0rc1", "3.13", "linux_x86_64"), DAY)
    pages[f"{INDEX}/torch/"] = project(*files, candidate)
    assert run(folder, pages, "--check") == 0


# --- a new torch ------------------------------------------------------------------------------


def test_a_check_says_that_a_newer_torch_is_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, new_pages(), "--check") == 1
    assert (
        capsys.readouterr().out
        == f"torch {NEW} is on the index; the newest in the tables is {NEWEST}.\n"
    )


def test_without_write_the_difference_is_shown_with_sources_and_nothing_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(folder)
    assert run(folder, new_pages(), "--only", "torch,torchvision") == 0
    shown = capsys.readouterr().out
    assert f"new      torch.builds {NEW} cu133 linux_x86_64" in shown
    assert f"seen on {INDEX}/torch/, {DAY}" in shown
    assert "To write these changes, add --write." in shown
    assert bytes_of(folder) == before


def test_a_new_torch_is_written_with_what_its_wheels_say(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, new_pages(), "--only", "torch,torchvision", "--write") == 0
    assert "python recipes/install/make.py" in capsys.readouterr().out
    release = table(folder, "torch")["releases"][0]
    assert (release["torch"], release["released"]) == (NEW, "2099-12-09")
    assert release["pythons"]["linux_x86_64"] == ["3.12", "3.13", "3.14", "3.14t"]
    assert (release["torchvision"], release["torchaudio"]) == ("9.30.0", None)
    row = build(folder, NEW, "cu133", "linux_x86_64")
    assert (row["cuda"], row["toolkit"], row["cudnn"]) == ("13.3", "13.3.1", "9.30.0.10")
    assert (row["published"], row["default"], row["glibc"]) == (True, True, "2.28")
    assert row["bytes"] > 0
    assert build(folder, NEW, "cpu", "windows_amd64")["default"] is True
    assert table(folder, "pins")["pins"][0]["requires"] == list(REQUIRES[1:])
    assert table(folder, "libraries")["nccl"][-1]["default"] == "2.31.0"
    assert table(folder, "companions")["triton"][NEW] == "~=3.10.0"


def test_what_no_place_says_stays_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, new_pages(), "--only", "torch", "--write")
    assert build(folder, NEW, "cu133", "linux_x86_64")["archs"] is None
    assert build(folder, NEW, "cpu", "linux_x86_64")["published"] is None
    assert build(folder, NEW, "cu133", "windows_amd64")["published"] is None
    assert "is not prescribed: --deep reads them" in capsys.readouterr().out


def test_a_deep_look_reads_the_code_list_out_of_the_wheel(folder: Path) -> None:
    run(folder, new_pages(), "--only", "torch", "--write", "--deep")
    assert build(folder, NEW, "cu133", "linux_x86_64")["archs"] == list(CODE)


def test_a_later_deep_look_fills_the_code_list(folder: Path) -> None:
    run(folder, new_pages(), "--only", "torch", "--write")
    assert run(folder, new_pages(), "--only", "torch", "--write", "--deep") == 0
    assert build(folder, NEW, "cu133", "linux_aarch64")["archs"] == list(CODE)


def test_the_loader_reads_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    monkeypatch.setattr(tables_module, "FOLDER", str(folder / "tables"))
    builds = TorchBuilds()
    assert builds.torch_releases()[0] == Version(NEW)
    row = builds.build_of(Version(NEW), "cu133", "linux_x86_64")
    assert row is not None
    assert row.archs is None
    assert row.sources == ("seen.pypi",)


def test_every_new_row_names_a_source_with_address_and_day(folder: Path) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    assert build(folder, NEW, "cu133", "linux_x86_64")["sources"] == ["seen.pypi"]
    source = table(folder, "sources")["sources"]["seen.pypi"]
    assert (source["url"], source["date"]) == (f"{INDEX}/", DAY)


def test_a_second_run_finds_nothing_more(folder: Path) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    before = bytes_of(folder)
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    assert bytes_of(folder) == before


def test_every_new_row_has_a_value_or_a_null_for_each_column(folder: Path) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    for list_of_rows in ORDER:
        name, _, part = list_of_rows.partition(".")
        columns = {tuple(row) for row in table(folder, name)[part]}
        assert len(columns) == 1, list_of_rows


def test_no_table_loses_a_row_or_its_order(folder: Path) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    for name, part in (("torch", "builds"), ("torch", "releases"), ("companions", "releases")):
        old = tables()[name][part]
        assert [row for row in table(folder, name)[part] if row in old] == old


# --- how far the day of the tables goes -------------------------------------------------------


def everything() -> dict[str, bytes]:
    """The pages of every place, saying what the tables know."""
    tags = {"results": [{"name": "13.0.0-base-ubuntu24.04"}], "next": None}
    forge = [{"version": "2.13.0", "attrs": {"subdir": "linux-64", "build": "cuda130_py"}}]
    notes = "<table><tr><td>CUDA 13.0 GA</td><td>&gt;=580.65.06</td><td>N/A</td></tr></table>"
    matrix = "| PyTorch version | Stable CUDA |\n| --- | --- |\n| 2.15 | CUDA 13.0, CUDA 13.2 |\n"
    wheels = [
        f"torch-{row['torch']}+{row['variant']}-cp313-cp313-{tag}.whl"
        for row in tables()["torch"]["builds"]
        for platform, tag in (("linux_x86_64", "manylinux_2_28_x86_64"),)
        if row["platform"] == platform and row["variant"] == "cu132" and row["published"]
    ]
    return {
        **known_pages(),
        "https://hub.docker.com/v2/repositories/nvidia/cuda/tags?page_size=100": json.dumps(
            tags
        ).encode(),
        "https://api.anaconda.org/package/conda-forge/pytorch/files": json.dumps(forge).encode(),
        "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html": notes.encode(),
        "https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md": matrix.encode(),
        f"{ROOT}/": html("cu132/", "torch/"),
        f"{ROOT}/cu132/torch/": html(*wheels),
    }


def test_a_full_read_without_failures_moves_the_day_of_the_tables(folder: Path) -> None:
    assert run(folder, everything(), "--write") == 0
    assert table(folder, "torch")["collected"] == DAY


def test_one_place_that_fails_keeps_the_day_of_the_tables(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = everything()
    del pages["https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md"]
    assert run(folder, pages, "--write") == NOT_ASKED
    assert table(folder, "torch")["collected"] == tables()["torch"]["collected"]
    assert "RELEASE.md" in capsys.readouterr().err


def test_only_the_place_that_was_asked_for_is_read(folder: Path) -> None:
    pages = Pages(everything())
    assert (
        main(["--only", "release-md", "--write"], folder=folder / "tables", fetch=pages, day=DAY)
        == 0
    )
    assert pages.asked == ["https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md"]


def test_a_part_of_the_places_keeps_the_day_of_the_tables(folder: Path) -> None:
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    assert table(folder, "torch")["collected"] == tables()["torch"]["collected"]


# --- failures ---------------------------------------------------------------------------------


def test_offline_nothing_changes_and_one_sentence_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(folder)
    assert run(folder, {}, "--write") == NOT_ASKED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("No source could be read; nothing was changed: ")
    assert shown.err.count("\n") == 1
    assert bytes_of(folder) == before


def test_offline_a_check_is_neither_yes_nor_no(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, {}, "--check") == NOT_ASKED
    assert "Could not check for a torch newer than" in capsys.readouterr().err


LOGIN = b"<!DOCTYPE html><html><body><a href='/login'>Log in to the network</a></body></html>"


@pytest.mark.parametrize(
    "answer",
    [
        LOGIN,
        b"",
        b"{",
        b'{"files": null}',
        b'{"files": [{"filename": 3, "url": []}]}',
        b"<html><a href='torch-99.0.0-cp313-cp313-manylinux_2_28_x86_64.whl'>",
        b"<html><![oops[ torch </html>",
        b"[" * 100_000,
        b'{"files":' + b"[" * 100_000,
        b"\xff\xfe\x00",
        project(listed("other-1.0.tar.gz", DAY)),
        project(listed("torch-99.0rc1-cp313-cp313-manylinux_2_28_x86_64.whl", "x", url="//[")),
    ],
)
def test_an_answer_that_is_no_listing_changes_nothing(folder: Path, answer: bytes) -> None:
    before = bytes_of(folder)
    assert run(folder, {f"{INDEX}/torch/": answer}, "--only", "torch", "--write") == NOT_ASKED
    assert run(folder, {f"{INDEX}/torch/": answer}, "--check") == NOT_ASKED
    assert bytes_of(folder) == before


@pytest.mark.parametrize("harm", ["gone", "cut", "no zip", "no version", "no metadata"])
def test_a_wheel_that_cannot_be_read_leaves_its_release_out(
    folder: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = torch_alone()
    name = f"{FILES}/{wheel_name('torch', NEW, '3.13', 'linux_aarch64')}"
    body = pages[name]
    harmed = {
        "gone": None,
        "cut": body[: len(body) // 2],
        "no zip": b"<html></html>",
        "no version": body.replace(b"torch/version.py", b"torch/version.px"),
        "no metadata": body.replace(b"dist-info/METADATA", b"dist-info/METADATX"),
    }[harm]
    pages = {url: data for url, data in pages.items() if url != name}
    pages |= {name: harmed} if harmed is not None else {}
    before = bytes_of(folder)
    assert run(folder, pages, "--only", "torch", "--write") == NOT_ASKED
    assert f"torch {NEW}:" in capsys.readouterr().err
    assert bytes_of(folder) == before


def test_without_the_page_of_torchvision_a_new_torch_waits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {url: body for url, body in new_pages().items() if url != f"{INDEX}/torchvision/"}
    before = bytes_of(folder)
    assert run(folder, pages, "--only", "torch", "--write") == NOT_ASKED
    assert f"torch {NEW}: Which torchvision belongs to it is not known." in capsys.readouterr().err
    assert bytes_of(folder) == before


@pytest.mark.parametrize(
    "line", ["nvidia-x==1; platform_system == '\x1b[31m'", "nvidia-x @ \u202e", "torch $(id)"]
)
def test_hostile_requirements_do_not_reach_the_tables_or_the_terminal(
    folder: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(folder)
    assert run(folder, torch_alone((*REQUIRES, line)), "--only", "torch", "--write") == NOT_ASKED
    shown = capsys.readouterr()
    assert (shown.out + shown.err).replace("\n", "").isprintable()
    assert bytes_of(folder) == before


def test_hostile_names_and_words_of_the_index_are_shown_inert(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = known_pages()
    files = json.loads(pages[f"{INDEX}/xformers/"])["files"]
    hostile = listed("xformers-9.9.tar.gz", DAY, **{"requires-python": ">=3 \x1b]0;x\x07\u202e"})
    pages[f"{INDEX}/xformers/"] = project(*files, hostile)
    pages[f"{FILES}/xformers-9.9.tar.gz"] = source("xformers", "9.9", ("torch",))
    run(folder, pages, "--only", "xformers", "--write")
    shown = capsys.readouterr()
    assert (shown.out + shown.err).replace("\n", "").isprintable()
    row = next(r for r in table(folder, "companions")["releases"] if r["version"] == "9.9")
    assert row["python"] is None
    assert "binaries of xformers 9.9 are for is to be looked up by hand" in shown.out


def test_a_wish_for_an_unknown_place_is_wrong_usage(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(folder, {}, "--only", "torch,nonsense\x1b[31m")
    assert ended.value.code == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are POSIX")
def test_a_write_that_fails_leaves_every_file_whole(folder: Path) -> None:
    import resource

    before = bytes_of(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = bytes_of(folder)
    assert after.keys() == before.keys()
    assert (
        after[str(folder / "tables" / "torch.json")]
        == before[str(folder / "tables" / "torch.json")]
    )
    run(folder, new_pages(), "--only", PYPI_ONLY, "--write")
    assert table(folder, "torch")["releases"][0]["torch"] == NEW


def test_the_command_explains_itself_and_its_exit_codes() -> None:
    argv = [sys.executable, "-m", "cudadoctor.knowledge.update", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "--check" in done.stdout
    assert "Exit code: 0" in done.stdout
