"""The interpreter inside the image that a Dockerfile of the plan starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from cudadoctor.installers.docker import image_for

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import PackageChange
    from cudadoctor.model.machine import Machine

_OF_RELEASE = {"22.04": ("3.10", "2.35"), "24.04": ("3.12", "2.39")}
"""Python and glibc of Ubuntu, as its packages have them."""
_USUAL = "24.04"


def inside(m: Machine, kb: Knowledge, change: PackageChange) -> Machine:
    """The machine with the Python and the C library of the image, and nothing installed."""
    image = image_for(m, kb, change)
    name = image.name if image else ""
    release = next((one for one in _OF_RELEASE if one in name), _USUAL)
    python, glibc = _OF_RELEASE[release]
    replace = msgspec.structs.replace
    arch = "aarch64" if m.platform.machine in ("aarch64", "arm64") else "x86_64"
    return replace(
        m,
        platform=replace(
            m.platform, system="Linux", machine=arch, libc="glibc", glibc=Version(glibc)
        ),
        python=replace(
            m.python,
            executable=None,
            version=Version(python),
            implementation="cpython",
            free_threaded=False,
            bits=64,
        ),
    )
