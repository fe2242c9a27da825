"""Virtual environments made for a test, and distributions planted in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudadoctor.host.local import LocalHost
from cudadoctor.model.machine import Machine, TorchCopy
from cudadoctor.probes import Looked
from cudadoctor.probes.interpreter import read_target
from cudadoctor.probes.target import choose

PYENV = Path("/root/.pyenv/versions")
CUDA_VERSION_PY = """from typing import Optional
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'abc'
hip: Optional[str] = {hip!r}
"""


def pythons() -> list[str]:
    """Every Python 3 of pyenv, or the one that runs the tests if there is none."""
    found = sorted(str(path) for path in PYENV.glob("3.*/bin/python"))
    return found or [sys.executable]


def oldest(*versions: str) -> str:
    """A Python of one of these versions; the test is skipped if there is none."""
    for version in versions:
        for path in PYENV.glob(f"{version}.*/bin/python"):
            return str(path)
    pytest.skip(f"no Python {' or '.join(versions)} in {PYENV}")


def make_venv(folder: Path, python: str = sys.executable, *options: str) -> Path:
    """A virtual environment without pip; its site-packages is `site(folder)`."""
    argv = [python, "-m", "venv", "--without-pip", *options, str(folder)]
    subprocess.run(argv, check=True, capture_output=True)
    return folder


def site(venv: Path) -> Path:
    return next(venv.glob("lib/python*/site-packages"))


def plant(
    entry: Path, name: str, version: str, *requires: str, installer: str | None = "pip"
) -> Path:
    """A dist-info with metadata, as pip writes it."""
    folder = entry / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n\nRequires-Dist: not-a-header\n")
    if installer:
        (folder / "INSTALLER").write_text(f"{installer}\n")
    return folder


def plant_torch(
    entry: Path,
    version: str = "2.6.0+cu124",
    cuda: str | None = "12.4",
    *requires: str,
    hip: str | None = None,
    installer: str | None = "pip",
) -> Path:
    """A torch with metadata, version.py and an empty package; the folder of the package."""
    plant(entry, "torch", version, *requires, installer=installer)
    return plant_files(entry, version, cuda, hip)


def plant_files(
    entry: Path, version: str = "2.6.0+cu124", cuda: str | None = "12.4", hip: str | None = None
) -> Path:
    """The files of a torch without metadata."""
    folder = entry / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    text = CUDA_VERSION_PY.format(version=version, cuda=cuda, hip=hip)
    (folder / "version.py").write_text(text)
    return folder


def look(python: Path | str) -> Looked:
    """What the probe sees of an interpreter that --python names."""
    host = LocalHost()
    return read_target(host, choose(host, str(python)), timeout_s=20)


def copies(looked: Looked) -> list[tuple[str, str | None]]:
    """Kind and version of the copies of torch, in order of the path."""
    found: tuple[TorchCopy, ...] = looked.facts["torch.copies"]
    return [(manager.kind, manager.version) for manager in found]


def machine(looked: Looked) -> Machine:
    """The packages as a machine has them."""
    return Machine(packages=looked.facts["packages"])
