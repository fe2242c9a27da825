"""How other installers choose a build of torch: each rule as a small function, with its source.

Written from reading their published source, in our own words; nothing of them is copied or run.
A rule sees what its program would see (nvidia-smi, the driver's number, the GPU's name, lspci) and
the shelf: which releases each index holds for this Python and this system, by our tables. What a
program asks for beside torch (torchvision, torchaudio) is left out, in its favour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from second_reading import TABLES, Numbers, Plain, Reading, Row, numbers

READ = "2026-11-21"
"""The day on which the sources were read."""

PYPI = "PyPI"
NO_BANNER_FROM = 610
"""From this driver branch nvidia-smi prints "CUDA UMD Version" where it printed "CUDA Version"."""


class Answer(NamedTuple):
    """What a program would install: torch None where its index holds nothing for this machine.

    variant None: it declines. channel: "conda-forge", or "" for PyPI and pytorch.org's indexes.
    """

    variant: str | None
    torch: str | None = None
    channel: str = ""


DECLINED = Answer(None)


class Shelf:
    """What the indexes hold, by the tables: only what is known to be published."""

    def __init__(self, reading: Reading) -> None:
        self.rows = [row for row in reading.builds if row["published"]]
        self.variants = {row["variant"] for row in self.rows if row["cuda"]}
        self._newest: dict[tuple[str, ...], str | None] = {}

    def releases(self, variant: str, plain: Plain) -> list[str]:
        """The releases of one index for this Python, system and C library, newest first."""
        found = [row["torch"] for row in self._here(plain) if row["variant"] == variant]
        return sorted(found, key=numbers, reverse=True)

    def newest(self, variant: str, plain: Plain) -> Answer:
        """What pip takes from one index."""
        found = self.releases(variant, plain)
        return Answer(variant, found[0] if found else None)

    def of_pypi(self, plain: Plain) -> Answer:
        """What pip installs if no index is named."""
        found = [row for row in self._here(plain) if row["default"]]
        if not found:
            return Answer(PYPI)
        row = max(found, key=lambda build: numbers(build["torch"]))
        return Answer(row["variant"], row["torch"])

    def beside_pypi(self, variant: str, plain: Plain) -> Answer:
        """What pip installs with --extra-index-url: the newer of both, the tagged one if equal."""
        tagged, on_pypi = self.newest(variant, plain), self.of_pypi(plain)
        if tagged.torch is None or on_pypi.torch is None:
            return tagged if on_pypi.torch is None else on_pypi
        return on_pypi if numbers(on_pypi.torch) > numbers(tagged.torch) else tagged

    def _here(self, plain: Plain) -> list[Row]:
        glibc = numbers(plain["glibc"]) if plain["glibc"] else (999,)
        return [
            row
            for row in self.rows
            if row["platform"] == plain["platform"]
            and plain["python"] in row["pythons"]
            and (not row["glibc"] or numbers(row["glibc"]) <= glibc)
        ]


Choose = Callable[[Plain, Shelf], Answer]

_MAJORS = {
    "linux": ((13, "580"), (12, "525.60.13"), (11, "450.80.02")),
    "windows": ((13, "580"), (12, "528.33"), (11, "452.39")),
}
_EARLY = {
    "linux": (("cu102", "440.33"), ("cu101", "418.39"), ("cu100", "410.48"), ("cu92", "396.26")),
    "windows": (("cu102", "441.22"), ("cu101", "418.96"), ("cu100", "411.31"), ("cu92", "398.26")),
}


def uv(plain: Plain, shelf: Shelf) -> Answer:
    """The newest torch in the first index, from the newest CUDA down, that the driver may use."""
    for variant in [*_allowed(plain, shelf, (13, 2)), "cpu"]:
        found = shelf.newest(variant, plain)
        if found.torch is not None:
            return found
    return Answer("cpu")


def light_the_torch(plain: Plain, shelf: Shelf) -> Answer:
    """The highest CUDA that has any torch; within it the version that sorts last as text."""
    for variant in [*_allowed(plain, shelf, (13, 1)), "cpu"]:
        found = shelf.releases(variant, plain)
        if found:
            return Answer(variant, max(found))
    return Answer("cpu")


def _allowed(plain: Plain, shelf: Shelf, highest: Numbers) -> list[str]:
    """The variants for a driver's number, newest CUDA first; under WSL by the list of Linux."""
    system = "windows" if plain["platform"].startswith("windows") else "linux"
    driver, least = numbers(plain["driver"]), dict(_MAJORS[system])
    known = sorted(((_cuda(variant), variant) for variant in shelf.variants), reverse=True)
    modern = [
        variant
        for cuda, variant in known
        if cuda[0] in least and cuda <= highest and driver >= numbers(least[cuda[0]])
    ]
    return modern + [variant for variant, first in _EARLY[system] if driver >= numbers(first)]


