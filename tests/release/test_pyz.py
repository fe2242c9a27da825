"""cudadoctor.pyz: one file that runs anywhere, leaves nothing, and says where it cannot run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import build_pyz
import pytest
import pyz_main
from interpreter_fixtures import PYENV

MACHINE = Path(__file__).parent.parent / "machines" / "gtx1080-linux.json"


def argv(pyz: Path, *words: str) -> list[str]:
    # Isolated: no PYTHONPATH and no folder of the user's brings the requirements in its place.
    return [sys.executable, "-I", "-S", str(pyz), *words]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "CUDADOCTOR_LANG": "en"}


def run(
    pyz: Path, folder: Path, *words: str, offline: bool = False
) -> subprocess.CompletedProcess[str]:
    before = ["unshare", "--map-root-user", "--net"] if offline else []
    return subprocess.run(
        [*before, *argv(pyz, *words)],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def can_unshare() -> bool:
    words = ["unshare", "--map-root-user", "--net", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(words, check=False).returncode


def test_it_checks_this_machine_without_a_network_and_leaves_nothing(
    pyz: Path, tmp_path: Path
) -> None:
    words = ("check", "--fast", "--json", "--python", sys.executable)
    ran = run(pyz, tmp_path, *words, offline=can_unshare())
    document = json.loads(ran.stdout)
    assert ran.returncode in (0, 1, 3), ran.stderr
    # The user's Python runs it, but is no environment of the doctor's own.
    assert document["facts"]["python"]["own"] is False
    assert not any(tmp_path.iterdir())


def test_it_gives_the_exit_code_and_the_output_of_the_doctor(pyz: Path, tmp_path: Path) -> None:
    ran = run(pyz, tmp_path, "fix", "--print", "--from", str(MACHINE))
    installed = subprocess.run(
        [sys.executable, "-m", "cudadoctor", "fix", "--print", "--from", str(MACHINE)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (installed.returncode, installed.stdout)
    assert run(pyz, tmp_path, "check", "--nonsense").returncode == 2


def test_a_signal_ends_the_doctor_and_nothing_is_left(pyz: Path, tmp_path: Path) -> None:
    with reading(pyz, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not any(tmp_path.iterdir())


def test_what_a_killed_run_left_is_removed_by_the_next_one(pyz: Path, tmp_path: Path) -> None:
    with reading(pyz, tmp_path) as process:
        assert process.stdin and process.stdout
        process.kill()
        process.stdin.close()
        process.stdout.read()  # to its end: the doctor, which lives on, has come to its own
    assert any(tmp_path.iterdir())
    ran = run(pyz, tmp_path, "check", "--fast", "--quiet", "--python", sys.executable)
    assert ran.returncode in (0, 1, 3), ran.stderr
    assert not any(tmp_path.iterdir())


def reading(pyz: Path, folder: Path) -> subprocess.Popen[bytes]:
    """A doctor that has been unpacked and reads its standard input."""
    process = subprocess.Popen(
        argv(pyz, "check", "--from", "-"),
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    process.stdin.write(b"x\n" * 100_000)  # more than a pipe holds: it is being read
    return process


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9", ""])
def test_a_python_without_wheels_gets_one_sentence_and_the_code_of_wrong_use(
    pyz: Path, tmp_path: Path, version: str
) -> None:
    found = list(PYENV.glob(f"{version}.*/bin/python")) if version else [Path(sys.executable)]
    if not found:
        pytest.skip(f"no Python {version} here")
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(pyz) as archive:
        (wheels,) = json.loads(archive.read("sets.json")).values()
        archive.extractall(tmp_path / "all")
    paths = [tmp_path / "all" / "wheels" / wheel for wheel in wheels]
    build_pyz.write(other, {"cp399-linux-x86_64": paths})
    ran = subprocess.run(
        [found[0], other, "check"],
        env={**os.environ, "LC_ALL": "es_ES.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("cudadoctor.pyz no funciona con CPython")
    assert "CPython 3.99 en Linux con glibc (x86_64)" in ran.stderr
    assert f"--python {found[0]}" in ran.stderr


def test_where_nothing_can_be_unpacked_it_says_so(
    capsys: pytest.CaptureFixture[str], pyz: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pyz_main, "HERE", str(pyz))
    monkeypatch.setattr(pyz_main, "places", lambda: iter([str(tmp_path / "gone")]))
    assert pyz_main.main() == 2
    assert "No such file or directory" in capsys.readouterr().err
