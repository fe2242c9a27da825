"""The same on a real host through the command line: planted secrets, and a folder that tries."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planted_secrets import GPU, MIG, USER

COMMAND = [sys.executable, "-m", "cudadoctor"]
OTHER = "balder"
SECRETS = (
    *(USER, OTHER, "valhalla7", GPU[4:], MIG[4:], "sigyn9", "10.77.66.55", "52:54:00:ab:cd:ef"),
    *("hf_PlantedPlanted1234", "s3cret", "abc123def", "hunter2222", "plantedAwsSecret"),
    *("ghp_0123456789abcdefghij", "ab-12345678-cdef", "tyr.hand@mail.example.edu"),
    *("1652123004567", "0242ac110002", "surtr1", "pa55word"),
)
SMI = f"""\
#!/bin/sh
echo "Failed to initialize NVML: Driver/library version mismatch"
echo "NVML library version: 580.95"
echo "{OTHER}@valhalla7:~$ {GPU} {MIG} serial number: 1652123004567 ask tyr.hand@mail.example.edu"
echo "sigyn9:12:34 [0] NCCL INFO connect to 10.77.66.55:29500 by 52:54:00:ab:cd:ef enx0242ac110002"
echo "HF_TOKEN=hf_PlantedPlanted1234 /home/{OTHER}/x C:\\\\Users\\\\{OTHER}\\\\y" >&2
exit 18
"""
SETTINGS = """\
[global]
index-url = https://ada:s3cret@pypi.example.org/simple?token=abc123def
extra-index-url = https://conda.example.org/t/ab-12345678-cdef/simple
password = hunter2222
"""


def cudadoctor(*words: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [*COMMAND, *words]
    return subprocess.run(
        argv, capture_output=True, text=True, env=env, cwd=cwd, timeout=120, check=False
    )


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, str]:
    """The variables of a host that holds secrets wherever a host can hold them."""
    home = tmp_path / "home" / USER
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    settings = home / ".config" / "pip" / "pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    return {
        "HOME": str(home),
        "USER": USER,
        "PATH": f"{home}/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
        "VIRTUAL_ENV": f"{home}/venv",
        "HF_TOKEN": "hf_PlantedPlanted1234",
        "AWS_SECRET_ACCESS_KEY": "plantedAwsSecret",
        "GITHUB_TOKEN": "ghp_0123456789abcdefghij",
        "TORCH_HOME": f"{home}/hf_PlantedPlanted1234",
        "UV_INDEX": "corp=https://loki:pa55word@uv.example.org/simple",
        "LD_LIBRARY_PATH": f"{home}/lib:/home/{OTHER}/lib",
        "CUDA_VISIBLE_DEVICES": GPU,
        "NCCL_COMM_ID": "10.77.66.55:5000",
        "NCCL_SOCKET_IFNAME": "enx0242ac110002",
        "MASTER_ADDR": "surtr1.dc.example.edu",
    }


def secrets() -> tuple[str, ...]:
    host = socket.gethostname()
    return (*SECRETS, host) if len(host) > 5 else SECRETS


def leaked(text: str | bytes) -> list[str]:
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return [secret for secret in secrets() if secret in whole]


def everything(folder: Path) -> bytes:
    """Every byte of a recording; what is in base64 also decoded."""
    data = b""
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        said = path.read_bytes()
        data += path.name.encode() + said
        data += base64.decodebytes(said) if path.suffix == ".b64" else b""
    return data


def judgement(document: dict[str, Any]) -> tuple[Any, ...]:
    """The verdict, the causes and the steps of a diagnosis."""
    causes = [finding["cause"] for finding in document["findings"]]
    steps = [step["id"] for step in document["plan"]["steps"]]
    return document["verdict"], document["primary"], causes, steps


def test_what_a_planted_host_shows_holds_no_secret(planted: dict[str, str], tmp_path: Path) -> None:
    for words in (["facts", "--fast"], ["check", "--fast", "--markdown"]):
        ran = cudadoctor(*words, env=planted, cwd=tmp_path)
        assert ran.returncode in (0, 1, 3), ran.stderr
        assert leaked(ran.stdout) == []
        assert leaked(ran.stderr) == []
    document = json.loads(cudadoctor("check", "--fast", "--json", env=planted, cwd=tmp_path).stdout)
    assert USER in document["examined"]
    open_keys = ("plan", "examined", "next_command")
    assert leaked(json.dumps({k: v for k, v in document.items() if k not in open_keys})) == []
    full = cudadoctor("facts", "--fast", "--full", env=planted, cwd=tmp_path).stdout
    assert {USER, OTHER, "10.77.66.55"} <= set(leaked(full))


def test_what_a_planted_host_saves_is_judged_as_the_host_itself(
    planted: dict[str, str], tmp_path: Path
) -> None:
    here = json.loads(cudadoctor("check", "--fast", "--json", env=planted, cwd=tmp_path).stdout)
    facts, folder = tmp_path / "facts.json", tmp_path / "recording"
    cudadoctor("facts", "--fast", "--output", str(facts), env=planted, cwd=tmp_path)
    cudadoctor("record", str(folder), "--fast", env=planted, cwd=tmp_path)
    assert leaked(everything(folder)) == []
    for saved in (facts, folder):
        words = ("check", "--json", "--from", str(saved))
        there = json.loads(cudadoctor(*words, env=planted, cwd=tmp_path).stdout)
        assert judgement(there) == judgement(here)
    words = ("check", "--json", "--from", str(facts))
    plan = json.loads(cudadoctor(*words, env=planted, cwd=tmp_path).stdout)["plan"]
    commands = [argv for step in plan["steps"] for argv in step["commands"] if "pip" in argv]
    assert commands
    assert {argv[0] for argv in commands} == {"$PYTHON"}


# --- a folder that tries to act -------------------------------------------------------------

FOLDER = "a'b\"c $(touch PWNED);x & [red] `touch PWNED` %PATH% \\ \u202e *"
PIP = """\
import os, sys
with open(os.environ["SAID"], "a") as file:
    file.write(sys.executable + "\\0" + "\\0".join(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A real environment in a folder whose name is a program in every shell; its pip is a stub."""
    folder = tmp_path / FOLDER
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").write_text('__version__ = "26.0"\n')
    (site / "pip" / "__main__.py").write_text(PIP)
    return folder


def assert_nothing_ran(tmp_path: Path) -> None:
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("PWNED")]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "pwsh"])
def test_the_printed_repair_calls_the_interpreter_of_a_hostile_folder_and_nothing_else(
    shell: str, hostile: Path, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    env = {**os.environ, "SAID": str(tmp_path / "said"), "HOME": str(tmp_path)}
    name = {"fish": "fish", "pwsh": "powershell"}.get(shell, "bash")
    words = ("fix", "--print", "--fast", "--shell", name, "--python", str(hostile))
    printed = cudadoctor(*words, env=env, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.replace("\n", "").isprintable()
    file = tmp_path / "plan.ps1"
    file.write_text(printed.stdout)
    argv = [shell, "-NoProfile", str(file)] if shell == "pwsh" else [shell, str(file)]
    ran = subprocess.run(argv, capture_output=True, env=env, cwd=tmp_path, timeout=60, check=False)
    # Where no GPU is found, one step is left to a hand.
    left = "\nexit 1\n" in printed.stdout
    assert (ran.returncode, ran.stderr) == (int(left), b""), printed.stdout
    said = [line.split("\0") for line in (tmp_path / "said").read_text().splitlines()]
    assert {Path(call[0]) for call in said} == {hostile / "bin" / "python"}
    assert any("install" in call for call in said)
    assert_nothing_ran(tmp_path)


@pytest.mark.parametrize("form", ["--json", "--markdown", "-v", "--full"])
def test_the_report_on_a_hostile_folder_is_printable(
    form: str, hostile: Path, tmp_path: Path
) -> None:
    ran = cudadoctor(
        "check", "--fast", form, "--python", str(hostile), env=dict(os.environ), cwd=tmp_path
    )
    assert ran.returncode in (0, 1, 3)
    assert ran.stdout.replace("\n", "").isprintable()
    assert ran.stderr.replace("\n", "").isprintable()
    assert_nothing_ran(tmp_path)
