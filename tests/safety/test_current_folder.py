"""Nothing of the folder that one stands in runs: modules, programs, environments, settings.

Each planted thing leaves its name in a file when it is executed. The modules have the names of all
of Python's own and of whatever a child of ours could import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import interpreter_fixtures as envs
import pytest
from imports_read import ROOT
from share import share

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs as on POSIX")

PACKAGES = """
    torch torchvision torchaudio torchgen numpy triton sympy mpmath networkx jinja2 markupsafe
    filelock fsspec typing_extensions pynvml nvidia_smi click msgspec rich packaging tomli orjson
    colorama pygments markdown_it mdurl simplejson PIL accelerate apex bitsandbytes flash_attn
    xformers functorch tensorboard tqdm cuda cupy pip setuptools pkg_resources wheel virtualenv uv
    conda mamba pyximport cython yaml requests urllib3 certifi idna truststore keyring distutils
    _distutils_hack _virtualenv sitecustomize usercustomize pdb_attach cudadoctor_inside
    entry wire boot look planted test tests mypy pytest
""".split()  # noqa: SIM905
MODULES = sorted({*PACKAGES, *sys.stdlib_module_names} - set(sys.builtin_module_names))
PROGRAMS = """
    nvidia-smi nvcc nvidia-smi.exe nv-fabricmanager pip pip3 uv python python3 python3.10
    python3.11 python3.12 python3.13 conda mamba micromamba pixi poetry pdm pyenv c++ g++ gcc cc
    clang++ cl ldconfig modinfo dmesg journalctl rpm dpkg dpkg-query systemctl lspci lsmod uname
    git sh bash env mktemp rmdir docker rustc cmake ninja hostname
""".split()  # noqa: SIM905
SETTINGS = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "planted"\n'
    'backend-path = ["."]\n[project]\nname = "planted"\nversion = "1"\n[tool.uv]\n',
    "setup.cfg": "[metadata]\nname = planted\n",
    "pip.conf": "[global]\npython = ./python3\nrequirement = ./requirements.txt\n",
    "requirements.txt": "-e .\n",
    "uv.toml": 'find-links = ["."]\n',
    ".python-version": "../../here\n",
    "planted.pth": "import planted\n",
}


def plant(folder: Path, mark: Path, without: frozenset[str] = frozenset()) -> None:
    """A folder in which everything leaves a mark when it is run."""
    folder.mkdir()
    for name in set(MODULES) - without:
        text = f"open({str(mark)!r}, 'a').write({name!r} + '\\n')\n"
        if name in ("torch", "json", "numpy"):
            (folder / name).mkdir()
            for part in ("__init__", "__main__"):
                (folder / name / f"{part}.py").write_text(text)
        else:
            (folder / f"{name}.py").write_text(text)
    (folder / "setup.py").write_text(f"open({str(mark)!r}, 'a').write('setup.py\\n')\n")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "bin").mkdir()
    places = [folder / name for name in PROGRAMS] + [folder / "bin" / name for name in PROGRAMS]
    for path in (*places, folder / ".venv" / "bin" / "python"):
        path.write_text(f"#!/bin/sh\necho {path.relative_to(folder)} >> '{mark}'\n")
        path.chmod(0o755)
    (folder / ".venv").chmod(0o777)
    for name, text in SETTINGS.items():
        (folder / name).write_text(text)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The planted folder; what runs is told in the file `ran` beside it."""
    plant(tmp_path / "here", tmp_path / "ran")
    return tmp_path / "here"


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """The doctor as its installed script starts it: the script's own folder is on the path."""
    script = tmp_path / "launcher" / "cudadoctor"
    script.parent.mkdir()
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT.parent)!r})\n"
        "from cudadoctor.__main__ import main\nmain()\n"
    )
    return script


WAYS = {
    "plain": {},
    "path": {"PATH": f".::bin:{os.environ['PATH']}:./"},
    "dot": {"PYTHONPATH": "."},
    "empty": {"PYTHONPATH": ""},
    "colon": {"PYTHONPATH": f":{os.pathsep}./", "PYTHONHOME": ".", "PYTHONSTARTUP": "planted.py"},
    "whole": {"PYTHONPATH": "{here}"},
}
"""Variables that lead into the folder."""
NO_INDEX = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "PIP_NO_INPUT": "1"}


