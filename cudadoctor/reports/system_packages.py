"""Lists of dpkg, apt, rpm, dnf and pacman -> packages of the driver, CUDA, cuDNN and NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.model.machine import SystemPackage
from cudadoctor.model.versions import DriverVersion
from cudadoctor.reports.document import Document
from cudadoctor.reports.driver_packages import MATTERS, Manager, is_driver
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_DPKG = re.compile(
    r"\s{0,4}(?:ii|hi|iU|iF)\s{1,8}([a-z][\w.+-]{1,80})(?::\w{3,8})?\s{1,60}(\S{3,60})"
)
_APT = re.compile(
    r"\s{0,4}([a-z][\w.+-]{1,80})/[\w,.+ -]{1,80} (\S{3,60}) \w{3,8} \[[^\]]{0,40}install"
)
_RPM = re.compile(
    r"\s{0,4}([a-z][\w.+-]{1,80}?)-(?:\d{1,2}:)?(\d[\w.+~]{1,30}-[\w.~]{1,30})\.(?:x86_64|"
    r"noarch|aarch64|i686)\s{0,4}$"
)
_DNF = re.compile(
    r"\s{0,4}([a-z][\w.+-]{1,80})\.(?:x86_64|noarch|aarch64)\s{1,60}(\S{3,60})\s{1,40}@\S{2,60}"
)
_PACMAN = re.compile(
    r"\s{0,4}(?:local/)?([a-z][\w.+-]{1,60}) ((?:\d:)?\d{2,4}\.[\w.]{1,20}-\d{1,3})\s{0,4}$"
)
_FORMS: tuple[tuple[re.Pattern[str], Manager], ...] = (
    (_DPKG, "dpkg"),
    (_APT, "dpkg"),
    (_RPM, "rpm"),
    (_DNF, "rpm"),
    (_PACMAN, "pacman"),
)
_LIBRARIES = re.compile(
    r"libnvidia-compute-\d{3}(?:-server)?|nvidia-utils(?:-\d{3}(?:-server)?)?|libcuda1|nvidia-smi"
    r"|libnvidia-ml1|nvidia-driver-cuda(?:-libs)?|xorg-x11-drv-nvidia-cuda(?:-libs)?"
)
_RELEASE = re.compile(r"(?:\d:)?(\d{3}\.\d{2,3}(?:\.\d{2})?)(?=[-+~_]|$)")
_WORDS = ("nvidia", "cuda", "cudnn", "nccl")


def read_system_packages(doc: Document, _: Knowledge) -> Iterator[Said]:
    """dpkg -l, apt list --installed, rpm -qa, dnf list installed, pacman -Q."""
    if not any(word in doc.low for word in _WORDS):
        return
    found: dict[tuple[str, str], SystemPackage] = {}
    first = 0
    for line in doc.lines:
        one = _package(line.text)
        if one is not None:
            first = first or line.number
            found.setdefault((one.name, one.version), one)
    if not found:
        return
    packages = tuple(found.values())
    yield Said("driver.packages", packages, first, Rank.TOOL, "the list of system packages")
    if any(is_driver(one) for one in packages):
        yield Said("driver.installed", True, first, Rank.TOOL, "the list of system packages")
    library = _library_of(packages)
    yield Said("driver.library", library, first, Rank.MESSAGE, "the list of system packages")


def _library_of(packages: tuple[SystemPackage, ...]) -> DriverVersion | None:
    """The release of the driver's libraries, where all packages of them are of one."""
    texts = {
        found[1]
        for one in packages
        if _LIBRARIES.fullmatch(one.name) and (found := _RELEASE.match(one.version))
    }
    return DriverVersion(texts.pop()) if len(texts) == 1 else None


def _package(text: str) -> SystemPackage | None:
    low = text.lower()
    if len(text) > 400 or not any(word in low for word in _WORDS):
        return None
    for pattern, manager in _FORMS:
        found = pattern.match(text)
        if found and MATTERS.fullmatch(found[1]):
            return SystemPackage(name=found[1], version=found[2], manager=manager)
    return None