_CHIPS = {
    "10": "gb",
    "12": "gb",
    "9": "gh",
    "7.5": "tu",
    "7.0": "gv",
    "6": "gp",
    "5": "gm",
    "3": "gk",
}
_BY_CHIP = ("gb", "ad", "gh", "ga", "tu", "gv", "gp", "gm", "gk")


def torchruntime(plain: Plain, shelf: Shelf) -> Answer:
    """By the chip that lspci names: cu118 for Kepler, cu124 up to Volta, cu128 for the rest."""
    if plain["kind"] in ("wsl", "jetson"):
        return shelf.of_pypi(plain)
    chips = {_chip(capability) for capability in plain["capabilities"]}
    decides = next((chip for chip in _BY_CHIP if chip in chips), "")
    old_python = numbers(plain["python"].rstrip("t")) < (3, 9)
    if old_python and decides == "gb":
        return DECLINED
    if decides == "gk":
        return shelf.newest("cu118", plain)
    return shelf.newest("cu124" if old_python or decides in ("gm", "gp", "gv") else "cu128", plain)


def _chip(capability: str) -> str:
    if capability.startswith("8"):
        return "ad" if capability == "8.9" else "ga"
    return _CHIPS.get(capability) or _CHIPS.get(capability.partition(".")[0], "")


_ENV_DOCTOR = {
    590: ("cu130", None),
    580: ("cu130", "2.9.1"),
    575: ("cu129", "2.8.0"),
    570: ("cu128", "2.9.1"),
    560: ("cu126", "2.9.1"),
    555: ("cu124", "2.6.0"),
    550: ("cu124", "2.6.0"),
    525: ("cu121", "2.5.1"),
    520: ("cu118", "2.6.0"),
    515: ("cu117", "2.0.1"),
    510: ("cu116", "1.13.1"),
    460: ("cu113", "1.12.1"),
    455: ("cu111", "1.10.1"),
    450: ("cu110", "1.7.1"),
    0: ("cu117", "2.0.1"),
}


def env_doctor(plain: Plain, shelf: Shelf) -> Answer:
    """One pinned release for each driver branch, by the newest CUDA that the branch brings."""
    branch = _branch(plain)
    if branch >= NO_BANNER_FROM:
        return shelf.of_pypi(plain)
    variant, pin = next(row for first, row in _ENV_DOCTOR.items() if branch >= first)
    return shelf.newest(variant, plain) if pin is None else Answer(variant, pin)


def gaff(plain: Plain, shelf: Shelf) -> Answer:
    """The index of the highest CUDA that is not above the one in the banner of nvidia-smi."""
    if _branch(plain) >= NO_BANNER_FROM:
        return shelf.newest("cpu", plain)
    level = numbers(plain["level"])
    if level < (11, 8):
        return DECLINED
    below = [cuda for variant in shelf.variants if (11, 8) <= (cuda := _cuda(variant)) <= level]
    return shelf.newest(_tag(max(below)), plain)


_GPU_INSTALLER = {"cu124": "2.5.1", "cu126": "2.11.0", "cu128": "2.11.0", "cu130": "2.11.0"}


def gpu_installer(plain: Plain, shelf: Shelf) -> Answer:
    """The nearest of the six newest tags to the banner's CUDA, with a pin where it has one."""
    matched = _of_six(plain, shelf)
    if matched is None:
        return shelf.of_pypi(plain)
    pin = _GPU_INSTALLER.get(matched)
    return Answer(matched, pin) if pin else shelf.beside_pypi(matched, plain)


def torch_installer(plain: Plain, shelf: Shelf) -> Answer:
    """The nearest of the six newest tags to the banner's CUDA, as an index beside PyPI."""
    matched = _of_six(plain, shelf)
    return shelf.of_pypi(plain) if matched is None else shelf.beside_pypi(matched, plain)


