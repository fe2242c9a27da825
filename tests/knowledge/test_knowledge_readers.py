"""What the update reads, text by text: names of wheels, listings, public tables; and the merge."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from update_fixtures import CODE, Pages, autumn, html, metadata

from cudadoctor.knowledge.renewed import ORDER, Values
from cudadoctor.knowledge.update import torch_rows
from cudadoctor.knowledge.update.fetching import NotRead
from cudadoctor.knowledge.update.index import (
    archs_in,
    cuda_in,
    files_of,
    name_of,
    releases_of,
    requirements_in,
    specifier_on,
)
from cudadoctor.knowledge.update.public import (
    CONDA_FORGE_URL,
    CUDA_NOTES_URL,
    DOCKER_HUB_URL,
    RELEASE_MATRIX_URL,
    conda_forge,
    cuda_notes,
    docker_hub,
    release_matrix,
)
from cudadoctor.knowledge.update.rows import SOURCES, Update
from cudadoctor.knowledge.update.torch_rows import Paired, pair_for

TABLES = autumn()
SAVED = pickle.dumps(TABLES)
PAGE = "https://download.pytorch.org/whl/cu130/torch/"


def updated(reader: Callable[[Update], None], url: str, body: bytes | str) -> Update:
    """The tables after that page was read."""
    page = body.encode() if isinstance(body, str) else body
    update = Update(pickle.loads(SAVED), Pages({url: page}))
    reader(update)
    return update


def rows_in(update: Update, table: str) -> list[Values]:
    """The rows that differ from the tables, or that these lack."""
    name, _, part = table.partition(".")
    return [row for row in update.tables[name][part] if row not in TABLES[name][part]]


MACS = ["macos_arm64", "macos_x86_64"]

# --- names of wheels --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pythons", "platforms", "glibc"),
    [
        ("torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl", ["3.13"], ["linux_x86_64"], "2.28"),
        ("torch-2.15.0-cp314-cp314t-win_amd64.whl", ["3.14t"], ["windows_amd64"], None),
        ("torch-2.9.0-cp312-none-macosx_11_0_arm64.whl", ["3.12"], ["macos_arm64"], None),
        ("torch-1.13.1-cp37-cp37m-manylinux1_x86_64.whl", ["3.7"], ["linux_x86_64"], "2.17"),
        ("torch-2.5.1+cu121-cp39-cp39-linux_x86_64.whl", ["3.9"], ["linux_x86_64"], None),
        (
            "triton-3.5.0-cp310-cp310-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            ["3.10"],
            ["linux_x86_64"],
            "2.27",
        ),
        ("x-1-py3-none-manylinux2014_aarch64.whl", ["any"], ["linux_aarch64"], "2.17"),
        ("x-1-cp39-abi3-win_arm64.whl", ["3.9+"], ["windows_arm64"], None),
        ("x-1-cp39-abi3-macosx_11_0_universal2.whl", ["3.9+"], MACS, None),
        ("x-1-cp39-abi3-musllinux_1_2_x86_64.whl", ["3.9+"], [], None),
        ("x-1-py3-none-any.whl", ["any"], ["any"], None),
    ],
)  # fmt: skip
def test_the_name_of_a_wheel_says_what_it_is_for(
    name: str, pythons: list[str], platforms: list[str], glibc: str | None
) -> None:
    wheel = name_of(name)
    found = (list(wheel.pythons), list(wheel.platforms), wheel.glibc)
    assert found == (pythons, platforms, glibc)


@given(st.text(max_size=60))
def test_any_other_name_is_no_wheel_and_no_error(name: str) -> None:
    found = name_of(name)
    assert not found.platforms or name.endswith(".whl")
    assert not found.project or "-" in name


def test_a_page_without_json_is_read_too() -> None:
    page = html("torch-2.15.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl", "torchvision-1.tar.gz")
    (file,) = files_of("torch", page, PAGE)
    assert file.filename == "torch-2.15.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl"
    assert file.url.startswith(f"{PAGE}torch-2.15.0%2Bcu130-")
    assert (file.day, file.size_bytes, file.yanked) == (None, None, False)


def test_what_a_link_says_of_its_file_is_read() -> None:
    said = 'data-requires-python="&gt;=3.11" data-yanked="bad"'
    page = f'<html><a href="/f/torch-9.0.tar.gz#sha256=1" {said}>x</a></html>'.encode()
    (file,) = files_of("torch", page, "https://pypi.org/simple/torch/")
    assert (file.python, file.yanked) == (">=3.11", True)
    assert file.url == "https://pypi.org/f/torch-9.0.tar.gz"


def test_a_link_that_is_no_address_leaves_its_file_without_one() -> None:
    body = b'{"files": [{"filename": "torch-1.tar.gz", "url": "//["}]}'
    assert [file.url for file in files_of("torch", body, PAGE)] == [""]


# --- inside of wheels -------------------------------------------------------------------------


def test_requirements_end_where_the_description_begins() -> None:
    read = requirements_in(metadata("x", "1", ("torch>=2.4", 'numpy; extra == "all"')))
    assert read == ["torch>=2.4", 'numpy; extra == "all"']


def test_a_requirement_behind_an_extra_is_none_on_torch() -> None:
    assert specifier_on("torch", ('torch==1.0; extra == "old"', "torch>=2.4,<3")) == "<3,>=2.4"
    assert specifier_on("torch", ("numpy", "torchvision==1")) == ""


def test_a_cpu_build_names_no_cuda() -> None:
    source = b"__version__ = '2.16.0+cpu'\r\ncuda: Optional[str] = None\r\n"
    assert cuda_in(source) is None
    assert cuda_in(b"__version__ = '1.13.1+cu117'\ncuda = '11.7'\n") == "11.7"


def test_the_longest_list_of_code_in_a_library_is_the_list() -> None:
    flags = " ".join(CODE).encode()
    assert archs_in(b"\0sm_90\0 sm_1\0" + flags + b" \0compute_90\0") == [*CODE]
    assert archs_in(b"std::string ipc_h" + flags + b"\0\0") == [*CODE]
    assert archs_in(b"no code sm_90 here") is None


# --- torch's own index ------------------------------------------------------------------------


def variant_page(variant: str, *names: str) -> Update:
    """The tables after the page of a variant was read."""
    page = html(*(f"torch-{name}.whl" for name in names))
    return updated(lambda update: torch_rows.enter_variant(update, variant, PAGE), PAGE, page)


def on_index(variant: str, *names: str) -> dict[tuple[str, str], Any]:
    """What a page changes: (release, platform) -> published."""
    rows = rows_in(variant_page(variant, *names), "torch.builds")
    return {(row["torch"], row["platform"]): row["published"] for row in rows}


def test_a_listed_wheel_is_published_and_a_lacking_one_is_known_absent() -> None:
    said = on_index("cu130", "2.15.0+cu130-cp313-cp313-manylinux_2_28_x86_64")
    newest = {key: value for key, value in said.items() if key[0] == "2.15.0"}
    assert newest == {
        ("2.15.0", "linux_x86_64"): True,
        ("2.15.0", "linux_aarch64"): False,
        ("2.15.0", "windows_amd64"): False,
    }


def test_a_page_never_makes_a_published_build_absent() -> None:
    update = variant_page("cu130", "2.15.0+cu130-cp313-cp313-win_amd64")
    was = {
        (row["torch"], row["platform"]): row["published"]
        for row in TABLES["torch"]["builds"]
        if row["variant"] == "cu130"
    }
    rows = rows_in(update, "torch.builds")
    absent = [row for row in rows if row["published"] is False]
    assert absent
    assert all(was[row["torch"], row["platform"]] is None for row in absent)
    assert any("no longer on its index" in text for text in update.remarks)


def test_a_page_without_what_is_known_to_be_published_proves_no_absence() -> None:
    wheel = "2.14.1+cu126-cp313-cp313-manylinux_2_28_x86_64"
    assert ("1.7.1", "windows_amd64") not in on_index("cu92", wheel.replace("cu126", "cu92"))
    old = "1.7.1+cu92-cp38-cp38-linux_x86_64"
    assert on_index("cu92", old)["1.7.1", "windows_amd64"] is False


def test_a_new_variant_becomes_rows_of_the_newest_releases_only() -> None:
    said = on_index(
        "cu134",
        "2.15.0+cu134-cp313-cp313-manylinux_2_28_x86_64",
        "2.5.0+cu134-cp313-cp313-manylinux_2_28_x86_64",
        "2.16.0.dev20261201+cu134-cp313-cp313-manylinux_2_28_x86_64",
    )
    assert said == {("2.15.0", "linux_x86_64"): True}
    assert torch_rows.cuda_of("cu134") == "13.4"


def test_pages_that_can_say_nothing_new_are_not_asked_for() -> None:
    page = html("cu92/", "cu118/", "cu130/", "cu134/", "cpu/", "rocm7.2/", "xpu/", "torch/")
    listed = torch_rows.variants_in(page, "https://download.pytorch.org/whl/")
    assert listed == ("cpu", "cu92", "cu118", "cu130", "cu134")
    asked = torch_rows.variants_to_read(listed, TABLES)
    assert asked == ("cpu", "cu92", "cu130", "cu134")
    unknown = {row["variant"] for row in TABLES["torch"]["builds"] if row["published"] is None}
    assert "cu92" in unknown
    assert "cu118" not in unknown


# --- public tables ----------------------------------------------------------------------------

MATRIX = """
| PyTorch version | Python | C++ | Stable CUDA | Experimental CUDA | Stable ROCm |
| --- | --- | --- | --- | --- | --- |
| 2.15 | >=3.11 | C++20 | CUDA 13.0 (CUDNN 9.26.0.51), CUDA 13.2 (CUDNN 9.26.0.51) | CUDA 13.4 | x |
| 2.14 | >=3.10 | C++20 | CUDA 12.6 | None | ROCm 7.2 |
"""


def test_a_variant_in_the_matrix_is_announced_not_published() -> None:
    rows = rows_in(updated(release_matrix, RELEASE_MATRIX_URL, MATRIX), "torch.builds")
    assert {row["variant"] for row in rows} == {"cu134"}
    assert {row["torch"] for row in rows} == {"2.15.0"}
    assert {row["published"] for row in rows} == {None}
    assert not [row for row in rows if row["platform"].startswith("macos")]


def tags(*names: str) -> str:
    """The only page of Docker Hub."""
    return json.dumps({"results": [{"name": name} for name in names], "next": None})


def test_tags_of_a_new_cuda_release_become_rows() -> None:
    names = ("13.5.0-base-ubuntu26.04", "13.5.0-cudnn-devel-ubuntu26.04", "latest", "12-x\x1b[0m")
    update = updated(docker_hub, DOCKER_HUB_URL, tags(*names))
    (row,) = rows_in(update, "images.tags")
    assert (row["cuda"], row["flavours"]) == ("13.5.0", ["base", "cudnn-devel"])
    assert update.tables["images"]["complete_to"] == "13.5.0"


def test_conda_forge_is_read_by_requirement_then_by_the_name_of_the_build() -> None:
    def file(version: str, subdir: str, build: str, *depends: str) -> dict[str, object]:
        attrs = {"subdir": subdir, "build": build, "depends": list(depends)}
        return {"version": version, "attrs": attrs}

    files = [
        file("2.14.1", "linux-64", "cuda130_mkl_py312", "cuda-version >=13.0,<14"),
        file("2.14.1", "win-64", "cuda128_py312"),
        file("2.14.1", "osx-arm64", "cpu_py312"),
        file("2.16.0rc1", "linux-64", "cuda130_py312"),
    ]
    update = updated(conda_forge, CONDA_FORGE_URL, json.dumps(files))
    (row,) = rows_in(update, "conda.conda_forge")
    assert row == {"torch": "2.14.1", "cuda": ["linux_64:13.0", "win_64:12.8"]}


def notes(*rows: tuple[str, str, str]) -> str:
    cells = ("".join(f"<td><p>{cell}</p></td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def test_release_notes_name_the_driver_of_a_new_toolkit_as_uncertain() -> None:
    text = notes(("CUDA 13.6 GA", "&gt;=620.10.01", "N/A"), ("CUDA 9.2", "&gt;= 396.26", "x"))
    (row,) = rows_in(updated(cuda_notes, CUDA_NOTES_URL, text), "drivers.toolkits")
    assert (row["toolkit"], row["linux"], row["uncertain"]) == ("13.6.0", "620.10.01", True)


def test_release_notes_contradict_nothing_they_are_told_only() -> None:
    text = notes(("CUDA 13.0 GA", "&gt;=999.10", "N/A"))
    update = updated(cuda_notes, CUDA_NOTES_URL, text)
    assert update.tables == TABLES
    assert update.remarks == [
        "The release notes of CUDA 13.0.0 name driver 999.10, the tables 580.65.06."
    ]


def test_a_branch_newer_than_the_tables_runs_the_newest_cuda_that_it_came_with() -> None:
    text = notes(
        ("CUDA 13.7 Update 1", "&gt;=620.20.01", "N/A"),
        ("CUDA 13.6 GA", "&gt;=620.10.01", "N/A"),
        ("CUDA 13.4 Update 1", "&gt;=615.10", "N/A"),
        ("CUDA 13.0 GA", "&gt;=999.10", "N/A"),
    )
    (row,) = rows_in(updated(cuda_notes, CUDA_NOTES_URL, text), "drivers.branches")
    assert row == {
        "branch": 620,
        "cuda": "13.7",
        "note": None,
        "current": None,
        "sources": ["seen.cuda-notes"],
    }


def test_a_first_release_that_may_never_have_been_is_left_out() -> None:
    text = notes(("CUDA 13.4 GA", "&gt;=615.71.09", "N/A"))
    assert updated(cuda_notes, CUDA_NOTES_URL, text).tables == TABLES


PUBLIC = {
    conda_forge: CONDA_FORGE_URL,
    cuda_notes: CUDA_NOTES_URL,
    docker_hub: DOCKER_HUB_URL,
    release_matrix: RELEASE_MATRIX_URL,
}


@pytest.mark.parametrize("text", ["", "<html></html>", "[]", "{}", "<table><tr><td>CUDA", "| a |"])
def test_a_public_table_of_another_shape_says_nothing(text: str) -> None:
    for reader, url in PUBLIC.items():
        with pytest.raises(NotRead):
            updated(reader, url, text)
    with pytest.raises(NotRead):
        updated(docker_hub, DOCKER_HUB_URL, tags(text))


# --- pairs ------------------------------------------------------------------------------------


def test_a_pin_decides_the_pair_before_the_day_does() -> None:
    known = (Paired("0.30.0", "==2.16.0", "2027-02-01"), Paired("0.31.0", ">=2.14.0", "2026-12-09"))
    assert pair_for("2.16.0", "2026-12-09", known) == "0.30.0"
    assert pair_for("2.17.0", "2026-12-09", known) == "0.31.0"
    assert pair_for("2.17.0", "2027-06-01", known) is None
    assert pair_for("2.17.0", None, known) is None


# --- the merge --------------------------------------------------------------------------------


def entered(table: str, key: dict[str, str], **values: Any) -> Update:
    """The tables after the package index said that."""
    update = Update(pickle.loads(SAVED), Pages({}), day="2026-12-10")
    update.enter("pypi", "https://pypi.org/simple/torch/", table, key, values)
    return update


def build(torch: str) -> dict[str, str]:
    return {"torch": torch, "variant": "cu130", "platform": "linux_x86_64"}


def test_a_row_enters_with_its_source() -> None:
    after = entered("torch.builds", build("2.15.1"), cuda="13.0").tables
    row = next(row for row in after["torch"]["builds"] if row["torch"] == "2.15.1")
    assert (row["cuda"], row["sources"]) == ("13.0", ["seen.pypi"])
    source = after["sources"]["sources"]["seen.pypi"]
    assert (source["url"], source["date"]) == ("https://pypi.org/simple/", "2026-12-10")


def test_entering_a_row_twice_changes_nothing_more() -> None:
    update = entered("torch.builds", build("2.15.1"), cuda="13.0")
    once = copy.deepcopy(update.tables)
    url = "https://pypi.org/simple/torch/"
    update.day = "2027-01-01"
    update.enter("pypi", url, "torch.builds", build("2.15.1"), {"cuda": "13.0", "archs": None})
    assert update.tables == once
    assert len(update.changes) == 1


def test_the_tables_lie_in_the_order_that_an_update_keeps() -> None:
    key = {"package": "xformers", "version": "0.0.35"}
    for after in (
        entered("torch.builds", build("2.15.0"), published=True).tables,
        entered("companions.releases", key, torch=">=2.10").tables,
    ):
        for name in ORDER:
            table, _, part = name.partition(".")
            assert [_identity(row) for row in after[table][part]] == [
                _identity(row) for row in TABLES[table][part]
            ]


def test_a_set_is_added_to_what_is_there_and_what_fills_changes_nothing() -> None:
    update = entered("conda.conda_forge", {"torch": "2.13.0"}, cuda={"linux_64:99.0"})
    (row,) = rows_in(update, "conda.conda_forge")
    (old,) = (row for row in TABLES["conda"]["conda_forge"] if row["torch"] == "2.13.0")
    assert row["cuda"] == sorted([*old["cuda"], "linux_64:99.0"])
    key = {"torch": "2.13.0"}
    update.enter("pypi", "u", "conda.conda_forge", key, {"cuda": ["other"]}, fills=True)
    assert len(update.changes) == 1


def _identity(row: dict[str, Any]) -> list[Any]:
    names = ("torch", "variant", "platform", "package", "version", "cuda", "distro", "toolkit")
    return [row.get(name) for name in names if isinstance(row.get(name), str)]


def test_every_list_that_an_update_writes_has_an_order_and_sources() -> None:
    for name in (*ORDER, *SOURCES):
        table, _, part = name.partition(".")
        place = TABLES[table][part]
        first = place[0] if isinstance(place, list) else {}
        assert "sources" in first or name in SOURCES


# --- whatever a page holds --------------------------------------------------------------------

READABLE = (
    html("torch-2.15.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl"),
    metadata("torch", "1", ("numpy>=2",)),
    MATRIX.encode(),
    notes(("CUDA 13.6 GA", "&gt;=620.10.01", "N/A")).encode(),
    b'{"results": [{"name": "13.5.0-base-ubuntu26.04"}], "next": null}',
    b'[{"version": "2.14.1", "attrs": {"subdir": "linux-64", "build": "cuda130_1"}}]',
    b'{"files": [{"filename": "torch-1.tar.gz", "url": "//["}], "info": {"version": "1"}}',
)
READERS: tuple[Callable[[bytes], object], ...] = (
    lambda body: releases_of("torch", body, PAGE),
    lambda body: torch_rows.variants_in(body, PAGE),
    requirements_in,
    cuda_in,
    archs_in,
)


@st.composite
def harmed(draw: st.DrawFn) -> bytes:
    """A page that is read, with a piece of it replaced."""
    body = draw(st.sampled_from(READABLE))
    start = draw(st.integers(0, len(body)))
    stop = draw(st.integers(start, len(body)))
    middle = draw(st.binary(max_size=6) | st.sampled_from([b"<![x[", b'"\\ud800"', b"9" * 5000]))
    return body[:start] + middle + body[stop:]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | harmed())
def test_every_reader_reads_a_page_or_says_that_it_cannot(body: bytes) -> None:
    update = Update(pickle.loads(SAVED), Pages(dict.fromkeys(PUBLIC.values(), body)))
    for reader in READERS:
        with contextlib.suppress(NotRead):
            reader(body)
    for of_tables in PUBLIC:
        with contextlib.suppress(NotRead):
            of_tables(update)
