"""Which wheels of CUDA's libraries a damage lies in, so that no more than these is renewed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.plan.remedies import install_packages
from cudadoctor.rules.evidence.pins import META, library_pins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Remedy
    from cudadoctor.model.machine import Machine
    from cudadoctor.rules.evidence.pins import Pin

FEW = 3
"""Where more wheels than these are damaged, the whole installation is doubtful."""

_WHEEL_OF = (
    ("cublas", "cublas"),
    ("cudart", "cuda-runtime"),
    ("cudnn", "cudnn"),
    ("cufft", "cufft"),
    ("cufile", "cufile"),
    ("cupti", "cuda-cupti"),
    ("curand", "curand"),
    ("cusolver", "cusolver"),
    ("cusparselt", "cusparselt"),
    ("cusparse", "cusparse"),
    ("nccl", "nccl"),
    ("nvjitlink", "nvjitlink"),
    ("nvrtc", "cuda-nvrtc"),
    ("nvshmem", "nvshmem"),
    ("nvtoolsext", "nvtx"),
)
"""How a library's file begins after "lib", and the product in its wheel's name."""


def libraries_again(m: Machine, kb: Knowledge, damaged: Iterable[str]) -> tuple[Remedy, ...]:
    """Only the wheels that these files belong to; () where one of them is torch's own.

    damaged: relative paths or the names under which the loader looked for them.
    """
    if m.packages is None or not m.torch.requires:
        return ()
    pins = library_pins(m, kb)
    found = {path: _wheel_of(path, pins) for path in damaged}
    wheels = {pin.name: pin for pin in found.values() if pin is not None}
    if not wheels or None in found.values() or len(wheels) > FEW:
        return ()
    return _installed_again(m, tuple(wheels.values()))


def absent_wheels(m: Machine, kb: Knowledge) -> tuple[Pin, ...]:
    """Wheels that torch requires and that are not installed."""
    return tuple(pin for pin in library_pins(m, kb) if pin.installed is None and pin.name != META)


def _installed_again(m: Machine, pins: tuple[Pin, ...]) -> tuple[Remedy, ...]:
    again = (
        f"{pin.name}=={pin.installed}" if pin.installed and pin.met else pin.requirement
        for pin in pins
    )
    present = tuple(pin.name for pin in pins if pin.installed)
    verb = "again" if present else "as torch requires"
    title = f"Install {' and '.join(pin.name for pin in pins)} {verb}"
    return install_packages(m, "reinstall-libraries", title, *again, remove=present)


def _wheel_of(path: str, pins: Iterable[Pin]) -> Pin | None:
    if path.startswith(("torch/", "torch\\")):
        return None
    name = re.split(r"[/\\]", path)[-1].lower().removeprefix("lib")
    product = next((wheel for start, wheel in _WHEEL_OF if name.startswith(start)), None)
    named = re.compile(rf"nvidia-{product}(-cu\d+)?")
    return next((pin for pin in pins if product and named.fullmatch(pin.name)), None)
