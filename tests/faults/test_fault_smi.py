"""nvidia-smi on PATH in every shape that it is known to take, asked by the real command.

The program is a script that prints a file; NVML is not there. What it says is kept, and what it
does not say is not made up.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from share import share

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the program is a shell script")

WIDE = """\
Sat Nov 21 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   27C    P0             71W /  700W |       3MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
NARROW = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI {tool}       Driver Version: {driver}{cuda} |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:18:00.0 Off |                    0 |
| N/A   35C    P0    41W / 300W |      0MiB / 16160MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""
NEW = WIDE.replace(
    "Driver Version: 580.95.05      CUDA Version: 13.0  ",
    "KMD Version: 610.43.02     CUDA UMD Version: 13.3",
).replace("NVIDIA-SMI 580.95.05", "NVIDIA-SMI 610.43.02")
WINDOWS = WIDE.replace("Persistence-M", "Driver-Model ").replace("On  |", "TCC |")
CHINESE = "活动代码页: 936\n警告: 系统找不到指定的路径。\n"
GERMAN = "Aktive Codepage: 850.\nDas System kann den angegebenen Pfad nicht finden: Gerät.\n"


def narrow(version: str, cuda: str = "") -> str:
    return NARROW.format(tool=version, driver=version, cuda=cuda)


def planted(folder: Path, said: bytes, *, code: int = 0, first: str = "", last: str = "") -> Path:
    """A folder with an nvidia-smi that says this whatever it is asked."""
    (folder / "said").write_bytes(said)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{first}\ncat '{folder}/said'\n{last}\nexit {code}\n")
    program.chmod(0o755)
    return folder


