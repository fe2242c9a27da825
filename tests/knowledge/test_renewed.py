"""A file of rows beside our tables: what it may say, what comes of it, and what it may never do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from scenario_reader import healthy_machine
from update_fixtures import (
    BUILD,
    INDEX,
    RELEASE,
    TAGS,
    Pages,
    known_pages,
    project,
    rows,
    torch_files,
    torch_wheel,
)

from cudadoctor import knowledge
from cudadoctor.knowledge import renewed
from cudadoctor.knowledge import tables as loader
from cudadoctor.knowledge.renewed import BadFile, Tables
from cudadoctor.knowledge.update import places
from cudadoctor.knowledge.update.rows import Update
from cudadoctor.model.versions import DriverVersion
from cudadoctor.solver.builds import best_build

OWN = renewed.packaged()
DAY = "2099-01-02"
NEW = RELEASE["torch"]


def file(tables: Any, day: str = DAY) -> bytes:
    return renewed.document(tables, day, "0.1.0")


def whole(tables: Tables) -> Tables:
    """Our tables with those of a file."""
    return {**OWN, **renewed.merged(OWN, renewed.read(file(tables), OWN))}


@pytest.fixture(autouse=True)
def _ours_again() -> Iterator[None]:
    yield
    loader.RENEWED.clear()


# --- rows on rows -------------------------------------------------------------------------------


def test_a_new_release_is_in_its_place_and_everything_else_as_it_was() -> None:
    found = whole(rows())
    assert [row["torch"] for row in found["torch"]["releases"][:2]] == [NEW, "2.15.0"]
    assert found["torch"]["builds"][0] == BUILD
    assert found["torch"]["builds"][1:] == OWN["torch"]["builds"]
    assert found["torch"]["collected"] == DAY
    assert [*renewed.problems(found)] == []
    assert "gpus" not in found


def test_the_loader_reads_what_a_file_adds() -> None:
    assert renewed.use(file(rows()), signed=False)
    kb = knowledge.Knowledge()
    build = kb.build_of(Version(NEW), "cu130", "linux_x86_64")
    assert build is not None
    assert (build.archs, build.pythons) == (tuple(BUILD["archs"]), ("3.12",))
    assert (kb.date, str(kb.newest_torch), kb.is_renewed) == (DAY, NEW, True)


def test_a_null_says_nothing_and_a_value_says_what_was_not_known() -> None:
    key = {"torch": "2.15.0", "variant": "cu132", "platform": "windows_amd64"}
    before = next(row for row in OWN["torch"]["builds"] if key.items() <= row.items())
    assert (before["published"], before["toolkit"]) == (None, "13.2.2")
    found = whole({"torch": {"builds": [{**key, "published": True, "toolkit": None}]}})
    row = next(row for row in found["torch"]["builds"] if key.items() <= row.items())
    assert row == {**before, "published": True}


def test_sources_of_a_row_are_added_and_those_behind_our_rows_stay_ours() -> None:
    told = {"title": "told", "url": None, "date": DAY}
    found = whole(
        {
            "torch": {"builds": [{**dict.fromkeys(BUILD), **KEY, "sources": ["seen.pypi"]}]},
            "sources": {"sources": {"torch.pypi": told, "seen.pypi": told}},
        }
    )
    row = next(row for row in found["torch"]["builds"] if KEY.items() <= row.items())
    before = next(row for row in OWN["torch"]["builds"] if KEY.items() <= row.items())
    assert row["sources"] == [*before["sources"], "seen.pypi"]
    sources = found["sources"]["sources"]
    assert sources["torch.pypi"] == OWN["sources"]["sources"]["torch.pypi"]
    assert sources["seen.pypi"] == told


KEY = {"torch": "2.15.0", "variant": "cu132", "platform": "linux_x86_64"}


@pytest.mark.parametrize(("days", "used"), [(-1, False), (0, True), (1, True)])
def test_our_own_tables_win_when_they_are_newer(days: int, used: bool) -> None:
    from datetime import date, timedelta

    day = date.fromisoformat(OWN["torch"]["collected"]) + timedelta(days)
    assert renewed.use(file(rows(), day.isoformat()), signed=False) is used
    assert str(knowledge.Knowledge().newest_torch) == (NEW if used else "2.15.0")


def test_a_difference_put_on_our_tables_gives_the_new_ones() -> None:
    new = deepcopy(whole(rows()))
    new["torch"]["builds"][5]["published"] = True
    new["companions"]["triton"]["2.99.0"] = "~=3.9"
    new["images"]["complete_to"] = "13.4.2"
    new["torch"]["collected"] = DAY
    part = renewed.difference(OWN, new)
    assert len(part["torch"]["builds"]) == 2
    assert len(part["torch"]["builds"][1]) == len(KEY) + 1
    assert whole(part) == new
    assert whole(renewed.difference({}, new)) == new
    assert renewed.difference(OWN, OWN) == {}


# --- what it may never do -----------------------------------------------------------------------

CASES: dict[str, Any] = {
    "an index": {"practice": {"jetson": [{"l4t": 36, "index": "https://evil.example/simple"}]}},
    "another list": {"torch": {"collected": "2099-01-01"}},
    "another column": rows(index="https://evil.example/simple"),
    "a variant": rows(variant="cu130/../../evil"),
    "a variant with a line": rows(variant="cu130\n"),
    "a platform": rows(platform="linux_x86_64; rm -rf ~"),
    "a number of lists": {"torch": {"releases": {"torch": NEW}}},
    "a float": rows(bytes=1.5),
    "a truth": rows(default="yes"),
    "no list": rows(archs="sm_80"),
    "a list of lists": rows(archs=[["sm_80"]]),
    "a null in a list": rows(archs=[None]),
    "a null for a list": {"torch": {"builds": None}},
    "a null for a row": {"torch": {"builds": [None]}},
    "a null for a key": rows(platform=None),
    "a null for a source": rows(sources=None),
    "a key twice": {"torch": {"releases": [RELEASE, RELEASE]}},
    "no key": {"torch": {"releases": [{"released": "2099-01-01"}]}},
    "half a row": {"torch": {"releases": [{"torch": NEW, "released": "2099-01-01"}]}},
    "no release": {"torch": {"builds": [BUILD]}},
    "no such source": rows(sources=["no.such"]),
    "a companion version": {"torch": {"releases": [{**RELEASE, "torchvision": "1; curl x|sh"}]}},
    "an option": {"torch": {"releases": [{**RELEASE, "torchvision": "--index-url"}]}},
    "a direct address": {
        "pins": {
            "pins": [
                {
                    "torch": "2.15.0",
                    "platform": "linux_x86_64",
                    "requires": ["nvidia-nccl-cu13 @ https://evil.example/x.whl"],
                }
            ]
        }
    },
    "another project": {
        "pins": {"pins": [{"torch": "2.15.0", "platform": "linux_x86_64", "requires": ["evil==1"]}]}
    },
    "a package of its own": {
        "companions": {
            "releases": [
                {
                    "package": "evil",
                    "version": "1.0",
                    "torch": "",
                    "python": None,
                    "platforms": [],
                    "pythons": [],
                    "sources": ["seen.pypi"],
                }
            ]
        }
    },
    "a specifier": {"companions": {"triton": {"2.99.0": "==1.0; x"}}},
    "half a specifier": {"companions": {"triton": {"2.99.0": "~=3"}}},
    "no version": {"companions": {"triton": {"2.99.0": "==3.0dev1rc1"}}},
    "a star behind a suffix": {"companions": {"triton": {"2.99.0": "==1.0a1.*"}}},
    "no table": {"x": {}},
    "a path for a table": {"../torch": {}},
    "a pin of another project": {
        "companions": {
            "pins": [
                {
                    "package": "vllm",
                    "version": "0.11.0",
                    "requires": ["evil==1.0"],
                    "sources": ["seen.pypi"],
                }
            ]
        }
    },
    "an escape": {"drivers": {"branches": [{"branch": 615, "note": "\x1b]0;x\x07"}]}},
    "a mark of direction": {"drivers": {"branches": [{"branch": 615, "note": "\u202e"}]}},
    "an address that runs": {
        "sources": {"sources": {"a.b": {"title": "x", "url": "javascript:x", "date": None}}}
    },
    "a distribution": {"images": {"tags": [{"cuda": "13.0.0", "distro": "x/y:1"}]}},
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_not_stand_in_a_file_refuses_it_whole(name: str) -> None:
    before = deepcopy(OWN)
    with pytest.raises(BadFile) as refused:
        renewed.use(file(CASES[name]), signed=False)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200
    assert loader.RENEWED == {}
    assert before == OWN


BUILT: dict[str, Callable[[], Tables]] = {
    "is not of CUDA": lambda: rows(cuda="12.8"),
    "second default": lambda: {
        "torch": {
            "releases": [RELEASE],
            "builds": [BUILD, {**BUILD, "variant": "cu132", "cuda": "13.2"}],
        }
    },
}


@pytest.mark.parametrize("what", BUILT)
def test_a_file_is_signed_off_by_the_checks_of_our_own_tables(what: str) -> None:
    with pytest.raises(BadFile, match=what):
        renewed.use(file(BUILT[what]()), signed=False)


def new_rows() -> Iterator[tuple[str, str]]:
    for name in renewed.KEYS:
        for column in renewed.CELLS[name][0].keys() - set(renewed.KEYS[name]):
            yield name, column


@pytest.mark.parametrize(("name", "column"), sorted(new_rows()))
def test_a_new_row_with_a_null_is_refused_or_can_be_read(name: str, column: str) -> None:
    table, _, part = name.partition(".")
    key = {"torch": NEW, "version": "99.0", "cuda": "99.0", "toolkit": "99.0.0", "branch": 999}
    row = {**OWN[table][part][0], **{k: key[k] for k in renewed.KEYS[name] if k in key}}
    file_of = {"torch": {"releases": [RELEASE]}} | {table: {part: [{**row, column: None}]}}
    if name == "torch.builds":
        file_of["torch"]["releases"] = [RELEASE]
    try:
        assert renewed.use(file(file_of), signed=False)
    except BadFile:
        return
    read_whole(knowledge.Knowledge())


def read_whole(kb: knowledge.Knowledge) -> None:
    """Read every table that a file can renew."""
    assert kb.builds
    assert kb.driver_floor(Version("13.0"), "Linux")
    assert kb.newest_docker_tag(Version("12.6"), "base", "ubuntu24.04")
    assert kb.newest_on_conda("conda-forge")
    assert kb.default_pins(Version("2.14.1"), "linux_x86_64")
    assert kb.companion("torchvision", Version("2.14.1"))
    assert kb.library_names


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 1}',
        b'{"format": "1", "cudadoctor": "0.1.0", "collected": "2099-01-01", "tables": {}}',
        b'{"format": 1, "cudadoctor": "0.1.0", "collected": "2099-01-01", "tables": [], "x": 1}',
        b'{"format": 1, "cudadoctor": "0.1.0", "collected": "yesterday", "tables": {}}',
        b'{"format": 1, "cudadoctor": "0.1.0", "collected": "2099-01-01", "tables": {"torch": 1}}',
    ],
)
def test_what_no_update_wrote_is_refused(data: bytes) -> None:
    with pytest.raises(BadFile):
        renewed.use(data, signed=True)


CELL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda items: (
        st.lists(items, max_size=2) | st.dictionaries(st.text(max_size=9), items, max_size=2)
    ),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from _places(item, (*path, key))


SOUND: dict[str, Any] = json.loads(
    file(
        renewed.difference(
            {},
            {
                name: {k: v[:1] if isinstance(v, list) else v for k, v in t.items()}
                for name, t in OWN.items()
                if name != "sources"
            },
        )
    )
)
SPOTS = sorted(_places(SOUND), key=str)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SPOTS), CELL)
def test_whatever_stands_anywhere_in_a_file_is_refused_or_can_be_read(
    spot: tuple[Any, ...], cell: Any
) -> None:
    loader.RENEWED.clear()
    harmed = deepcopy(SOUND)
    place: Any = harmed
    for key in spot[:-1]:
        place = place[key]
    place[spot[-1]] = cell
    for signed in (True, False):
        try:
            renewed.use(json.dumps(harmed).encode(), signed=signed)
        except BadFile as error:
            assert str(error).isprintable()
        read_whole(knowledge.Knowledge())
    loader.RENEWED.clear()


def test_a_format_to_come_is_said_to_be_one() -> None:
    with pytest.raises(BadFile, match="another cudadoctor version"):
        renewed.use(b'{"format": 2, "cudadoctor": "9.0", "more": []}', signed=True)


def test_a_table_without_a_part_changes_nothing() -> None:
    assert whole({"sources": {}})["sources"] == OWN["sources"]


def test_an_empty_file_of_today_moves_the_day_alone() -> None:
    assert renewed.use(file({}), signed=False)
    kb = knowledge.Knowledge()
    assert (kb.date, str(kb.newest_torch)) == (DAY, "2.15.0")


def test_a_file_names_no_wheel_that_no_torch_of_ours_requires() -> None:
    known, line = "nvidia-nccl-cu13==9.9.9", "nvidia-anything-cu13==1.0"
    row = {**OWN["pins"]["pins"][0], "requires": [known, line]}
    tables = {"pins": {"pins": [row]}}
    with pytest.raises(BadFile, match="nvidia-anything-cu13"):
        renewed.use(file(tables), signed=False)
    # An update that reads of such a wheel leaves it out, and is not lost for it.
    rest = renewed.without_strangers(tables, OWN)
    assert renewed.use(file(rest), signed=False)
    kb = knowledge.Knowledge()
    assert kb.default_pins(Version(row["torch"]), row["platform"]) == (known,)
    assert row["requires"] == [known, line]


def test_of_a_branch_of_which_nobody_says_that_it_is_current_nothing_is_prescribed() -> None:
    branch = {"branch": 999, "cuda": "19.9", "sources": ["seen.pypi"]}
    source = {"seen.pypi": {"title": "t", "url": "https://pypi.org", "date": DAY}}
    tables = {"drivers": {"branches": [branch]}, "sources": {"sources": source}}
    assert renewed.use(file(tables), signed=False)
    kb = knowledge.Knowledge()
    assert kb.native_cuda(DriverVersion("999.10")) == Version("19.9")
    assert kb.branch_for(Version("19.9")) is None
    assert kb.branch_is_current(999) is None


# --- a gap that matters -------------------------------------------------------------------------


def chosen(**build: Any) -> str:
    """The release that a machine without torch is given, where the newest lacks these cells."""
    from msgspec.structs import replace

    loader.RENEWED.clear()
    assert renewed.use(file(rows(**build)), signed=False)
    machine = healthy_machine("rtx4090-linux")
    absent = replace(machine.torch, version=None, installed=False, cuda=None, build=None)
    machine = replace(machine, torch=absent, packages=())
    found = best_build(machine, knowledge.Knowledge()).build
    assert found is not None
    return str(found.torch)


def test_a_build_of_which_all_is_known_is_prescribed() -> None:
    assert chosen(archs=["sm_80", "sm_89"]) == NEW


@pytest.mark.parametrize("column", ["published", "archs", "glibc"])
def test_a_build_with_a_gap_that_matters_is_never_prescribed(column: str) -> None:
    assert chosen(**{column: None}) != NEW


@pytest.mark.parametrize("column", ["toolkit", "bytes", "cudnn"])
def test_a_gap_that_does_not_matter_here_keeps_nothing_back(column: str) -> None:
    # Every cuDNN that may be in it supports this GPU.
    assert chosen(**{column: None}) == NEW


def test_an_unknown_cudnn_matters_to_the_gpus_that_some_cudnn_refuses() -> None:
    from cudadoctor.solver.demand import demand_of
    from cudadoctor.solver.fit import block

    for archs, capability, expected in (
        (["sm_70"], "7.0", "gap"),
        (["sm_75"], "7.5", None),
    ):
        loader.RENEWED.clear()
        assert renewed.use(file(rows(cudnn=None, archs=archs)), signed=False)
        kb = knowledge.Knowledge()
        build = kb.build_of(Version(NEW), "cu130", "linux_x86_64")
        demand = demand_of(healthy_machine("rtx4090-linux"), kb)
        from msgspec.structs import replace

        assert build is not None
        asked = replace(demand, capabilities=(Version(capability),))
        assert block(build, asked) == expected, capability


# --- the bar: the two newest releases come back -------------------------------------------------

PLATFORMS = {tag: platform for platform, tag in TAGS.items()}
GONE = ("2.15.0", "2.14.1")
LOST = {
    "2.15.0": {"linux_x86_64": "13.2", "linux_aarch64": "13.2"},
    "2.14.1": {"linux_x86_64": "13.0", "linux_aarch64": "13.0"},
}


def without_the_newest() -> Tables:
    """Our tables as they were before the two newest releases of torch."""
    cut = deepcopy(OWN)
    for table, part in (
        ("torch", "releases"),
        ("torch", "builds"),
        ("pins", "pins"),
        ("libraries", "nccl"),
    ):
        cut[table][part] = [row for row in cut[table][part] if row["torch"] not in GONE]
    del cut["companions"]["triton"]["2.15"]
    return cut


def pages() -> dict[str, bytes]:
    """PyPI as it is, with the wheels of the two releases as small ones."""
    pages, files = known_pages(), torch_files()
    pins = {(row["torch"], row["platform"]): row["requires"] for row in OWN["pins"]["pins"]}
    for row in files:
        name, url = str(row["filename"]), str(row["url"])
        _, release, _, _, tag = name.split("-")
        if release in GONE:
            platform = PLATFORMS[tag.removesuffix(".whl")]
            requires = tuple(pins.get((release, platform), ()))
            code = archs(release, platform)
            pages[url] = torch_wheel(release, LOST[release].get(platform), requires, code=code)
    pages[f"{INDEX}/torch/"] = project(*files)
    vision = json.loads(pages[f"{INDEX}/torchvision/"])["files"]
    days = {"0.29.2": "2026-10-28", "0.29.1": "2026-09-30"}
    for row in vision:
        release = str(row["filename"]).removeprefix("torchvision-").removesuffix(".tar.gz")
        if release in days:
            row["upload-time"] = f"{days[release]}T10:00:00Z"
    pages[f"{INDEX}/torchvision/"] = project(*vision)
    return pages


def archs(release: str, platform: str) -> tuple[str, ...]:
    row = next(
        row
        for row in OWN["torch"]["builds"]
        if (row["torch"], row["platform"], row["default"]) == (release, platform, True)
    )
    return tuple(row["archs"])


def brought_back() -> Update:
    cut = without_the_newest()
    update = Update(tables=deepcopy(cut), fetch=Pages(pages()), day=DAY, deep=True)
    places.ask(update)
    data = file(renewed.difference(cut, update.tables))
    renewed.sign(data, cut)
    update.tables = {**cut, **renewed.merged(cut, renewed.read(data, cut))}
    return update


def test_what_pypi_can_say_of_the_two_newest_releases_comes_back_equal() -> None:
    found = brought_back()
    for table, part, keys, columns in (
        ("torch", "releases", ("torch",), tuple(RELEASE)),
        ("pins", "pins", ("torch", "platform"), ("requires",)),
        ("libraries", "nccl", ("torch",), ("default_variant", "default")),
    ):
        there = {tuple(row[k] for k in keys): row for row in found.tables[table][part]}
        for row in OWN[table][part]:
            again = there[tuple(row[k] for k in keys)]
            for column in (*columns,):
                assert column == "sources" or again[column] == row[column], (row["torch"], column)
    there = {
        (row["torch"], row["variant"], row["platform"]): row
        for row in found.tables["torch"]["builds"]
    }
    defaults = [row for row in OWN["torch"]["builds"] if row["torch"] in GONE and row["default"]]
    assert len(defaults) == 8
    for row in defaults:
        again = there[row["torch"], row["variant"], row["platform"]]
        assert {**again, "sources": 0} == {**row, "sources": 0}
    assert set(found.unread) == set(places.PLACES)


def test_what_pypi_cannot_say_is_a_gap_by_its_column() -> None:
    told = {gap.fact for gap in places.gaps(brought_back().tables)}
    assert told == {
        "torch 2.15.0 cu132 windows_amd64: published, archs, toolkit",
        "torch 2.15.0 cpu linux_aarch64: published",
        "torch 2.15.0 cpu linux_x86_64: published",
        "torch 2.14.1 cu130 windows_amd64: published, archs, toolkit",
        "torch 2.14.1 cpu linux_aarch64: published",
        "torch 2.14.1 cpu linux_x86_64: published",
    }


def test_what_our_tables_know_from_elsewhere_is_no_gap_of_an_update() -> None:
    assert [*places.gaps(OWN)] == []
