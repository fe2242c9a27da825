"""Which interpreter is examined."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from cudadoctor.host.local import Answer, LocalHost, Stat
from cudadoctor.probes.target import Chosen, UsageError, choose, interpreter_of


def program(path: Path, text: str = "#!/bin/sh\nexit 3\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def environment(folder: Path) -> Path:
    """The Python of a .venv in that folder."""
    python = program(folder / ".venv" / "bin" / "python")
    (folder / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for path in (folder / ".venv", folder / ".venv" / "bin"):
        path.chmod(0o755)
    return python


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without a .venv and an environment without any Python."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_VERSION", "PYENV_DIR"):
        monkeypatch.delenv(name, raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return here


def pick(own: str = sys.executable) -> Chosen:
    return choose(LocalHost(), own=own)


def test_the_order_is_virtual_env_conda_dot_venv_path_own(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pick("/own/bin/python") == Chosen(executable="/own/bin/python", by="own")
    on_path = program(tmp_path / "bin" / "python3")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert pick() == Chosen(executable=str(on_path), by="PATH")
    local = environment(empty)
    assert pick() == Chosen(executable=str(local), by="./.venv")
    conda = program(tmp_path / "conda" / "bin" / "python")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    assert pick() == Chosen(executable=str(conda), by="CONDA_PREFIX")
    venv = program(tmp_path / "venv" / "bin" / "python")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    assert pick() == Chosen(executable=str(venv), by="VIRTUAL_ENV")


def test_python3_on_path_comes_before_python(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "a" / "python")
    three = program(tmp_path / "b" / "python3")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b")
    assert pick().executable == str(three)


def test_an_active_environment_without_python_is_passed_over_and_said_so(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    chosen = pick("/own/bin/python")
    assert chosen.by == "own"
    assert chosen.passed_over == (f"VIRTUAL_ENV is {tmp_path}/gone, which contains no Python",)


def test_the_link_of_a_venv_is_not_resolved(empty: Path, tmp_path: Path) -> None:
    real = program(tmp_path / "usr" / "bin" / "python3.11")
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert choose(LocalHost(), str(tmp_path / "venv")).executable == str(link)
    assert choose(LocalHost(), str(link)).executable == str(link)


def test_the_first_python_on_path_is_examined_also_where_it_is_the_doctors_own(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "tool" / "bin" / "python3")
    (tmp_path / "tool" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    users = program(tmp_path / "users" / "python3")
    monkeypatch.setenv("PATH", f"{own.parent}:{users.parent}")
    assert pick(str(own)) == Chosen(executable=str(own), by="PATH")


def test_behind_the_environment_of_uvx_stands_the_users_python(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = program(tmp_path / "tool" / "bin" / "python3")
    users = program(tmp_path / "users" / "python3")
    monkeypatch.setenv("UV", "/usr/bin/uv")
    monkeypatch.setenv("PATH", f"{own.parent}:{users.parent}")
    assert pick(str(own)) == Chosen(executable=str(users), by="PATH")
    # uvx --with torch: that is the torch the user asks about.
    (tmp_path / "tool" / "lib" / "python3.12" / "site-packages" / "torch").mkdir(parents=True)
    assert pick(str(own)).executable == str(own)
    monkeypatch.setenv("PATH", str(own.parent))
    assert pick(str(own)).executable == str(own)


@pytest.mark.parametrize("name", ["bin/python", "bin/python3", "Scripts/python.exe", "python.exe"])
def test_a_prefix_names_the_python_in_it(empty: Path, tmp_path: Path, name: str) -> None:
    python = program(tmp_path / "prefix" / name)
    assert choose(LocalHost(), str(tmp_path / "prefix")).executable == str(python)


def test_a_name_is_looked_for_on_path_and_a_version_means_that_python(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path / "bin" / "python3.9")
    monkeypatch.setenv("PATH", str(python.parent))
    assert choose(LocalHost(), "python3.9").executable == str(python)
    assert choose(LocalHost(), "3.9").executable == str(python)


def test_a_folder_here_wins_over_a_program_of_its_name(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    python = program(empty / "env" / "bin" / "python")
    assert choose(LocalHost(), "env").executable == str(python)


def test_a_home_is_expanded(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    python = program(tmp_path / "venv" / "bin" / "python")
    assert choose(LocalHost(), "~/venv").executable == str(python)


def refusal(python: str) -> str:
    with pytest.raises(UsageError) as caught:
        choose(LocalHost(), python)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_wrong_usage_is_refused_with_one_sentence_that_names_it(
    empty: Path, tmp_path: Path
) -> None:
    assert "no such file or folder" in refusal(str(tmp_path / "nope"))
    assert "no such program on PATH" in refusal("nope")
    assert "contains no Python" in refusal(str(empty))
    assert "has no value" in refusal(" ")
    program(empty / "python", mode=0o644)
    assert "is not executable" in refusal(str(empty / "python"))


def test_an_environment_whose_python_is_gone_is_told_apart(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "removed")
    assert "no longer exists" in refusal(str(tmp_path / "venv"))
    assert "no longer exists" in refusal(str(tmp_path / "venv" / "bin" / "python"))


def test_a_program_that_is_no_python_is_refused_and_not_given_our_script(
    empty: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    tool = program(tmp_path / "bin" / "tool", f'#!/bin/sh\necho "$@" >> {trace}\n')
    assert "is not Python" in refusal(str(tool))
    assert trace.read_text() == "--version\n"


def test_a_python_by_another_name_is_taken(empty: Path, tmp_path: Path) -> None:
    link = tmp_path / "interpreter"
    link.symlink_to(sys.executable)
    assert choose(LocalHost(), str(link)).executable == str(link)


def pyenv(root: Path, *versions: str) -> Path:
    for version in versions:
        program(root / "versions" / version / "bin" / "python3")
    return program(root / "shims" / "python3")


def test_a_shim_of_pyenv_is_resolved_without_running_it(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ".pyenv"
    shim = pyenv(root, "3.9.1", "3.10.2", "3.10.13")
    monkeypatch.setenv("PATH", str(shim.parent))
    (root / "version").write_text("3.9.1\n")
    assert pick().executable == f"{root}/versions/3.9.1/bin/python3"
    (empty.parent / ".python-version").write_text("# ours\n3.10\n")
    assert pick().executable == f"{root}/versions/3.10.13/bin/python3"
    monkeypatch.setenv("PYENV_VERSION", "3.10.2:3.9.1")
    assert pick().executable == f"{root}/versions/3.10.2/bin/python3"
    monkeypatch.setenv("PYENV_VERSION", "4.0")
    assert pick().executable == str(shim)


def test_the_system_version_of_pyenv_is_the_next_on_path(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = pyenv(tmp_path / ".pyenv", "3.9.1")
    system = program(tmp_path / "bin" / "python3")
    monkeypatch.setenv("PATH", f"{shim.parent}:{system.parent}")
    assert pick().executable == str(system)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("#!/venv/bin/python3.11\nimport re\n", "/venv/bin/python3.11"),
        ("#!/bin/sh\n'''exec' \"/a path/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a path/bin/python"),
        ("#!/bin/sh\n'''exec' /long/bin/python \"$0\" \"$@\"\n' '''\n", "/long/bin/python"),
        ("#!/bin/bash\nexec something\n", None),
        ("no script at all", None),
        ("#!\n", None),
    ],
)
def test_a_script_tells_whose_it_is(tmp_path: Path, text: str, owner: str | None) -> None:
    script = program(tmp_path / "pip", text)
    assert interpreter_of(LocalHost(), str(script)) == owner


def test_a_script_by_env_belongs_to_the_name_on_path(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path / "bin" / "python3")
    monkeypatch.setenv("PATH", str(python.parent))
    script = program(tmp_path / "pip", "#!/usr/bin/env -S python3 -E\n")
    assert interpreter_of(LocalHost(), str(script)) == str(python)
    monkeypatch.setenv("PATH", os.devnull)
    assert interpreter_of(LocalHost(), str(script)) is None


# --- a .venv that nobody has activated --------------------------------------------------------


@pytest.mark.parametrize("part", ["", "pyvenv.cfg", "bin", "bin/python"])
def test_a_venv_that_everybody_can_write_to_is_passed_over_and_said_so(
    empty: Path, part: str
) -> None:
    environment(empty)
    path = empty / ".venv" / part
    path.chmod(path.stat().st_mode | 0o002)
    chosen = pick("/own/bin/python")
    assert chosen.executable == "/own/bin/python"
    (sentence,) = chosen.passed_over
    assert f"{path} is writable by everyone" in sentence
    assert f"--python {empty}/.venv" in sentence


def test_a_variable_that_depends_on_the_current_folder_is_trusted_no_more_than_that(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(empty).parent.chmod(0o777)
    monkeypatch.setenv("VIRTUAL_ENV", ".venv")
    assert pick("/own/bin/python").by == "own"
    monkeypatch.setenv("VIRTUAL_ENV", f"{empty}/.venv")
    assert pick("/own/bin/python").by == "VIRTUAL_ENV"


def test_a_folder_that_is_no_environment_is_passed_over(empty: Path) -> None:
    environment(empty)
    (empty / ".venv" / "pyvenv.cfg").unlink()
    chosen = pick("/own/bin/python")
    assert chosen.by == "own"
    assert "no pyvenv.cfg" in chosen.passed_over[0]


def test_a_venv_that_is_named_is_taken_whoever_may_write_to_it(empty: Path) -> None:
    python = environment(empty)
    (empty / ".venv").chmod(0o777)
    assert choose(LocalHost(), ".venv").executable == str(python)


class Somebody(LocalHost):
    """This machine for another user, whose accounts are in other files."""

    uid: int | None = 1000
    owners: ClassVar[dict[str, tuple[int, int]]] = {}
    accounts: ClassVar[dict[str, str]] = {
        "/etc/passwd": "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n",
        "/etc/group": "root:x:0:\nada:x:1000:\nlab:x:2000:ada,bob\n",
    }
    env: dict[str, str] = {}  # noqa: RUF012

    def stat(self, path: str) -> Stat:
        found = super().stat(path)
        found.uid, found.gid = self.owners.get(path, self.owners.get("", (1000, 1000)))
        return found

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        if path in self.accounts:
            return Answer(data=self.accounts[path].encode())
        return super().read(path, limit, offset)


def somebody(uid: int, owners: dict[str, tuple[int, int]], **env: str) -> Somebody:
    host = Somebody()
    host.uid, host.owners, host.env = uid, owners, env  # type: ignore[misc]
    return host


@pytest.mark.parametrize(
    ("uid", "owner", "env", "taken"),
    [
        (1000, 1000, {}, True),
        (1000, 0, {}, True),
        (1000, 1001, {}, False),
        (0, 1001, {}, False),
        (0, 1001, {"SUDO_UID": "1001"}, True),
        (1000, 1001, {"SUDO_UID": "1001"}, False),
    ],
)
def test_a_venv_is_the_users_or_roots_or_that_of_who_called_sudo(
    empty: Path, uid: int, owner: int, env: dict[str, str], taken: bool
) -> None:
    environment(empty)
    host = somebody(uid, {"": (owner, owner), str(empty): (0, 0)}, **env)
    assert (choose(host, own="/own").by == "./.venv") is taken


def test_root_takes_the_venv_of_the_owner_of_the_folder(empty: Path) -> None:
    environment(empty)
    host = somebody(0, {"": (1001, 1001), str(empty): (1001, 1001)})
    assert choose(host, own="/own").by == "./.venv"


@pytest.mark.parametrize("part", ["", "pyvenv.cfg", "bin", "bin/python"])
def test_no_part_of_a_venv_may_be_another_users(empty: Path, part: str) -> None:
    environment(empty)
    path = str(empty / ".venv" / part).rstrip("/")
    chosen = choose(somebody(1000, {path: (1001, 1001)}), own="/own")
    assert chosen.by == "own"
    assert "belongs to another user (1001)" in chosen.passed_over[0]


def test_the_python_that_a_venv_was_made_from_may_be_anybodys(empty: Path, tmp_path: Path) -> None:
    python = environment(empty)
    python.unlink()
    real = program(tmp_path / "opt" / "python3")
    python.symlink_to(real)
    assert choose(somebody(1000, {str(python): (1001, 1001)}), own="/own").by == "./.venv"
    real.chmod(0o757)
    assert choose(somebody(1000, {}), own="/own").by == "own"


@pytest.mark.parametrize(
    ("group", "taken"), [(1000, True), (2000, False), (0, True), (3000, False)]
)
def test_a_group_may_write_to_it_where_it_is_the_owners_alone(
    empty: Path, group: int, taken: bool
) -> None:
    environment(empty)
    (empty / ".venv").chmod(0o775)
    host = somebody(1000, {str(empty / ".venv"): (1000, group)})
    assert (choose(host, own="/own").by == "./.venv") is taken


def test_a_group_with_another_user_by_the_accounts_is_not_private(empty: Path) -> None:
    environment(empty)
    (empty / ".venv").chmod(0o775)
    host = somebody(1000, {})
    host.accounts = host.accounts | {  # type: ignore[misc]
        "/etc/passwd": "ada:x:1000:1000::/:/bin/sh\nbob:x:1001:1000::/:/bin/sh\n"
    }
    assert choose(host, own="/own").by == "own"


# --- what lies in the current folder ------------------------------------------------------------


@pytest.mark.parametrize("path", [".", "", ".:", "bin", "./bin:."])
def test_no_program_of_the_current_folder_is_found_on_path(
    empty: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for name in ("python3", "python", "nvcc", "bin/python3", "bin/nvcc"):
        program(empty / name)
    monkeypatch.setenv("PATH", path)
    chosen = pick("/own/bin/python")
    assert chosen.executable == "/own/bin/python"
    assert LocalHost().which("nvcc") is None
    if path:
        assert f"{empty}/python3 in the current folder" in chosen.passed_over[0]


@pytest.mark.parametrize("version", ["../../here/evil", "/absolute", "..", "3.9/../../../here"])
def test_a_python_version_file_leads_to_no_program_outside_of_pyenv(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    program(empty / "evil" / "bin" / "python3")
    shim = program(tmp_path / "pyenv" / "shims" / "python3")
    (tmp_path / "pyenv" / "versions").mkdir()
    (empty / ".python-version").write_text(version.replace("/absolute", f"{empty}/evil") + "\n")
    monkeypatch.setenv("PATH", str(shim.parent))
    assert pick().executable == str(shim)


def test_the_folder_above_is_a_folder_and_no_name_on_path(empty: Path) -> None:
    for folder in (".", ".."):
        assert "no program with that name" not in refusal(folder)


def test_the_shop_of_windows_under_the_name_of_python_is_no_python(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = program(tmp_path / "WindowsApps" / "python3", text="")
    real = program(tmp_path / "bin" / "python3")
    monkeypatch.setenv("PATH", f"{shop.parent}:{real.parent}")
    assert pick().executable == str(real)
    program(shop)
    assert pick().executable == str(shop)


def test_a_venv_that_is_a_link_is_passed_over(empty: Path, tmp_path: Path) -> None:
    environment(empty)
    (empty / ".venv").rename(tmp_path / "elsewhere")
    (empty / ".venv").symlink_to(tmp_path / "elsewhere")
    assert "it is a symbolic link" in pick("/own/bin/python").passed_over[0]


def test_no_venv_is_taken_where_everybody_may_put_another(empty: Path) -> None:
    environment(empty)
    empty.chmod(0o777)
    assert f"{empty} is writable by everyone" in pick("/own/bin/python").passed_over[0]
    empty.chmod(0o1777)
    assert pick("/own/bin/python").by == "./.venv"


def test_packages_that_everybody_can_write_to_are_not_started(empty: Path) -> None:
    environment(empty)
    packages = empty / ".venv" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    packages.chmod(0o777)
    assert f"{packages} is writable by everyone" in pick("/own/bin/python").passed_over[0]
