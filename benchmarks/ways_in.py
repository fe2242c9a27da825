"""Every way in, on the Pythons at hand, without a network: wheel, sdist, uvx, pipx, one file.

Run: python benchmarks/ways_in.py PYTHON... (several Pythons, 3.10 or newer; others must be refused)
Needs a network to build, uv and pipx beside this Python or on PATH, and unshare(1), which takes the
network away from every run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import measuring

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = ("unshare", "--map-root-user", "--net")
BIN = Path(sys.executable).parent


def run(*argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in argv]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        words, env={**kept, **variables}, cwd="/", capture_output=True, text=True, check=False
    )


def must(*argv: str | Path, **variables: str) -> str:
    done = run(*argv, **variables)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def looked(*argv: str | Path, **variables: str) -> str:
    """What `check --fast` without a network ends with: its exit code and first line."""
    done = run(*OFFLINE, *argv, "check", "--fast", "--quiet", **variables)
    if done.returncode not in (0, 1, 3):
        sys.exit(f"{' '.join(map(str, argv))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return f"{done.returncode}: {done.stdout.strip()}"


def version(python: str) -> str:
    return must(python, "-c", "import platform; print(platform.python_version())").strip()


def program(name: str) -> str:
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return found or sys.exit(f"this needs {name}")


def main(pythons: list[str]) -> None:
    found: dict[str, Any] = {"installed": {}, "pyz": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uv, wheels, pyz = program("uv"), folder / "wheels", folder / "cudadoctor.pyz"
        must(uv, "build", "--quiet", "--out-dir", folder / "dist", ROOT)
        (wheel,), (sdist,) = (list((folder / "dist").glob(end)) for end in ("*.whl", "*.tar.gz"))
        found["wheel_mb"] = round(wheel.stat().st_size / 1e6, 2)
        found["sdist_mb"] = round(sdist.stat().st_size / 1e6, 2)
        must(sys.executable, ROOT / "release" / "build_pyz.py", pyz)
        found["pyz_mb"] = round(pyz.stat().st_size / 1e6, 2)
        with zipfile.ZipFile(pyz) as archive:
            for member in archive.namelist():
                if member.startswith("wheels/") and not member.startswith("wheels/cudadoctor-"):
                    archive.extract(member, folder)
        must(sys.executable, "-m", "pip", "download", "-q", "-d", wheels, "hatchling>=1.24")
        for python in pythons:
            known = version(python)
            ours = tuple(map(int, known.split(".")[:2])) >= (3, 10)
            if not ours:
                refused = run(*OFFLINE, python, pyz, "check")
                assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 2), refused
                found["pyz"][known] = "refused"
                continue
            found["pyz"][known] = looked(python, pyz)
            for file in (wheel, sdist):
                venv = folder / f"{known}-{file.suffix}"
                must(python, "-m", "venv", venv)
                argv: list[str | Path] = [
                    venv / "bin" / "python",
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--no-index",
                ]
                must(*OFFLINE, *argv, "--find-links", wheels, file, PIP_EXTRA_INDEX_URL="")
                found["installed"][f"{known} {file.suffix}"] = looked(venv / "bin" / "cudadoctor")
        offline: list[str | Path] = ["--offline", "--no-index", "--find-links", wheels]
        found["uvx"] = looked(uv, "tool", "run", *offline, "--from", wheel, "cudadoctor")
        pipx = [program("pipx"), "run", "--python", sys.executable, "--no-cache"]
        places = {"PIPX_HOME": str(folder / "pipx"), "PIP_NO_INDEX": "1"}
        arguments = f"--pip-args=--no-index --find-links={wheels}"
        found["pipx"] = looked(*pipx, arguments, "--spec", wheel, "cudadoctor", **places)
        found["resolved_only"] = sorted(_others(pyz, list(found["pyz"])))
    measuring.saved("ways_in", found)


def _others(pyz: Path, tried: list[str]) -> set[str]:
    """The Pythons and processors whose wheels are in the file, and on which it did not run here."""
    with zipfile.ZipFile(pyz) as archive:
        sets = set(json.loads(archive.read("sets.json")))
    short = ["".join(known.split(".")[:2]) for known in tried]
    return sets - {f"cp{python}-linux-{os.uname().machine}" for python in short}


if __name__ == "__main__":
    main(sys.argv[1:])
