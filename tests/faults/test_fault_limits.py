"""Limits of the user and a system without its usual parts: a report comes, and nothing is blamed
on the machine that is only the limit's doing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux")

DOCTOR = f"{sys.executable} -m cudadoctor"
LOOK = f"check --fast --json --python {sys.executable}"


def run(command: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell with some variables changed or, where None, removed."""
    env = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    argv = ["/bin/sh", "-c", command]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "itself failed" not in ran.stderr, ran.stderr
    return ran


def seen(command: str, **variables: str | None) -> dict[str, Any]:
    ran = run(command, **variables)
    assert ran.returncode in (0, 1, 3), ran.stderr
    document = json.loads(ran.stdout)
    assert isinstance(document, dict)
    return document


@cache
def usual() -> dict[str, Any]:
    return seen(f"{DOCTOR} {LOOK}")


def causes(document: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in document["findings"] if finding["severity"] != "info"}


def silence(document: dict[str, Any]) -> str:
    return " ".join(gap["why"] for gap in document["facts"]["gaps"] if gap["fact"] == "python")


@cache
def may_mount() -> bool:
    argv = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


mounts = pytest.mark.skipif(not may_mount(), reason="no namespace of mounts may be made here")


@pytest.mark.parametrize("files", [6, 8, 10, 12, 16, 32])
def test_few_open_files_are_not_the_interpreters_fault(files: int) -> None:
    document = seen(f"ulimit -n {files}; {DOCTOR} {LOOK}")
    assert causes(document) <= causes(usual()) | {"ulimit"}
    assert "is not a working Python" not in silence(document)


@pytest.mark.parametrize("kilobytes", [52_000, 100_000, 400_000])
def test_little_address_space_damages_nothing(kilobytes: int) -> None:
    assert causes(seen(f"ulimit -v {kilobytes}; {DOCTOR} {LOOK}")) <= causes(usual())


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user")
@pytest.mark.parametrize("processes", [0, 1, 2, 3, 4, 5, 6, 8])
def test_a_user_who_may_start_nothing_more_still_gets_a_report(processes: int) -> None:
    if not Path("/usr/bin/setpriv").exists() or Path("/root").stat().st_mode & 0o005 != 0o005:
        pytest.skip("nobody may not run this Python")
    user = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    limited = f"ulimit -u {processes}; exec {DOCTOR} {LOOK}"
    document = seen(f"{user} sh -c '{limited}'")
    assert causes(document) <= causes(usual())
    assert "is not a working Python" not in silence(document)


def test_a_limit_of_memory_is_no_damaged_torch(python_cu130: str) -> None:
    words = f"check --no-smoke --json --python {python_cu130}"
    document = seen(f"ulimit -v 200000; {DOCTOR} {words}")
    assert document["facts"]["torch"]["imported"]["ok"] is False
    assert "torch-install-corrupt" not in causes(document)


@pytest.mark.parametrize(
    "variables",
    [
        {"HOME": None},
        {"HOME": "/dev/null"},
        {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"},
        {"PATH": None},
        {"PATH": ""},
        {"PATH": ":"},
        {"PATH": "/nonexistent"},
        {"LC_ALL": "C", "TERM": "dumb"},
        {"LC_ALL": "xx_YY.none", "LANG": "zz"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONPATH": "/nonexistent:/dev/null"},
        {"COLUMNS": "-7", "LINES": "many"},
    ],
    ids=str,
)
def test_odd_variables_change_no_judgement(variables: dict[str, str | None]) -> None:
    document = seen(f"{DOCTOR} {LOOK}", **variables)
    assert (causes(document), document["verdict"]) == (causes(usual()), usual()["verdict"])


@mounts
@pytest.mark.parametrize("folder", ["/dev", "/etc", "/sys", "/root", "/var", "/run"])
def test_a_system_with_an_empty_folder_is_looked_at(folder: str) -> None:
    if str(sys.executable).startswith(folder) or str(sys.base_prefix).startswith(folder):
        pytest.skip("this Python lies there")
    emptied = f"mount -t tmpfs none {folder}; {DOCTOR} {LOOK}"
    document = seen(f"unshare -m sh -c '{emptied}'")
    assert causes(document) <= causes(usual())
    assert "is not a working Python" not in silence(document)


@mounts
def test_without_proc_nothing_false_is_said() -> None:
    document = seen(f"unshare -m sh -c 'umount -l /proc; {DOCTOR} {LOOK}'")
    assert causes(document) <= causes(usual())


@mounts
def test_closed_streams_and_no_dev_null_end_in_no_traceback() -> None:
    bare = f"mount -t tmpfs none /dev; {DOCTOR} check --fast --python {sys.executable}"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        ran = run(f"unshare -m sh -c '{bare}' {closed}")
        assert ran.returncode in (0, 1, 3), ran.stderr


@mounts
def test_a_home_that_cannot_be_written_to_is_not_written_to(
    tmp_path: Path, python_cpu: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    look = f"{DOCTOR} check --json --device cpu --python {python_cpu}"
    script = f"mount -t tmpfs -o ro none {home}; HOME={home} TMPDIR={home} {look}"
    document = seen(f"unshare -m sh -c '{script}'")
    assert document["facts"]["smoke"]["device"] == "cpu"
    assert not [
        stage for stage in document["facts"]["smoke"]["stages"] if stage["status"] == "failed"
    ]


@mounts
@pytest.mark.parametrize("words", ["record --fast {}/r", "facts --fast --output {}/x"])
def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path, words: str) -> None:
    full = f"mount -t tmpfs -o size=8k none {tmp_path}; {DOCTOR} {words.format(tmp_path)}"
    ran = run(f"unshare -m sh -c '{full}'")
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.endswith(": No space left on device\n")


@pytest.mark.parametrize("words", [LOOK, "facts --fast", "fix --print --fast", "version"])
def test_a_working_folder_that_is_gone_ends_nothing(tmp_path: Path, words: str) -> None:
    gone = tmp_path / "gone"
    ran = run(f"mkdir {gone}; cd {gone}; rmdir {gone}; {DOCTOR} {words}")
    assert ran.returncode in (0, 1, 3), ran.stderr
    assert ran.stdout


@pytest.mark.parametrize("words", ["check --from -", "check --from /dev/null"])
def test_saved_facts_that_are_none_are_wrong_use(words: str) -> None:
    ran = run(f"{DOCTOR} {words} <&-")
    assert ran.returncode in (1, 2, 3)
