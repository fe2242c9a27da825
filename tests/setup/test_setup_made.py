"""Environments made for real: a Python's own venv and pip, an index of small wheels in a folder."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from packaging.version import Version
from setup_fixtures import BROKEN, argv, document, environment, index, publish, setup, stand_ins

from cudadoctor import knowledge
from cudadoctor.repair.setup.making import MARKER

TORCH, VISION = "2.14.1", "0.29.1"
OPTIONS = ("--yes", "--torch", f"{TORCH}+cpu")
LEADING = """import sys
sys.path.insert(0, {site!r})
del sys.modules["torch"]
import torch
"""
"""The text of a torch that hands over to the files of another one."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose torch cannot be imported."""
    return stand_ins(tmp_path_factory.mktemp("broken"), TORCH, VISION, BROKEN)


def slow_index(folder: Path) -> Path:
    """An index whose torch takes a minute to be built: pip is at work until it is stopped."""
    import tarfile

    home = index(folder)
    source = folder / f"torch-{TORCH}"
    source.mkdir()
    (source / "setup.py").write_text("import time\ntime.sleep(60)\n")
    (source / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n")
    project = home / "torch"
    project.mkdir()
    with tarfile.open(project / f"torch-{TORCH}.tar.gz", "w:gz") as archive:
        archive.add(source, arcname=source.name)
    name = f"torch-{TORCH}.tar.gz"
    (project / "index.html").write_text(f'<!DOCTYPE html><body><a href="{name}">{name}</a></body>')
    publish(home, "setuptools", "99", {})
    return home


def started(folder: Path, env: dict[str, str], *options: str) -> subprocess.Popen[str]:
    """A setup that is at work: its folder holds the marker and an interpreter."""
    child = subprocess.Popen(
        argv(folder, *OPTIONS, *options),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "bin" / "pip").exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return child


def test_what_is_installed_and_does_not_work_is_kept_and_told(broken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it's $(a) ümlaut"
    ran = setup(folder, environment(broken), *OPTIONS, "--json")
    report = document(ran)
    assert ran.returncode == 1
    assert report["outcome"] == "unproven"
    assert report["verdict"] == "broken"
    assert report["environment"] == str(folder)
    assert Path(report["python"]).exists()
    assert report["build"]["torch"] == TORCH
    assert report["activate"] == {}
    assert not list(folder.glob(f"{MARKER}*"))
    assert sorted(report) == [
        *("activate", "base", "build", "commands", "cudadoctor", "environment", "files"),
        *("knowledge", "outcome", "primary", "python", "schema", "size", "smoke", "tool"),
        *("verdict", "verified", "ways_out", "why"),
    ]


def test_a_torch_that_runs_is_proven(python_cpu: str, tmp_path: Path) -> None:
    """A stand-in that leads to the files of a real torch: its training step runs for real."""
    asked = "import torch,sys;print(torch.__version__.split('+')[0], torch.__path__[0])"
    ran = subprocess.run([python_cpu, "-c", asked], capture_output=True, text=True, check=True)
    version, real = ran.stdout.split()
    home = index(tmp_path)
    leading = LEADING.format(site=str(Path(real).parent))
    about = f"__version__ = '{version}+cpu'\ndebug = False\ncuda = None\nhip = None\n"
    files = {"torch/__init__.py": leading, "torch/version.py": about}
    publish(home, "torch", f"{version}+cpu", files)
    row = knowledge.load().build_of(Version(version), "cpu", "linux_x86_64")
    if row is None or row.torchvision is None:
        pytest.skip(f"no CPU build of torch {version} is known")
    publish(home, "torchvision", f"{row.torchvision}+cpu", {"torchvision/__init__.py": ""})
    result = setup(
        tmp_path / "env",
        environment(home),
        "--yes",
        "--python",
        python_cpu,
        "--json",
        "--torch",
        f"{version}+cpu",
    )
    assert document(result)["outcome"] == "proven"
    assert result.returncode == 0


def test_where_nobody_can_be_asked_nothing_is_made(broken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    ran = setup(folder, environment(broken), "--torch", TORCH)
    assert ran.returncode == 2
    assert ran.stderr.strip() == (
        "cudadoctor: cannot prompt without a terminal; add --yes to create the environment"
    )
    assert "-m venv" in ran.stdout
    assert not folder.exists()


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("n\n", "Nothing was created."),
        ("yes please\n", "Nothing was created."),
        ("", "Nothing was created."),
    ],
)
def test_only_a_yes_lets_it_begin(tmp_path: Path, answer: str, end: str) -> None:
    folder = tmp_path / "env"
    mine, theirs = pty.openpty()
    child = subprocess.Popen(
        argv(folder, *OPTIONS[1:]),
        env=environment(index(tmp_path)),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(mine, answer.encode() or b"\x04")
    _, said = child.communicate(timeout=60)
    os.close(mine)
    assert child.returncode == 1
    assert "Create this environment? [y/N] " in said
    assert end in said
    assert not folder.exists()


def test_after_a_yes_an_empty_folder_that_was_there_stays_and_stays_empty(tmp_path: Path) -> None:
    """The index has no torch."""
    folder = tmp_path / "env"
    folder.mkdir()
    mine, theirs = pty.openpty()
    os.write(mine, b"y\n")
    child = subprocess.Popen(
        argv(folder, *OPTIONS[1:], "--json"),
        env=environment(index(tmp_path)),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    out, said = child.communicate(timeout=60)
    os.close(mine)
    assert child.returncode == 1
    assert "Create this environment? [y/N] " in said
    report = json.loads(out)
    assert (
        "`pip` failed with exit code 1. The unfinished environment was removed." in report["why"][0]
    )
    assert "No matching distribution found for torch" in report["why"][-1]
    assert report["outcome"] == "failed"
    assert report["environment"] is None
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A file that may not grow is what a full disk looks like to pip."""
    big = {"torch/big.txt": "0" * 40_000_000}
    home = stand_ins(tmp_path, TORCH, VISION, big)
    folder = tmp_path / "env"
    ran = subprocess.run(
        argv(folder, *OPTIONS),
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000)),
    )
    assert ran.returncode == 1
    assert "(the disk is full). The unfinished environment was removed." in ran.stderr
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "env"
    child = started(folder, environment(slow_index(tmp_path)))
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 128 + number
    assert "Interrupted. The unfinished environment was removed." in said
    assert not folder.exists()


def test_what_a_kill_left_is_made_anew_and_the_report_names_what_is_wrong_and_how_to_use_it(
    broken: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "env"
    narrow = environment(broken, COLUMNS="60", LC_ALL="C")
    narrow.pop("HOME", None)
    child = started(folder, environment(slow_index(tmp_path)))
    busy = setup(folder, environment(broken), *OPTIONS)
    assert busy.returncode == 2
    assert "another cudadoctor setup is running in" in busy.stderr
    child.kill()
    child.communicate()
    assert (folder / MARKER).exists()
    (folder / "left").touch()
    deadline = time.monotonic() + 70
    while True:  # the pip that it had started ends by itself, and holds the folder until then
        ran = setup(folder, narrow, *OPTIONS)
        if ran.returncode != 2 or time.monotonic() > deadline:
            break
        time.sleep(2.0)
    assert ran.returncode == 1
    assert f"source {folder}/bin/activate" in ran.stdout
    assert (
        f"The environment in {folder} is installed, but the training step did not pass"
        in ran.stderr
    )
    assert "import" in ran.stdout
    assert ran.stdout.isascii()
    assert "Traceback" not in ran.stderr
    assert not (folder / "left").exists()
    assert not (folder / MARKER).exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--with", "docker"), "For a Dockerfile, run: cudadoctor fix --as dockerfile"),
        (("--with", "pixi"), "pixi not found on PATH"),
        (("--with", "conda"), "mamba, micromamba, conda not found on PATH"),
        (("--torch", "newest"), "is not a valid version"),
        (("--torch", ""), "is not a valid version"),
        (("--device", "tpu"), "is not a valid device"),
        (("--python", "/nowhere"), "there is no such file or folder"),
    ],
)
def test_wrong_use_is_one_sentence(
    broken: Path, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    bare = environment(broken, PATH="/usr/bin:/bin", HOME=str(tmp_path))
    ran = setup(tmp_path / "env", bare, "--yes", *options)
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "env").exists()


def test_a_release_that_does_not_exist_is_told_with_a_document(
    broken: Path, tmp_path: Path
) -> None:
    ran = setup(tmp_path / "env", environment(broken), "--yes", "--json", "--torch", "9.9")
    report = document(ran)
    assert ran.returncode == 1
    assert (report["outcome"], report["environment"], report["commands"]) == ("no-build", None, [])
    assert report["why"][-1] == "Nothing was created."