def doctor(
    launcher: Path, here: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the doctor in that folder.

    Its own Python ignores PYTHONPATH (-E): that would run a sitecustomize.py before our first line.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    env |= NO_INDEX | {name: value.format(here=here) for name, value in more.items()}
    argv = [sys.executable, "-E", "-B", str(launcher), *words]
    return subprocess.run(
        argv,
        cwd=here,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def assert_nothing_ran(here: Path, ran: subprocess.CompletedProcess[str]) -> None:
    mark = here.parent / "ran"
    assert not mark.exists(), sorted(set(mark.read_text().split()))
    assert ran.returncode in (0, 1, 3), ran
    assert "itself failed" not in ran.stderr


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment with pip and a torch that cannot be imported."""
    folder = tmp_path_factory.mktemp("sick") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    envs.plant_torch(envs.site(folder))
    return str(folder)


COMMANDS = {
    "check": ("check", "--no-smoke", "-v"),
    "fast": ("check", "--fast", "--json"),
    "markdown": ("check", "--fast", "--markdown", "--full"),
    "print": ("fix", "--print", "--fast"),
    "verify": ("fix", "--print", "--fast", "--verify"),
    "verify-uv": ("fix", "--print", "--fast", "--verify", "--with", "uv"),
    "fix": ("fix", "--fast", "--yes"),
    "facts": ("facts",),
    "record": ("record", "../recording"),
    "smoke": ("smoke",),
    "explain": ("explain", "torch-missing"),
}


@pytest.mark.parametrize(
    ("command", "way"),
    [
        (command, way)
        for turn, command in enumerate(COMMANDS)
        for way in (WAYS if command in ("check", "fix") else share(("path", "whole"), 2, turn))
    ],
)
def test_no_command_runs_anything_of_the_folder(
    here: Path, launcher: Path, sick: str, command: str, way: str
) -> None:
    words = COMMANDS[command]
    named = () if command == "explain" else ("--python", sick)
    ran = doctor(launcher, here, *words, *named, **WAYS[way])
    assert_nothing_ran(here, ran)


@pytest.mark.parametrize("way", WAYS)
def test_the_interpreter_is_chosen_without_running_anything_of_the_folder(
    here: Path, launcher: Path, way: str
) -> None:
    ran = doctor(launcher, here, "check", "--fast", "--json", **WAYS[way])
    assert_nothing_ran(here, ran)
    assert f'"examined": "{here}' not in ran.stdout
    assert "is writable by everyone" in ran.stdout


@pytest.mark.parametrize("way", share(["path", "dot", "whole"], 2))
def test_a_real_training_step_runs_nothing_of_the_folder(
    here: Path, launcher: Path, python_cpu: str, way: str
) -> None:
    ran = doctor(launcher, here, "check", "--json", "--python", python_cpu, **WAYS[way])
    assert_nothing_ran(here, ran)
    said = json.loads(ran.stdout)
    assert {stage["name"]: stage["status"] for stage in said["smoke"]["stages"]}[
        "matmul"
    ] == "passed"
    found = {finding["cause"]: finding["title"] for finding in said["findings"]}
    assert found["torch-duplicate"].endswith("/here/torch is imported instead of torch")
    assert "/here/argparse.py hides the module argparse" in found["module-shadowed"]


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_setup_runs_nothing_of_the_folder(here: Path, launcher: Path, tool: str) -> None:
    path = f"{WAYS['path']['PATH']}:{Path(sys.executable).parent}"
    ran = doctor(launcher, here, "setup", "../new", "--yes", "--with", tool, PATH=path)
    if ran.returncode == 2:
        pytest.skip(ran.stderr)
    assert_nothing_ran(here, ran)


def test_bench_runs_nothing_of_the_folder(here: Path, launcher: Path, python_cpu: str) -> None:
    words = ("--minutes", "0.1", "--workload", "cnn", "--only", "channels-last", "--json")
    ran = doctor(launcher, here, "bench", *words, "--python", python_cpu, **WAYS["dot"])
    assert_nothing_ran(here, ran)


def test_python_dash_m_finds_nothing_of_the_folder_once_we_run(tmp_path: Path, sick: str) -> None:
    """Python puts the folder first then; what it imports before our first line is its own."""
    (tmp_path / "seen.py").write_text("import sys; print(*sys.modules)\n")
    started = subprocess.run(
        [sys.executable, "-m", "seen"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split()
    plant(tmp_path / "here", tmp_path / "ran", frozenset({*started, "cudadoctor"}))
    argv = [sys.executable, "-B", "-m", "cudadoctor", "check", "--no-smoke", "--python", sick]
    ran = subprocess.run(
        argv, cwd=tmp_path / "here", capture_output=True, text=True, timeout=120, check=False
    )
    assert_nothing_ran(tmp_path / "here", ran)


def test_a_planted_thing_would_be_seen(here: Path) -> None:
    """What the other tests rest on."""
    subprocess.run([sys.executable, "-c", "import json"], cwd=here, check=False)
    subprocess.run(["./uv"], cwd=here, check=True)
    assert {"json", "uv"} <= set((here.parent / "ran").read_text().split())
