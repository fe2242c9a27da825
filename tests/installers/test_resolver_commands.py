"""`fix --print --verify` and `--hashes` as a user runs them, with an index of the test's own."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from index_fixtures import GLIBC, Shelf, Wheel, served
from resolver_fixtures import machine

from cudadoctor.model import factfile

TAG = f"cp312-cp312-{GLIBC}"
SHELF = Shelf(
    Wheel("torch", "2.14.1", ("nvidia-thing",), TAG),
    Wheel("torchvision", "0.29.1", ("torch==2.14.1",), TAG),
    Wheel("nvidia-thing", "1.5"),
)


def facts_of(tmp_path: Path, url: str = "https://pypi.example.org/simple") -> str:
    """A healthy machine without torch, whose user there has that index."""
    document: dict[str, Any] = factfile.encode(machine())
    document["torch"] = {"installed": False}
    document["packages"] = []
    document["python"]["index"] = {"url": url, "origin": "/etc/pip.conf"}
    path = tmp_path / "facts.json"
    path.write_text(factfile.ascii_json(document, 2))
    return str(path)


def ran(*words: str, own: str = "") -> subprocess.CompletedProcess[str]:
    """own: the index that the user here has configured."""
    argv = [sys.executable, "-m", "cudadoctor", "fix", "--torch", "2.14.1", *words]
    env = dict(os.environ)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(f'[[index]]\nurl = "{own}"\ndefault = true\n')
        settings.flush()
        env |= {"PIP_INDEX_URL": own, "UV_CONFIG_FILE": settings.name} if own else {}
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=120, env=env
        )


def runnable(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    return [line for line in lines if " install " in line]


def test_a_plan_that_resolves_says_what_it_comes_to(tmp_path: Path) -> None:
    with served(SHELF) as url:
        done = ran("--print", "--verify", "--from", facts_of(tmp_path), own=url)
    assert done.returncode == 0, done.stderr
    assert (
        "#    the packages can be installed together: torch 2.14.1, torchvision 0.29.1 and 1 more ("
        in done.stdout
    )
    assert len(runnable(done.stdout)) == 1


def test_a_plan_that_does_not_resolve_stands_there_as_comments_only(tmp_path: Path) -> None:
    with served(Shelf(Wheel("torch", "2.13.0", tag=TAG))) as url:
        done = ran("--print", "--verify", "--from", facts_of(tmp_path), own=url)
    assert done.returncode == 1
    assert "#    the packages cannot be installed together: " in done.stdout
    assert runnable(done.stdout) == []
    assert re.search(r"^# .*pip install torch==2\.14\.1", done.stdout, re.M)


def test_an_index_that_does_not_answer_leaves_the_plan_as_it_was(tmp_path: Path) -> None:
    with served(SHELF, "500") as url:
        done = ran("--print", "--verify", "--from", facts_of(tmp_path), own=url)
    assert done.returncode == 0, done.stderr
    text = "the packages could not be checked: the index 127.0.0.1 did not respond"
    assert text in done.stdout
    assert len(runnable(done.stdout)) == 1


def test_the_document_holds_the_verdict(tmp_path: Path) -> None:
    with served(SHELF) as url:
        facts = facts_of(tmp_path)
        done = ran("--print", "--verify", "--json", "--from", facts, own=url)
        plain = ran("--print", "--json", "--from", facts, own=url)
    step = json.loads(done.stdout)["plan"]["steps"][0]
    assert step["verified"] is True
    assert step["resolution"].startswith("the packages can be installed together: torch 2.14.1")
    unasked = json.loads(plain.stdout)["plan"]["steps"][0]
    assert unasked["verified"] is None
    assert "resolution" not in unasked


def test_without_verify_nothing_is_asked(tmp_path: Path) -> None:
    done = ran("--print", "--from", facts_of(tmp_path, "http://127.0.0.1:9/simple"))
    assert done.returncode == 0
    assert "verif" not in done.stdout


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "tmp", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(home))
    with served(SHELF) as url:
        done = ran("--print", "--verify", "--from", facts_of(tmp_path), own=url)
    assert "can be installed together: " in done.stdout
    assert list(folder.iterdir()) == []
    assert list(home.iterdir()) == []


def test_hashes_stand_behind_every_release(tmp_path: Path) -> None:
    with served(SHELF) as url:
        done = ran("--as", "requirements", "--hashes", "--from", facts_of(tmp_path), own=url)
    assert done.returncode == 0, done.stderr
    found = dict(
        re.findall(r"^(\S+)==\S+ \\\n    --hash=sha256:([0-9a-f]{64})$", done.stdout, re.M)
    )
    assert found == {
        "torch": SHELF.sha256(f"torch-2.14.1-{TAG}.whl"),
        "torchvision": SHELF.sha256(f"torchvision-0.29.1-{TAG}.whl"),
        "nvidia-thing": SHELF.sha256("nvidia_thing-1.5-py3-none-any.whl"),
    }


def test_hashes_that_cannot_be_had_end_in_a_sentence(tmp_path: Path) -> None:
    with served(SHELF, "500") as url:
        done = ran("--as", "requirements", "--hashes", "--from", facts_of(tmp_path), own=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "cudadoctor: the packages could not be checked: the index 127.0.0.1 did not respond; "
        "the project file was not printed\n"
    )


def test_a_file_whose_packages_cannot_be_had_is_not_printed(tmp_path: Path) -> None:
    with served(Shelf(Wheel("torch", "2.13.0", tag=TAG))) as url:
        done = ran("--as", "pyproject", "--verify", "--from", facts_of(tmp_path), own=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the packages cannot be installed together: " in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--print", "--verify"),
        ("--print", "--verify", "--with", "uv"),
        ("--as", "requirements", "--hashes"),
        ("--as", "pyproject", "--verify"),
    ],
)
def test_the_index_of_a_document_is_never_asked(words: tuple[str, ...], tmp_path: Path) -> None:
    """Whoever writes a document would learn who judges it, and choose the answer."""
    with socket.create_server(("127.0.0.1", 0)) as there, served(SHELF) as url:
        there.settimeout(0)
        facts = facts_of(tmp_path, f"http://127.0.0.1:{there.getsockname()[1]}/simple")
        done = ran(*words, "--from", facts, own=url)
        with pytest.raises(BlockingIOError):
            there.accept()
    assert done.returncode == 0, done.stderr
