"""Where pip and uv of this user look for packages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudadoctor.host.local import Answer, LocalHost
from cudadoctor.model.machine import Index
from cudadoctor.probes.indexes import ini_section, read_index, read_pip, read_uv


class Bare(LocalHost):
    """This machine without settings of its own in /etc."""

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        if path.startswith("/etc/"):
            return Answer(missing=True)
        return super().read(path, limit, offset)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings; no variable of the caller."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    (folder / "work" / ".venv").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "etc"))
    monkeypatch.chdir(folder / "work")
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_settings_the_index_is_known_to_be_the_default(tmp_path: Path) -> None:
    assert read_index(Bare(), str(tmp_path), uv_first=False) == Index()


def test_the_user_the_environment_and_the_variables_win_in_this_order(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write(home / ".config/pip/pip.conf", "[global]\nindex-url = https://user/simple\n")
    assert read_pip(Bare(), str(tmp_path)) == Index(url="https://user/simple", origin=str(user))
    site = write(tmp_path / "pip.conf", "[global]\nindex_url: https://site/simple\n")
    assert read_pip(Bare(), str(tmp_path)).url == "https://site/simple"
    write(home / ".config/pip/pip.conf", "[install]\nindex-url=https://install/simple\n")
    assert read_pip(Bare(), str(tmp_path)).url == "https://install/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://name:secret@variable/simple")
    index = read_pip(Bare(), str(tmp_path))
    assert index.url == "https://name:secret@variable/simple"
    assert index.origin == "PIP_INDEX_URL"
    assert site.exists()


def test_a_file_of_a_variable_takes_the_users_place(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".pip/pip.conf", "[global]\nindex-url = https://user/\nno-index = true\n")
    given = write(tmp_path / "given.conf", "[global]\nindex-url = https://given/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(given))
    assert read_pip(Bare(), str(tmp_path)) == Index(url="https://given/", origin=str(given))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip(Bare(), str(tmp_path)) == Index()


def test_several_further_indexes_stand_on_lines_of_their_own(home: Path, tmp_path: Path) -> None:
    text = """# ours
[global]
extra-index-url =
    https://one/simple
    https://two/simple
find-links = /wheels
no-index = yes
[list]
index-url = https://not-this
"""
    path = write(home / ".config/pip/pip.conf", text)
    assert read_pip(Bare(), str(tmp_path)) == Index(
        extra=("https://one/simple", "https://two/simple"),
        find_links=("/wheels",),
        no_index=True,
        origin=str(path),
    )


def test_a_broken_file_has_no_settings() -> None:
    assert ini_section("  indented\n]]\nindex-url\n[global\n = x\n", "global") == {}
    assert ini_section("\0\ufffd", "global") == {}


def test_uv_reads_the_project_before_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        home / ".config/uv/uv.toml", 'index-url = "https://user/"\nextra-index-url = ["https://e/"]'
    )
    assert read_uv(Bare(), str(home / "work" / ".venv")).url == "https://user/"
    project = write(
        home / "pyproject.toml",
        """[project]
name = "x"
[[tool.uv.index]]
url = "https://project/"
default = true
[[tool.uv.index]]
name = "torch"
url = "https://download.pytorch.org/whl/cu126"
explicit = true
[[tool.uv.index]]
url = "https://more/"
""",
    )
    index = read_uv(Bare(), str(home / "work" / ".venv"))
    assert index.url == "https://project/"
    assert index.origin == str(project)
    assert index.extra == ("https://e/", "https://more/")
    monkeypatch.setenv("UV_INDEX_URL", "https://old/")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://new/")
    monkeypatch.setenv("UV_INDEX", "torch=https://a/ https://b/?x=1")
    index = read_uv(Bare(), str(home / "work" / ".venv"))
    assert index.url == "https://new/"
    assert index.extra == ("https://a/", "https://b/?x=1")


def test_the_folder_one_stands_in_names_no_index_for_an_environment_elsewhere(
    home: Path, tmp_path: Path
) -> None:
    write(home / "work" / "uv.toml", "index-url = 'https://planted/'\n")
    (tmp_path / "venvs" / "x").mkdir(parents=True)
    assert read_uv(Bare(), str(tmp_path / "venvs" / "x")) == Index()
    assert read_uv(Bare(), str(home / "work" / ".venv")).url == "https://planted/"


def test_a_project_without_settings_for_uv_and_a_broken_file_are_passed_over(home: Path) -> None:
    write(home / "work" / "pyproject.toml", "[project]\nname = 'x'\n")
    write(home / "work" / "uv.toml", "this is = no toml = at all")
    write(home / "uv.toml", "[pip]\nindex-url = 'https://pip-table/'\n")
    assert read_uv(Bare(), str(home / "work" / ".venv")).url == "https://pip-table/"


def test_the_tool_that_serves_the_environment_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv/")
    assert read_index(Bare(), str(tmp_path), uv_first=False).url == "https://uv/"
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip/")
    assert read_index(Bare(), str(tmp_path), uv_first=False).url == "https://pip/"
    assert read_index(Bare(), str(tmp_path), uv_first=True).url == "https://uv/"
