"""`cudadoctor update` as its user runs it, and the files that it saves, as commands read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version
from scenario_reader import healthy_machine
from update_fixtures import INDEX, NEW, NEWEST, Pages, known_pages, new_pages, rows

from cudadoctor import pipeline
from cudadoctor.cli import renewing
from cudadoctor.cli.looking import KNOWLEDGE, use_tables
from cudadoctor.cli.options import Options, WrongUse
from cudadoctor.host import local
from cudadoctor.knowledge import renewed
from cudadoctor.knowledge import tables as loader
from cudadoctor.locale.language import language
from cudadoctor.model import factfile
from cudadoctor.model.versions import DriverVersion
from cudadoctor.render import Report, json_v1, markdown, terminal

DAY = "2099-12-10"
OWN = renewed.packaged()


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where an update saves its tables, in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(KNOWLEDGE, raising=False)
    yield tmp_path / "state" / "cudadoctor" / "knowledge.json"
    loader.RENEWED.clear()


def update(pages: dict[str, bytes], day: str = DAY, **options: Any) -> int:
    return renewing.update(Options(**options), fetch=Pages(pages), day=day)


def releases(file: Path) -> list[str]:
    document = json.loads(file.read_bytes())
    return [row["torch"] for row in document["tables"].get("torch", {}).get("releases", ())]


# --- the update ---------------------------------------------------------------------------------


def test_a_new_torch_is_saved_whole_and_every_place_that_failed_is_named(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(new_pages()) == 0
    assert releases(saved) == [NEW]
    assert json.loads(saved.read_bytes())["collected"] == DAY
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Tables updated to {DAY}. New or changed rows: ")
    assert f"New: torch {NEW}, torchvision 9.30.0\n" in shown.out
    assert f"torch {NEW} cpu linux_x86_64: published\n" in shown.out
    assert str(saved) in shown.out
    for place in ("download.pytorch.org", "docs.nvidia.com", "hub.docker.com", "anaconda.org"):
        assert shown.err.count(place) == 1, place
    assert shown.err.count("\n") == 5


def test_what_was_saved_is_what_the_next_command_judges_with(saved: Path) -> None:
    update(new_pages())
    from cudadoctor.knowledge import Knowledge

    use_tables()
    kb = Knowledge()
    assert (str(kb.newest_torch), kb.date, kb.is_renewed) == (NEW, DAY, True)
    codes = {build.archs for build in kb.builds if str(build.torch) == NEW and build.default}
    assert ("sm_75", "sm_80", "sm_90", "sm_120") in codes


def test_nothing_new_moves_the_day_and_costs_one_line(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(known_pages(), quiet=True) == 0
    assert capsys.readouterr().out == f"The tables are up to date ({DAY}).\n"
    assert json.loads(saved.read_bytes())["collected"] == DAY
    assert releases(saved) == []


def test_a_second_update_goes_on_from_the_first(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update(new_pages())
    capsys.readouterr()
    pages = {url: page for url, page in new_pages().items() if not url.endswith(".whl")}
    assert update(pages, day="2099-12-11") == 0  # the wheels are not read again
    assert releases(saved) == [NEW]
    assert "The tables are up to date (2099-12-11)." in capsys.readouterr().out


def test_offline_nothing_is_saved_and_what_was_there_stays(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update({}) == renewing.NOT_ASKED
    assert not saved.exists()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"so the tables are still from {OWN['torch']['collected']}" in shown.err
    update(new_pages())
    before = saved.read_bytes()
    assert update({}, day="2099-12-30") == renewing.NOT_ASKED
    assert saved.read_bytes() == before


def test_an_index_that_answers_in_part_keeps_the_day(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = new_pages()
    del pages[f"{INDEX}/vllm/"]
    assert update(pages) == renewing.NOT_ASKED
    assert releases(saved) == [NEW]
    assert json.loads(saved.read_bytes())["collected"] == OWN["torch"]["collected"]
    assert "vllm" in capsys.readouterr().err


def test_what_an_index_may_not_say_is_not_saved(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = known_pages()
    page = json.loads(pages[f"{INDEX}/xformers/"])
    page["files"].append(
        {
            "filename": "xformers-9!9.9.tar.gz",
            "url": "https://files.pythonhosted.org/packages/xformers-9!9.9.tar.gz",
            "upload-time": f"{DAY}T10:00:00Z",
        }
    )
    pages[f"{INDEX}/xformers/"] = json.dumps(page).encode()
    from update_fixtures import FILES, source

    pages[f"{FILES}/xformers-9!9.9.tar.gz"] = source("xformers", "9!9.9", ("torch",))
    assert update(pages) == renewing.NOT_ASKED
    assert "is not allowed in companions.releases" in capsys.readouterr().err
    assert not saved.exists()


def test_a_check_asks_one_page_and_says_what_it_knows(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Pages(new_pages())
    assert renewing.update(Options(newer=True), fetch=asked, day=DAY) == renewing.NEWER
    assert asked.asked == [f"{INDEX}/torch/"]
    out = capsys.readouterr().out
    assert out == (
        f"PyTorch {NEW} is out; the newest in the tables is {NEWEST}. "
        "To update them, run: cudadoctor update\n"
    )
    assert update(known_pages(), newer=True) == 0
    assert update({}, newer=True) == renewing.NOT_ASKED
    assert not saved.exists()
    update(new_pages())
    assert update(new_pages(), newer=True) == 0


def test_no_home_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "HOME", "USERPROFILE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(WrongUse, match="--output"):
        update(known_pages())


def test_a_relative_state_home_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cudadoctor").mkdir()
    (tmp_path / "cudadoctor" / "knowledge.json").write_bytes(b"{")
    monkeypatch.setenv("XDG_STATE_HOME", ".")
    monkeypatch.setenv("HOME", ".")
    monkeypatch.delenv("USERPROFILE", raising=False)
    assert local.saved_tables(os.environ) is None
    use_tables()
    assert loader.RENEWED == {}


# --- one file for a machine without a network ---------------------------------------------------


def test_the_file_for_another_machine_has_all_tables_and_leaves_ours_alone(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tables.json"
    assert update(new_pages(), output=str(file)) == 0
    assert not saved.exists()
    assert len(releases(file)) == len(OWN["torch"]["releases"]) + 1
    assert str(file) in capsys.readouterr().out
    use_tables(str(file))
    assert loader.RENEWED["torch"]["releases"][0]["torch"] == NEW


def test_a_named_file_comes_before_the_saved_one(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(new_pages())
    file = tmp_path / "tables.json"
    file.write_bytes(renewed.document({}, "2099-01-01", "0.1.0"))
    use_tables(str(file))
    assert loader.RENEWED["torch"]["collected"] == "2099-01-01"
    monkeypatch.setenv(KNOWLEDGE, str(file))
    loader.RENEWED.clear()
    use_tables()
    assert loader.RENEWED["torch"]["collected"] == "2099-01-01"


def test_a_relative_path_in_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KNOWLEDGE, "tables.json")
    with pytest.raises(WrongUse, match="must be an absolute path"):
        use_tables()


def test_a_file_older_than_ours_is_named_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tables.json"
    file.write_bytes(renewed.document({}, "2020-01-01", "0.1.0"))
    use_tables(str(file))
    assert "cudadoctor's own are newer" in capsys.readouterr().err
    assert loader.RENEWED == {}


# --- as a program -------------------------------------------------------------------------------


def _run(*args: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cudadoctor", *args]
    env = {**os.environ, **more}
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, env=env, timeout=120, check=False
    )


def _facts(**more: Any) -> str:
    document = json.loads(factfile.dumps(healthy_machine("rtx4090-linux")))
    return json.dumps({**document, **more})


def _release(torch: str = "2.99.0") -> dict[str, Any]:
    row = dict(OWN["torch"]["releases"][0])
    return {"torch": {"releases": [{**row, "torch": torch}]}}


@pytest.mark.parametrize("content", [None, b"", b'{"format": 1', b"\x1b]0;x\x07"])
def test_a_named_file_that_cannot_be_used_is_one_sentence_and_exit_2(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "tables.json"
    if content is not None:
        file.write_bytes(content)
    for words, variables in (
        (("--knowledge", str(file)), {}),
        ((), {KNOWLEDGE: str(file)}),
    ):
        ran = _run("check", "--from", "-", *words, stdin=_facts(), **variables)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(f"cudadoctor: cannot use the tables in {file}: ")
        assert ran.stderr.count("\n") == 1
        assert ran.stderr.strip().isprintable()


def test_a_saved_file_that_cannot_be_used_is_one_line_and_our_own_tables(saved: Path) -> None:
    saved.parent.mkdir(parents=True)
    saved.write_bytes(renewed.document({"torch": {"builds": "x"}}, DAY, "0.1.0"))
    ran = _run("check", "--from", "-", "--json", stdin=_facts())
    assert ran.returncode == 0
    assert ran.stderr.count("\n") == 1
    assert "To update them again, run: cudadoctor update" in ran.stderr
    document = json.loads(ran.stdout)
    assert document["tables"]["renewed"] is False
    ran = _run("version")
    assert DAY not in ran.stdout


def test_the_saved_tables_are_those_of_every_command_and_an_option_names_others(
    saved: Path, tmp_path: Path
) -> None:
    saved.parent.mkdir(parents=True)
    saved.write_bytes(renewed.document(_release(), DAY, "0.1.0"))
    ran = _run("check", "--from", "-", "--json", stdin=_facts())
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["knowledge"] == DAY
    assert json.loads(ran.stdout)["tables"]["renewed"] is True
    assert DAY in _run("version").stdout
    other = tmp_path / "other.json"
    other.write_bytes(renewed.document({}, "2098-01-01", "0.1.0"))
    assert "2098-01-01" in _run("version", "--knowledge", str(other)).stdout


def test_a_quick_check_judges_with_the_saved_tables_too(saved: Path) -> None:
    saved.parent.mkdir(parents=True)
    saved.write_bytes(renewed.document(_release(), DAY, "0.1.0"))
    ran = _run("check", "--fast", "--json", "--python", sys.executable)
    assert json.loads(ran.stdout)["knowledge"] == DAY


def test_a_release_that_a_named_file_brings_is_prescribed(tmp_path: Path) -> None:
    document = json.loads(_facts())
    document["torch"] = {"installed": False}
    document["packages"] = []
    document["smoke"] = None
    file = tmp_path / "tables.json"
    for archs in (["sm_89"], None):
        file.write_bytes(renewed.document(rows(archs=archs), DAY, "0.1.0"))
        words = ("check", "--from", "-", "--json", "--knowledge", str(file))
        ran = _run(*words, stdin=json.dumps(document))
        assert (json.loads(ran.stdout)["plan"]["build"]["torch"] == "2.99.0") is (archs is not None)
        printed = _run("fix", "--print", *words[1:3], *words[4:], stdin=json.dumps(document))
        assert ("torch==2.99.0" in printed.stdout) is (archs is not None)


def test_a_named_file_is_held_to_the_checks_of_our_own_tables(tmp_path: Path) -> None:
    file = tmp_path / "tables.json"
    file.write_bytes(renewed.document(rows(cuda="12.8"), DAY, "0.1.0"))
    ran = _run("version", "--knowledge", str(file))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is not of CUDA 12.8" in ran.stderr


def test_an_update_without_a_network_ends_in_3(saved: Path) -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    ran = _run("update", **nowhere)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.count("pypi.org") == 1
    assert "download.pytorch.org" in ran.stderr
    assert not saved.exists()


def test_no_other_command_asks_for_tables() -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    ran = _run("check", "--from", "-", stdin=_facts(date="2099-01-01"), **nowhere)
    assert (ran.returncode, ran.stderr) == (0, "")


# --- one line on the page -----------------------------------------------------------------------

ADVICE = "cudadoctor update"
TODAY = OWN["torch"]["collected"]


def _shown(**facts: Any) -> Report:
    machine = replace(healthy_machine("rtx4090-linux"), **facts)
    return pipeline.report(pipeline.judge(machine))


def _lines(shown: Report, lang: str = "en", **layout: Any) -> list[str]:
    page = terminal.report(shown, terminal.Layout(**layout, say=language(lang)))
    return [line.text for line in page if ADVICE in line.text]


def _after(days: int) -> str:
    return (date.fromisoformat(TODAY) + timedelta(days)).isoformat()


@pytest.mark.parametrize(("days", "lines"), [(-400, 0), (0, 0), (60, 0), (61, 1), (500, 1)])
def test_tables_older_than_sixty_days_are_one_line(days: int, lines: int) -> None:
    shown = _shown(date=_after(days))
    assert len(_lines(shown)) == lines
    assert (ADVICE in markdown.report(shown)) is bool(lines)
    assert json_v1.report(shown)["tables"] == {"renewed": False, "age_days": days, "newer": []}


@pytest.mark.parametrize("lang", ["en", "es"])
def test_the_line_says_how_old_they_are_and_fits(lang: str) -> None:
    (line,) = _lines(_shown(date=_after(1000)), lang)
    assert f"1000 d{'í' if lang == 'es' else 'a'}" in line
    assert TODAY in line
    assert len(line) <= 80
    (line,) = _lines(_torch("2.16.0"), lang)
    assert line.startswith("  Las tablas" if lang == "es" else "  The tables")
    assert len(line) <= 80


@pytest.mark.parametrize("day", [None, "", "soon", "2026-02-31"])
def test_without_a_day_nothing_is_said_of_their_age(day: str | None) -> None:
    shown = _shown(date=day)
    assert shown.age.days is None
    assert _lines(shown) == []


def _torch(version: str, look: str = "full") -> Report:
    torch = healthy_machine("rtx4090-linux").torch
    return _shown(torch=replace(torch, version=Version(version)), look=look)


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("2.15.0", False),
        ("2.15.0+cu132", False),
        ("2.15.0.post1", False),
        ("2.15.1", True),
        ("2.16.0+cu132", True),
        ("2.16.0.dev20261120+cu132", False),
        ("2.16.0a0+git1234567", False),
    ],
)
def test_a_torch_newer_than_the_tables_is_named(version: str, newer: bool) -> None:
    shown = _torch(version)
    public = version.partition("+")[0]
    assert shown.age.newer == ((f"torch {public}",) if newer else ())
    assert len(_lines(shown)) == newer


@pytest.mark.parametrize(
    ("version", "newer"), [("615.71.09", False), ("619.10", False), ("620.10", True)]
)
def test_a_driver_newer_than_the_tables_is_named_as_it_is_written(
    version: str, newer: bool
) -> None:
    driver = replace(healthy_machine("rtx4090-linux").driver, reported=DriverVersion(version))
    shown = _shown(driver=replace(driver, kernel=None, library=None))
    assert shown.age.newer == ((f"driver {version}",) if newer else ())


def test_where_one_line_is_all_there_is_no_other() -> None:
    assert _lines(_torch("2.16.0"), quiet=True) == []
    assert _lines(_torch("2.16.0", look="fast")) == []
    assert json_v1.report(_torch("2.16.0", look="fast"))["tables"]["newer"] == ["torch 2.16.0"]
    assert len(_lines(_torch("2.16.0", look="no-smoke"))) == 1