def _of_six(plain: Plain, shelf: Shelf) -> str | None:
    """The highest of the six newest tags that is not above the banner's CUDA, else the lowest."""
    if _branch(plain) >= NO_BANNER_FROM:
        return None
    level = numbers(plain["level"])
    six = sorted((_cuda(variant) for variant in shelf.variants), reverse=True)[:6]
    return _tag(next((cuda for cuda in six if cuda <= level), six[-1]))


def preflight(plain: Plain, shelf: Shelf) -> Answer:
    """cu130 from branch 580, cu126 from 560, else cu124; cu128 for an RTX 50 below 580."""
    branch = _branch(plain)
    tag = "cu130" if branch >= 580 else "cu126" if branch >= 560 else "cu124"
    geforce = any(" RTX 50" in name for name in plain["names"])
    return shelf.newest("cu128" if geforce and tag != "cu130" else tag, plain)


def gpu_doctor(plain: Plain, shelf: Shelf) -> Answer:
    """The cu121 index wherever nvidia-smi is found on Linux; on Windows torch-directml."""
    on_windows = plain["platform"].startswith("windows")
    return DECLINED if on_windows else shelf.newest("cu121", plain)


def pip_default(plain: Plain, shelf: Shelf) -> Answer:
    """`pip install torch`: the newest release on PyPI with a wheel for this Python and system."""
    return shelf.of_pypi(plain)


