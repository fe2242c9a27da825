"""docker: lines of a Dockerfile on an nvidia/cuda image that is known to exist.

torch's wheels bring their own CUDA libraries, so the smallest image (base) is enough.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.dialects.index import options, pinned, source_for
from cudadoctor.dialects.pip import sound, split_compiled
from cudadoctor.dialects.written import Written
from cudadoctor.findings import Edit

if TYPE_CHECKING:
    from cudadoctor.facts import Machine
    from cudadoctor.findings import PackageChange
    from cudadoctor.knowledge import Knowledge

_PLAIN = "ubuntu:24.04"
_PYTHON_OF = {"ubuntu24.04": "3.12", "ubuntu22.04": "3.10"}
_PLATFORMS = {"x86_64": "linux_x86_64", "aarch64": "linux_aarch64"}


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The lines that bring the change's packages into an image."""
    lines = "\n".join(_lines(m, kb, change))
    start = "docker run --gpus all" if change.cuda else "docker run"
    return Written(
        tool="docker",
        edits=(Edit(file="Dockerfile", what=lines),),
        manual=f"Build an image from these lines and start it with `{start}`.",
    )


def image_for(m: Machine, kb: Knowledge, change: PackageChange) -> str | None:
    """The image for a CUDA build, None where the tables have none that suits.

    Not newer than the driver's own CUDA: these images refuse to start on an older driver of a
    GeForce, although the wheels in them would run.
    """
    if change.cuda is None:
        return _PLAIN
    wanted = Version(change.cuda)
    limit = min(wanted, m.driver.cuda) if m.driver.cuda else wanted
    pythons = _pythons(m, kb, change)
    for minor in range(limit.minor, -1, -1):
        for distro, python in _PYTHON_OF.items():
            cuda = Version(f"{wanted.major}.{minor}")
            tag = kb.newest_docker_tag(cuda, "base", distro)
            if tag and (pythons is None or python in pythons):
                return f"nvidia/cuda:{tag}"
    return None


def _pythons(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...] | None:
    """The Pythons that the change's torch is made for, None where the tables do not say."""
    pin = next((one for one in change.install if one.startswith("torch==")), None)
    if pin is None or change.variant is None:
        return None
    platform = _PLATFORMS.get(m.platform.machine or "", "linux_x86_64")
    build = kb.build_of(Version(pin.partition("==")[2]), change.variant, platform)
    return build.pythons if build else None


def _lines(m: Machine, kb: Knowledge, change: PackageChange) -> list[str]:
    source = source_for(m, change, "docker")
    wheels, compiled = split_compiled(pinned(sound(change.install), source))
    pip = ("pip", "install", "--no-cache-dir")
    lines = [
        f"FROM {image_for(m, kb, change) or _PLAIN}",
        "RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv",
        "RUN python3 -m venv /opt/venv",
        "ENV PATH=/opt/venv/bin:$PATH",
    ]
    if wheels:
        lines.append("RUN " + shlex.join((*pip, *wheels, *options(source))))
    for more in (compiled, sound(change.then)):
        if more:
            lines.append("RUN " + shlex.join((*pip, "--no-build-isolation", *more)))
    return lines
