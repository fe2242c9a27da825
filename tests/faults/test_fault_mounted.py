"""Files of the running system replaced in the kernel's own view: pipes, floods, nothing, nonsense.

Each stands in the place of a real file in a mount namespace of its own, and the real command looks.
A named pipe that nobody writes to holds up whoever opens it without care.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from share import share

FILES = (
    "/etc/modprobe.d",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/group",
    "/lib/modules",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/uptime",
    "/proc/version",
    "/proc/driver",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/osrelease",
    "/sys/bus/pci/devices",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max",
    "/sys/hypervisor",
    "/sys/module",
    "/usr/local/bin/nvcc",
    "/usr/local/cuda/version.json",
    "/var/lib/dpkg/status",
)
"""What a look reads, as far as this system has it."""

LOOK = f"{sys.executable} -m cudadoctor check --fast --json --python {sys.executable}"
KINDS = ("empty", "zeros", "binary", "long line", "huge", "pipe", "forbidden")


@cache
def mounts() -> bool:
    argv = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not mounts(), reason="no namespace of mounts may be made here"
)


def made(folder: Path, kind: str) -> Path:
    """A file of that kind."""
    path = folder / kind.replace(" ", "-")
    if kind == "pipe":
        os.mkfifo(path)
        return path
    path.write_bytes(
        {"zeros": bytes(9000), "binary": bytes(range(256)) * 64, "long line": b"9" * (4 << 20)}.get(
            kind, b""
        )
    )
    if kind == "huge":
        os.truncate(path, 1 << 40)
    if kind == "forbidden":
        path.chmod(0)
    return path


def looked(script: Sequence[str]) -> dict[str, Any]:
    """What the command says after these mounts."""
    text = "; ".join([*script, LOOK])
    argv = ["unshare", "-m", "/bin/sh", "-c", text]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1, 3), ran.stderr
    assert "itself failed" not in ran.stderr
    document = json.loads(ran.stdout)
    assert isinstance(document, dict)
    gaps = [gap["why"] for gap in document["facts"]["gaps"]]
    assert not [why for why in gaps if "probe failed" in why or "probe itself failed" in why]
    return document


def causes(document: dict[str, Any]) -> set[str]:
    return {finding["cause"] for finding in document["findings"] if finding["severity"] != "info"}


@cache
def usual() -> frozenset[str]:
    return frozenset(causes(looked([])))


def over(fault: Path, path: str) -> str:
    """The mount of a file over a file; a folder gets an empty folder that is full of it."""
    if Path(path).is_dir():
        inside = fault.parent / f"folder-{fault.name}"
        return f"mkdir -p {inside}; touch {inside}/x; mount --bind {inside} {path}"
    return f"mount --bind {fault} {path}"


HERE = [path for path in FILES if Path(path).exists()]


@pytest.mark.parametrize("kind", KINDS)
def test_all_files_of_a_kind_at_once_mislead_nobody(tmp_path: Path, kind: str) -> None:
    fault = made(tmp_path, kind)
    files = [path for path in HERE if not Path(path).is_dir()]
    assert causes(looked([over(fault, path) for path in files])) <= usual()


@pytest.mark.parametrize("path", HERE)
def test_a_pipe_in_the_place_of_any_file_holds_nobody_up(tmp_path: Path, path: str) -> None:
    assert causes(looked([over(made(tmp_path, "pipe"), path)])) <= usual()


METADATA = [
    (name, kind)
    for turn, name in enumerate(("METADATA", "RECORD", "INSTALLER", "direct_url.json"))
    for kind in share([*KINDS, "folder", "loop"], 2, turn)
]


@pytest.mark.parametrize(("name", "kind"), METADATA)
def test_metadata_of_any_kind_ends_no_look(tmp_path: Path, name: str, kind: str) -> None:
    from interpreter_fixtures import make_venv, plant_torch, site

    venv = make_venv(tmp_path / "venv")
    plant_torch(site(venv))
    path = site(venv) / "torch-2.6.0+cu124.dist-info" / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        made(tmp_path, kind).rename(path)
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--json", "--python", str(venv)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1, 3), ran.stderr
    document = json.loads(ran.stdout)
    assert "no response" not in json.dumps(document["facts"]["gaps"])
    assert document["facts"]["torch"]["installed"] is True


@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "binary", "huge"])
@pytest.mark.parametrize("name", ["version.py", "__init__.py", "lib"])
def test_a_torch_made_of_anything_ends_no_look(tmp_path: Path, name: str, kind: str) -> None:
    from interpreter_fixtures import make_venv, plant_torch, site

    venv = make_venv(tmp_path / "venv")
    path = plant_torch(site(venv)) / name
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        made(tmp_path, kind).rename(path)
    argv = [sys.executable, "-m", "cudadoctor", "check", "--fast", "--json", "--python", str(venv)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1, 3), ran.stderr
    assert "no response" not in json.dumps(json.loads(ran.stdout)["facts"]["gaps"])
