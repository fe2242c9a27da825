"""Build cudadoctor.pyz: one file that runs without a network and without an installation.

Run: python release/build_pyz.py [OUT.pyz], with uv beside this Python or on PATH.
The file carries the wheels of every requirement for CPython 3.10 to 3.14 on Linux (x86-64 and
ARM64, glibc 2.17 or newer); release/pyz_main.py selects those for the Python that runs it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux-x86_64": "x86_64-manylinux2014",
    "linux-aarch64": "aarch64-manylinux2014",
}
"""Platform of a key -> its name in uv."""
SHEBANG = b"#!/usr/bin/env python3\n"
EPOCH = (1980, 1, 1, 0, 0, 0)


def write(out: Path, sets: Mapping[str, Sequence[Path]]) -> None:
    """Write the file: the starter, the wheels, and for each Python the names of its wheels."""
    names = {key: [wheel.name for wheel in wheels] for key, wheels in sets.items()}
    wheels = {wheel.name: wheel for found in sets.values() for wheel in found}
    with out.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            starter = (ROOT / "release" / "pyz_main.py").read_bytes()
            archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH), starter)
            archive.writestr(zipfile.ZipInfo("sets.json", EPOCH), json.dumps(names, indent=1))
            for name, wheel in sorted(wheels.items()):
                # Stored: a wheel is compressed already, and can be opened where it is.
                archive.writestr(zipfile.ZipInfo(f"wheels/{name}", EPOCH), wheel.read_bytes())
    out.chmod(out.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def requirements(python: str, platform: str) -> list[str]:
    """The pins of the doctor's requirements for a Python and a platform, as uv resolves them."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        sys.exit("release/build_pyz.py needs uv; install it with: python -m pip install uv")
    argv = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    argv += [
        "--only-binary",
        ":all:",
        "--python-version",
        python,
        "--python-platform",
        PLATFORMS[platform],
    ]
    ran = subprocess.run(
        [*argv, str(ROOT / "pyproject.toml")], check=True, stdout=subprocess.PIPE, text=True
    )
    return ran.stdout.split()


def wheels_for(python: str, platform: str, folder: Path) -> list[Path]:
    """The wheels of those pins, downloaded."""
    machine = platform.removeprefix("linux-")
    tag = f"cp{python.replace('.', '')}"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    argv += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    argv += [word for abi in (tag, "abi3", "none") for word in ("--abi", abi)]
    argv += ["--platform", f"manylinux2014_{machine}", "--platform", f"manylinux_2_17_{machine}"]
    subprocess.run([*argv, "--dest", str(folder), *requirements(python, platform)], check=True)
    return sorted(folder.glob("*.whl"))


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*argv, "--wheel-dir", str(made), str(ROOT)], check=True)
        (own,) = made.glob("cudadoctor-*.whl")
        sets = {
            f"cp{python.replace('.', '')}-{platform}": [
                own,
                *wheels_for(python, platform, made / f"{python}-{platform}"),
            ]
            for python in PYTHONS
            for platform in PLATFORMS
        }
        write(out, sets)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {len(sets)} Pythons")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("cudadoctor.pyz"))
