"""A real environment with a real fault, and a real index of small wheels that cure it.

The torch is a stand-in of a few lines; pip, the wheels, the index and the doctor are real.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import msgspec

TORCH, FITTING, STRANGE = "2.14.1", "0.29.1", "0.20.0"
"""A torch, the torchvision that belongs to it, and one that does not."""

VERSION_PY = """from typing import Optional
__version__ = '2.14.1+cpu'
debug = False
cuda: Optional[str] = None
git_version = 'abc'
hip: Optional[str] = None
"""
TORCH_FILES = {
    "torch/__init__.py": "from .version import __version__\n",
    "torch/version.py": VERSION_PY,
}
HERE = Path(__file__).parent


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *requires: str
) -> Path:
    """A wheel of pure Python with a sound RECORD."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in whole.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
        for inside, text in {**whole, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(inside, text)
    return path


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def torchvision(version: str, **more: str) -> dict[str, str]:
    """The files of a torchvision."""
    own = {
        "__init__": "from .version import __version__\n",
        "version": f"__version__ = '{version}'\n",
    }
    return {f"torchvision/{name}.py": text for name, text in {**own, **more}.items()}


def write_index(folder: Path, *wheels: tuple[str, str, Mapping[str, str], tuple[str, ...]]) -> str:
    """Write a simple index and return its URL; torch too calls its CPU index cpu."""
    for name, version, files, requires in wheels:
        place = folder / "cpu" / name
        write_wheel(place, name, version, files, *requires)
        links = "".join(
            f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in place.glob("*.whl")
        )
        (place / "index.html").write_text(links)
    return (folder / "cpu").as_uri()


def fitting_index(folder: Path) -> str:
    """An index from which the fault can be cured."""
    needs = (f"torch=={TORCH}",)
    return write_index(
        folder,
        ("torch", TORCH, TORCH_FILES, ()),
        ("torchvision", FITTING, torchvision(FITTING), needs),
    )


class Environment:
    """One environment of a test, and the doctor acting upon it as a program of its own."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder = folder
        self.index = index
        self.python = folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))
        self.journal = folder / ".cudadoctor" / "journal.jsonl"

    def words(self, *options: str) -> list[str]:
        """The command line of the doctor."""
        named = ("--python", str(self.folder))
        return [sys.executable, "-m", "cudadoctor", "fix", "--fast", *named, *options]

    def env(self, **more: str) -> dict[str, str]:
        """The environment of the doctor: no configuration of this machine reaches pip."""
        own = {
            key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))
        }
        own.pop("VIRTUAL_ENV", None)
        return {
            **own,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.index,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_NO_CACHE_DIR": "1",
            "COLUMNS": "100",
            **more,
        }

    def fix(self, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*options),
            env=self.env(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def killed_after(self, records: int, word: str = "yes") -> int:
        """Run the doctor, which kills itself once it has written so many records."""
        argv = [sys.executable, str(HERE / "killed_fix.py"), str(records), str(self.folder), word]
        ran = subprocess.run(argv, env=self.env(), capture_output=True, check=False, timeout=120)
        return ran.returncode

    def freeze(self) -> str:
        """What pip says is installed, byte for byte."""
        argv = [str(self.python), "-B", "-m", "pip", "freeze", "--all"]
        return subprocess.run(
            argv, env=self.env(), capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def listed(self) -> list[tuple[str, str]]:
        """The name and version of every distribution that has metadata."""
        found = importlib.metadata.distributions(path=[str(self.site)])
        return sorted(
            (distribution.metadata["Name"], distribution.version) for distribution in found
        )

    def imports(self) -> str:
        """The version of the torchvision that this Python imports."""
        argv = [
            str(self.python),
            "-I",
            "-B",
            "-c",
            "import torch, torchvision as t; print(t.__version__)",
        ]
        return subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    def records(self) -> list[str]:
        """The kinds of the journal's records, in order; a line half written yet is none."""
        written = self.journal.read_bytes() if self.journal.exists() else b""
        lines = written.rpartition(b"\n")[0].splitlines()
        return [msgspec.json.decode(line)["what"] for line in lines]

    def tree(self) -> dict[str, tuple[object, ...]]:
        """All that lies in it, with its bytes; the doctor's own folder left out."""
        return tree(self.folder)


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every path below a folder: kind, permissions and bytes (or where a link leads)."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        if ".cudadoctor" in folders:
            folders.remove(".cudadoctor")
        for name in (*folders, *files):
            path = Path(place, name)
            found[str(path.relative_to(folder))] = _face(path)
    return found


def _face(path: Path) -> tuple[object, ...]:
    now = path.lstat()
    if stat.S_ISLNK(now.st_mode):
        return "link", path.readlink()
    if stat.S_ISDIR(now.st_mode):
        return "folder", now.st_mode
    return "file", now.st_mode, now.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()


def sound_environment(folder: Path) -> Path:
    """A venv with pip and the stand-in torch; slow to make, so each test copies it."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in ("setuptools", "pkg_resources", "_distutils_hack"):
        shutil.rmtree(site / name, ignore_errors=True)
    for path in (*site.glob("setuptools-*"), *site.glob("distutils-precedence.pth")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _install(site, write_wheel(folder / "wheels", "torch", TORCH, TORCH_FILES))
    shutil.rmtree(folder / "wheels")
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "--version"], check=True)
    return folder


def _install(site: Path, wheel: Path) -> None:
    with ZipFile(wheel) as whole:
        whole.extractall(site)
    info = site / f"{wheel.name.rpartition('-py3')[0]}.dist-info"
    (info / "INSTALLER").write_text("pip\n")
    with (info / "RECORD").open("a") as record:
        record.write(f"{info.name}/INSTALLER,,\n")


def broken_environment(sound: Path, folder: Path, index: str) -> Environment:
    """A copy of the sound one with a torchvision that belongs to another torch."""
    shutil.copytree(sound, folder, symlinks=True)
    made = Environment(folder, index)
    strange = torchvision(STRANGE, old="OLD = True\n")
    wheel = write_wheel(folder / "wheels", "torchvision", STRANGE, strange, "torch==2.5.0")
    _install(made.site, wheel)
    shutil.rmtree(folder / "wheels")
    return made