def checked(folder: Path, *words: str) -> dict[str, Any]:
    """The report of the real command, with that program before all others."""
    path = os.pathsep.join([str(folder), "/usr/bin", "/bin"])
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--json"]
    ran = subprocess.run(
        [*argv, "--python", sys.executable, *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode in (0, 1, 3), ran.stderr.decode("utf-8", "replace")
    document = json.loads(ran.stdout)
    assert isinstance(document, dict)
    return document


def reported(document: dict[str, Any]) -> tuple[str | None, str | None, list[str]]:
    """The driver, the newest CUDA and the GPUs that the report names."""
    driver = document["facts"]["driver"]
    gpus = [gpu["name"] for gpu in document["facts"].get("gpus") or ()]
    return driver.get("reported"), driver.get("cuda"), gpus


def errors(document: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in document["findings"] if finding["severity"] == "error"}


H100 = ("580.95.05", "13.0", ["NVIDIA H100 80GB HBM3"])
V100 = ["Tesla V100-SXM2..."]

WORDINGS: dict[str, tuple[str | bytes, tuple[str | None, str | None, list[str]]]] = {
    "wide": (WIDE, H100),
    "kmd-and-umd": (NEW, ("610.43.02", "13.3", H100[2])),
    "windows": (WINDOWS, H100),
    "375": (narrow("375.39"), ("375.39", None, V100)),
    "390": (narrow("390.157"), ("390.157", None, V100)),
    "410": (narrow("410.79", "   CUDA Version: 10.0"), ("410.79", "10.0", V100)),
    "cuda-n/a": (WIDE.replace("13.0 ", "N/A  "), ("580.95.05", None, H100[2])),
    "cuda-err": (WIDE.replace("13.0 ", "ERR! "), ("580.95.05", None, H100[2])),
    "windows-lines": (WIDE.replace("\n", "\r\n"), H100),
    "colours": ("\x1b[32m" + WIDE.replace("580", "\x1b[1m580\x1b[0m"), H100),
    "utf-16-mark": (WIDE.encode("utf-16"), H100),
    "utf-16-little": (WIDE.encode("utf-16-le"), H100),
    "utf-16-big": (WIDE.encode("utf-16-be"), H100),
    "utf-8-mark": (WIDE.encode("utf-8-sig"), H100),
    "chinese": (CHINESE + WIDE, H100),
    "chinese-gbk": ((CHINESE + WIDE).encode("gbk"), H100),
    "german-cp850": ((GERMAN + WIDE).encode("cp850"), H100),
    "warning": ("WARNING: infoROM is corrupted at gpu 0000:18:00.0\n" + WIDE, H100),
}


@pytest.mark.parametrize("name", WORDINGS)
def test_every_wording_of_the_header_is_read(tmp_path: Path, name: str) -> None:
    said, expected = WORDINGS[name]
    data = said if isinstance(said, bytes) else said.encode()
    document = checked(planted(tmp_path, data))
    assert reported(document) == expected
    assert "gpu-not-detected" not in errors(document)


@pytest.mark.parametrize("name", ["wide", "kmd-and-umd", "warning"])
def test_an_exit_status_does_not_undo_a_whole_table(tmp_path: Path, name: str) -> None:
    said, expected = WORDINGS[name]
    assert isinstance(said, str)
    usual = checked(planted(tmp_path, said.encode()))
    for code in share((1, 2, 14, 127, 255), 2, len(name)):
        document = checked(planted(tmp_path, said.encode(), code=code))
        assert reported(document) == expected, code
        both = (errors(document), document["verdict"])
        assert both == (errors(usual), usual["verdict"]), code
        message = document["facts"]["driver"]["smi"].get("message") or ""
        assert not message.startswith(("Sat", "|", "+")), code


def test_a_table_cut_after_any_line_makes_no_gpu_vanish(tmp_path: Path) -> None:
    lines = WIDE.splitlines(keepends=True)
    row = next(number for number, line in enumerate(lines) if "H100" in line)
    for number in sorted({row, row + 1, *share(range(3, len(lines)), 2)}):
        document = checked(planted(tmp_path, "".join(lines[:number]).encode()))
        driver, cuda, gpus = reported(document)
        assert (driver, cuda) == H100[:2]
        assert gpus == (H100[2] if number > row else [])
        assert not errors(document) & {"gpu-not-detected", "container-no-gpu"}, lines[:number]


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        ("sleep 600", "", "no response within"),
        ("", "sleep 600", "no response within"),
        ("kill -KILL $$", "", "killed by signal 9"),
        ("", "kill -SEGV $$", "killed by signal 11"),
        ("yes", "", "more than 8 MiB"),
    ],
)
def test_a_program_that_does_not_end_well_is_a_gap(
    tmp_path: Path, first: str, last: str, why: str
) -> None:
    said = WIDE if last else ""
    document = checked(planted(tmp_path, said.encode(), first=first, last=last), "--timeout", "2")
    assert why in json.dumps(document["facts"]["gaps"]) or reported(document) == H100
    assert reported(document) == (H100 if last else (None, None, []))
    assert errors(document) <= {"torch-missing", "unknown"}  # libcuda is not there


@pytest.mark.parametrize("kind", ["empty", "bytes", "noise", "ten megabytes", "directory", "loop"])
def test_what_is_no_answer_names_no_driver(tmp_path: Path, kind: str) -> None:
    data = {"bytes": bytes(range(256)) * 4000, "noise": random.Random(7).randbytes(100_000)}
    folder = planted(tmp_path, data.get(kind, b"x" * 10_000_000 if "mega" in kind else b""))
    if kind in ("directory", "loop"):
        (folder / "nvidia-smi").unlink()
        target = folder / "nvidia-smi"
        target.mkdir() if kind == "directory" else target.symlink_to(target)
    document = checked(folder)
    assert reported(document) == (None, None, [])
    assert errors(document) <= {"gpu-not-detected", "torch-missing"}


def test_a_program_for_another_machine_is_no_answer(tmp_path: Path) -> None:
    folder = planted(tmp_path, b"")
    (folder / "nvidia-smi").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))
    document = checked(folder)
    assert reported(document) == (None, None, [])
    assert shutil.which("nvidia-smi", path=str(folder))
