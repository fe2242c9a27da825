"""A package index of small wheels in a folder, and the doctor as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

TAG = "py3-none-any"
BROKEN = {"torch/__init__.py": "raise ImportError('a stand-in')\n"}


def wheel(folder: Path, name: str, version: str, files: dict[str, str], *requires: str) -> Path:
    """Write a wheel with these files that pip accepts."""
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    inside = {
        **files,
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {TAG}\n",
    }
    names = [*inside, f"{info}/RECORD"]
    inside[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in names)
    path = folder / f"{name}-{version}-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in inside.items():
            archive.writestr(file, text)
    return path


def index(folder: Path, variant: str = "cpu") -> Path:
    """An empty package index for one variant of torch: a folder whose name is the variant."""
    home = folder / "index" / variant
    home.mkdir(parents=True)
    return home


def publish(home: Path, name: str, version: str, files: dict[str, str], *requires: str) -> None:
    """Put a wheel on the index, with the page that links to it."""
    project = home / name
    project.mkdir(exist_ok=True)
    wheel(project, name, version, files, *requires)
    links = (f'<a href="{file.name}">{file.name}</a>' for file in project.glob("*.whl"))
    (project / "index.html").write_text("<!DOCTYPE html><body>" + "".join(links) + "</body>")


def stand_ins(folder: Path, torch: str, torchvision: str, files: dict[str, str]) -> Path:
    """An index with a torch of these files and a torchvision without any."""
    home = index(folder)
    about = "__version__ = '{}'\ndebug = False\ncuda = None\nhip = None\n"
    version = {"torch/version.py": about.format(f"{torch}+cpu")}
    publish(home, "torch", f"{torch}+cpu", {**version, **files})
    publish(home, "torchvision", f"{torchvision}+cpu", {})
    return home


def environment(home: Path, **more: str) -> dict[str, str]:
    """Variables under which pip and uv know this index alone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "CONDA", "VIRTUAL_ENV"))
    }
    url = home.as_uri()
    only = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "PIP_NO_CACHE_DIR": "1"}
    return kept | only | {"UV_DEFAULT_INDEX": url, "UV_NO_CACHE": "1"} | more


def argv(folder: Path | str, *options: str) -> list[str]:
    return [sys.executable, "-m", "cudadoctor", "setup", str(folder), *options]


def setup(
    folder: Path | str, env: dict[str, str], *options: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """`cudadoctor setup`, to its end."""
    return subprocess.run(
        argv(folder, *options),
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def document(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What --json printed."""
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
