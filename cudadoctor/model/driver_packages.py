"""Which packages of an operating system belong to the driver, CUDA, cuDNN or NCCL, by name."""

from __future__ import annotations

import re
from typing import Literal

from cudadoctor.model.machine import SystemPackage

Manager = Literal["dpkg", "rpm", "pacman"]

MATTERS = re.compile(
    r"(lib)?nvidia[\w.+-]*|(kmod|akmod|dkms|xorg-x11-drv|linux-modules|linux-signatures)"
    r"-nvidia[\w.+-]*"
    r"|libcuda1|cuda-(keyring|drivers|compat|toolkit|runtime|nvcc|libraries|driver)[\w.+-]*|cuda"
    r"|libcudnn[\w.+-]*|cudnn[\w.+-]*|libnccl[\w.+-]*|nccl|nvidia-utils|nvlsm|"
    r"xserver-xorg-video-n[\w-]*"
)
DRIVER = re.compile(
    r"nvidia-(open|driver|dkms|kernel|headless|utils|lts|beta|\d{3}xx)[\w.+-]*|nvidia"
    r"|nvidia-(compute|gl|video|common)[\w-]*G0\d|libnvidia-(compute|ml\d?|gl)[\w.+-]*|(kmod|akmod|dkms|xorg-x11-drv|linux-modules)"
    r"-nvidia[\w.+-]*"
    r"|libcuda1|cuda-drivers?[\w.+-]*"
)


def is_driver(package: SystemPackage) -> bool:
    """Whether the package is the driver or a part of it, not a library on top of it."""
    return DRIVER.fullmatch(package.name) is not None and "container" not in package.name
