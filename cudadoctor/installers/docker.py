"""docker: lines of a Dockerfile on an nvidia/cuda image that is known to exist.

torch's wheels bring their own CUDA libraries, so the smallest image (base) is enough; what compiles
against torch needs nvcc (devel).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers import images
from cudadoctor.installers.images import PLAIN, PYTHON_OF, Image
from cudadoctor.installers.index import TORCH_INDEX, Source, is_foreign, options, pinned, source_for
from cudadoctor.installers.pip import sound, split_compiled
from cudadoctor.installers.written import Written, joined
from cudadoctor.model.findings import Edit

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge, TorchBuild
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_PLATFORMS = {"x86_64": "linux_x86_64", "aarch64": "linux_aarch64", "arm64": "linux_aarch64"}


def write(m: Machine, kb: Knowledge, change: PackageChange) -> Written:
    """The lines that bring the change's packages into an image."""
    if is_foreign(change.index):
        return _of_jetson(change)
    change = _in_linux(m, kb, change)
    source = source_for(m, change, "docker")
    image = image_for(m, kb, change)
    start = "docker run --gpus all" if change.cuda else "docker run"
    asks = None
    if image is not None and image.cuda is not None:
        asks = f"The image asks for a driver that runs CUDA {image.cuda} (NVIDIA_REQUIRE_CUDA)."
    lines = "\n".join(_lines(image, change, source))
    return Written(
        tool="docker",
        edits=(Edit(file="Dockerfile", what=lines),),
        manual=f"Build an image from these lines and start it with `{start}`.",
        note=joined(asks, source.note),
    )


def _of_jetson(change: PackageChange) -> Written:
    """An image for a Jetson: which of NVIDIA's it starts from is not in the tables."""
    pip = ("pip", "install", "--no-cache-dir", *sound(change.install))
    return Written(
        tool="docker",
        edits=(Edit(file="Dockerfile", what=f"RUN {shlex.join((*pip, *_index(change)))}"),),
        manual="Start from NVIDIA's l4t image for this JetPack, since an nvidia/cuda image is made "
        "for other computers, and start the container with `docker run --runtime nvidia`.",
    )


def _index(change: PackageChange) -> tuple[str, ...]:
    return ("--index-url", change.index) if change.index else ()


def image_for(m: Machine, kb: Knowledge, change: PackageChange) -> Image | None:
    """The image for the change's CUDA, None where the tables have none that suits."""
    if change.cuda is None:
        return Image(name=PLAIN, python=PYTHON_OF["ubuntu24.04"])
    needs_nvcc = split_compiled((*change.install, *change.then))[1]
    return images.image_for(
        kb,
        Version(change.cuda),
        runs=m.driver.cuda,
        pythons=_pythons(m, kb, change),
        flavour="devel" if needs_nvcc else "base",
    )


def _in_linux(m: Machine, kb: Knowledge, change: PackageChange) -> PackageChange:
    """The change for the Linux in the image: elsewhere another build is the default."""
    if change.variant is None or m.platform.system in (None, "Linux"):
        return change
    build = _build(m, kb, change)
    index = None if build and build.default else f"{TORCH_INDEX}/{change.variant}"
    return msgspec.structs.replace(change, index=index)


def _build(m: Machine, kb: Knowledge, change: PackageChange) -> TorchBuild | None:
    """The row of the change's torch for Linux, None where the tables have none."""
    pin = next((one for one in change.install if one.startswith("torch==")), None)
    if pin is None or change.variant is None:
        return None
    platform = _PLATFORMS.get((m.platform.machine or "").lower(), "linux_x86_64")
    return kb.build_of(Version(pin.partition("==")[2]), change.variant, platform)


def _pythons(m: Machine, kb: Knowledge, change: PackageChange) -> tuple[str, ...] | None:
    """The Pythons that the change's torch is made for, None where the tables do not say."""
    build = _build(m, kb, change)
    return build.pythons if build else None


def _lines(image: Image | None, change: PackageChange, source: Source) -> list[str]:
    wheels, compiled = split_compiled(pinned(sound(change.install), source))
    more, last = split_compiled(sound(change.then))
    pip = ("pip", "install", "--no-cache-dir")
    needed = "python3 python3-venv" + (" g++ python3-dev" if compiled or last else "")
    lines = [
        f"FROM {image.name if image else PLAIN}",
        f"RUN apt-get update && apt-get install -y --no-install-recommends {needed}",
        "RUN python3 -m venv /opt/venv",
        "ENV PATH=/opt/venv/bin:$PATH",
    ]
    if wheels:
        lines.append("RUN " + shlex.join((*pip, *wheels, *options(source))))
    if more:
        lines.append("RUN " + shlex.join((*pip, *more)))
    if compiled or last:
        lines.append("RUN " + shlex.join((*pip, "--no-build-isolation", *compiled, *last)))
    return lines