CONDA_PLATFORMS = {
    "linux_x86_64": "linux_64",
    "linux_aarch64": "linux_aarch64",
    "windows_amd64": "win_64",
}
CONDA_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Pythons that conda-forge surely builds torch 2.13 for; which others, the tables do not say."""


def conda_forge(plain: Plain, _: Shelf) -> Answer:
    """The newest pytorch-gpu of conda-forge, with the newest CUDA whose major __cuda allows."""
    major = numbers(plain["level"])[0]
    old_glibc = bool(plain["glibc"]) and numbers(plain["glibc"]) < (2, 28)
    for torch, pairs in reversed(_conda_rows()):
        here = [cuda for where, cuda in pairs if where == CONDA_PLATFORMS[plain["platform"]]]
        able = [
            cuda
            for cuda in here
            if numbers(cuda)[0] <= major and not (old_glibc and cuda == "13.0")
        ]
        if able:
            return Answer(f"CUDA {max(able, key=numbers)}", torch, "conda-forge")
    return DECLINED


@lru_cache
def _conda_rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """The releases that conda-forge built, oldest first, with their platforms and CUDA versions."""
    text = (TABLES / "conda.json").read_text(encoding="utf-8")
    rows = [(row["torch"], row["cuda"]) for row in json.loads(text)["conda_forge"]]
    return [(torch, [_split(pair) for pair in pairs]) for torch, pairs in rows]


def _split(pair: str) -> tuple[str, str]:
    platform, _, cuda = pair.partition(":")
    return platform, cuda


def _branch(plain: Plain) -> int:
    return numbers(plain["driver"])[0]


def _cuda(variant: str) -> Numbers:
    """cu126 is (12, 6), cu92 is (9, 2)."""
    return int(variant[2:-1]), int(variant[-1])


def _tag(cuda: Iterable[int]) -> str:
    return "cu" + "".join(map(str, cuda))


class Peer(NamedTuple):
    """A program: what it does in one sentence, and where that was read."""

    name: str
    version: str
    rule: str
    source: str
    url: str
    choose: Choose


PEERS = (
    Peer(
        "uv --torch-backend=auto",
        "0.13.9",
        "Reads the driver's number, goes through the indexes from cu132 down to cu92 whose floor "
        "it reaches, and takes the newest torch of the first one that has a wheel, else the CPU "
        "index.",
        "crates/uv-torch/src/backend.rs, and the indexes that the program asks for with "
        "UV_CUDA_DRIVER_VERSION set",
        "https://github.com/astral-sh/uv/blob/main/crates/uv-torch/src/backend.rs",
        uv,
    ),
    Peer(
        "light-the-torch",
        "0.8.1",
        "The same floors up to cu131, all indexes at once: the highest CUDA with any wheel wins, "
        "and within it the version that sorts last as text.",
        "light_the_torch/_cb.py and _patch.py in the wheel on PyPI",
        "https://pypi.org/project/light-the-torch/0.8.1/",
        light_the_torch,
    ),
    Peer(
        "torchruntime",
        "2.24.0",
        "Looks up the chips that lspci lists: Kepler gets cu118, Maxwell to Volta and Pythons "
        "before 3.9 get cu124, the rest cu128; without a listed GPU it installs from PyPI.",
        "torchruntime/platform_detection.py and gpu_db.py in the wheel on PyPI",
        "https://pypi.org/project/torchruntime/2.24.0/",
        torchruntime,
    ),
    Peer(
        "env-doctor",
        "0.3.5",
        "Maps the driver's branch to its newest CUDA and that to one pinned release and index; a "
        "driver that it cannot read counts as none, and PyPI is used.",
        "env_doctor/db.py and data/compatibility.json in the wheel on PyPI",
        "https://pypi.org/project/env-doctor/0.3.5/",
        env_doctor,
    ),
    Peer(
        "gaff",
        "0.1.0",
        'Reads "CUDA Version" in the banner of nvidia-smi and takes the index of the highest '
        "CUDA from 11.8 on that is not above it; without one, the CPU index.",
        "gaff/detect.py and gaff/mapping.py in the wheel on PyPI",
        "https://pypi.org/project/gaff-gpu/0.1.0/",
        gaff,
    ),
    Peer(
        "gpu-installer",
        "4.5.2",
        "Takes nvcc's CUDA, else the banner's, matches it to the six newest tags of the index, "
        "and pins torch 2.11.0 (cu124: 2.5.1) or adds that index to PyPI.",
        "gpu_installer/compat.py, constants.py and packages/pytorch.py in the wheel on PyPI",
        "https://pypi.org/project/gpu-installer/4.5.2/",
        gpu_installer,
    ),
    Peer(
        "torch-installer",
        "1.0.3",
        "Matches the banner's CUDA to the six newest tags of the index and installs the newest "
        "torch of PyPI and that index together.",
        "torch_installer/installer.py in the wheel on PyPI (torch-installer-coff33ninja)",
        "https://pypi.org/project/torch-installer-coff33ninja/1.0.3/",
        torch_installer,
    ),
    Peer(
        "preflight-gpu",
        "0.1.1",
        "Drivers from branch 580 get cu130, from 560 cu126, older ones cu124; a GeForce RTX 50 "
        "on a driver before 580 gets cu128.",
        "preflight/fix/executor.py in the wheel on PyPI",
        "https://pypi.org/project/preflight-gpu/0.1.1/",
        preflight,
    ),
    Peer(
        "gpu-doctor",
        "1.0.0",
        "On Linux the cu121 index wherever nvidia-smi is on PATH; on Windows torch-directml.",
        "gpu_doctor/__main__.py in the wheel on PyPI",
        "https://pypi.org/project/gpu-doctor/1.0.0/",
        gpu_doctor,
    ),
    Peer(
        "pip install torch",
        "any pip",
        "The newest release on PyPI with a wheel for this Python and system: CUDA on Linux, "
        "never on Windows; neither GPU nor driver is looked at.",
        "Start locally, pytorch.org; what PyPI holds, by our tables",
        "https://pytorch.org/get-started/locally/",
        pip_default,
    ),
    Peer(
        "conda-forge (__cuda)",
        "recipes of 2026-08",
        "The virtual package __cuda is the CUDA level of the driver; cuda-version of a major asks "
        "for that major at least, and the solver takes the newest pytorch-gpu and CUDA.",
        "recipe/meta.yaml of cuda-version-feedstock (run_constrained); the recipe history of "
        "pytorch-cpu-feedstock",
        "https://github.com/conda-forge/cuda-version-feedstock",
        conda_forge,
    ),
)

LEFT_OUT = (
    (
        "easywheels 0.1.0",
        "https://pypi.org/project/easywheels/0.1.0/",
        "its own server matches, behind an API key: the rule cannot be read",
    ),
    (
        "nvidia-variant-provider",
        "https://pypi.org/project/nvidia-variant-provider/",
        "describes the machine (CUDA bounds and the highest SM) for wheel variants, and no release "
        "of torch in our tables is published as such",
    ),
    (
        "torchinstaller 0.9.1",
        "https://pypi.org/project/torchinstaller/0.9.1/",
        "the user names the platform; nothing is detected",
    ),
    (
        "ai-infradr 0.1.0",
        "https://pypi.org/project/ai-infradr/0.1.0/",
        "names the two ways out, and no build",
    ),
)
