"""Pairs that cannot work, told by nothing but a report's facts, and the nearest pairs that can.

What is expected is computed here out of the rows of the tables, by nothing of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from packaging.version import Version

from cudadoctor import knowledge
from cudadoctor.knowledge import TorchBuild
from cudadoctor.model.findings import ERROR, LIKELY, Diagnosis
from cudadoctor.pipeline import Judged, judge
from cudadoctor.reports.reading import read_report

KB = knowledge.load()
CARDS = {
    "Tesla K40m": "3.5",
    "Tesla K80": "3.7",
    "GTX 970": "5.2",
    "Tesla P100": "6.0",
    "GTX 1080 Ti": "6.1",
    "Tesla V100": "7.0",
    "RTX 2080 Ti": "7.5",
    "A100": "8.0",
    "RTX 3090": "8.6",
    "RTX 4090": "8.9",
    "H100": "9.0",
    "RTX 5090": "12.0",
}
RELEASES = [str(release) for release in KB.torch_releases()]


def judged(text: str) -> Judged:
    return judge(read_report(text.encode(), KB))


def told(text: str) -> Diagnosis:
    return judged(text).diagnosis


def errors(diagnosis: Diagnosis) -> set[str]:
    return {finding.cause for finding in diagnosis.findings if finding.severity is ERROR}


def of_release(release: str, cuda: str | None = None) -> list[TorchBuild]:
    """What may be meant on a PC whose system nobody names."""
    platforms = ("linux_x86_64", "windows_amd64")
    rows = (build for platform in platforms for build in KB.builds_on(platform))
    return [
        build
        for build in rows
        if build.cuda and build.published is not False and str(build.torch) == release
    ]


def code_of(build: TorchBuild) -> list[tuple[str, int, int]]:
    """sm_120 as ("sm", 12, 0)."""
    parts = (code.rstrip("af").partition("_") for code in build.archs or ())
    return [(kind, int(digits[:-1]), int(digits[-1])) for kind, _, digits in parts]


def has_code(build: TorchBuild, capability: str) -> bool:
    """Machine code of the same major, or PTX that is not of an older GPU than its newest code."""
    major, minor = map(int, capability.split("."))
    codes = code_of(build)
    newest = max(own for _, *own in codes)
    return any(
        (kind == "sm" and first == major and second <= minor)
        or (kind == "compute" and [first, second] == newest <= [major, minor])
        for kind, first, second in codes
    )


def drawn(pairs: Iterable[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    found = sorted(set(pairs))
    return random.Random(7).sample(found, min(most, len(found)))


SERVED = {
    (card, release): [has_code(build, capability) for build in of_release(release)]
    for card, capability in CARDS.items()
    for release in RELEASES
    if all(build.archs for build in of_release(release))
}
CANNOT = drawn((pair for pair, ways in SERVED.items() if ways and not any(ways)), 60)
CAN = drawn((pair for pair, ways in SERVED.items() if any(ways)), 60)


@pytest.mark.parametrize(("card", "release"), CANNOT)
def test_a_gpu_that_no_build_of_the_release_has_code_for(card: str, release: str) -> None:
    found = judged(f"GPU {card}, torch {release}, fails at the first call")
    newest = max(own for build in of_release(release) for _, *own in code_of(build))
    new = list(map(int, CARDS[card].split("."))) > newest
    (first, *_) = found.diagnosis.findings
    assert (found.diagnosis.verdict, found.diagnosis.primary) == (
        "broken",
        f"torch-arch-unsupported-{'new' if new else 'old'}",
    )
    assert first.confidence is LIKELY
    assert {shown.fact for shown in first.evidence} == {"gpus.0", "torch.version"}
    assert f"No published CUDA build of torch {release}" in first.why
    assert found.plan.steps


@pytest.mark.parametrize(("card", "release"), CAN)
def test_a_gpu_that_one_build_of_the_release_has_code_for(card: str, release: str) -> None:
    assert not errors(told(f"GPU {card}, torch {release}, fails at the first call"))


@pytest.mark.parametrize(
    "text",
    [
        "RTX 5090, fails at the first call",
        "torch 2.4.1, fails at the first call",
        "RTX 5090, torch 2.4.1+local, fails at the first call",
        "RTX 5090, torch 2.4.1a0, fails at the first call",
        # On Windows and ARM it may as well be the build for the CPU.
        "RTX 5090, torch 2.4.1, Windows 11, fails at the first call",
        "RTX 5090, torch 2.4.1, torch.cuda.is_available() is False",
    ],
)
def test_what_may_be_something_else_is_left_open(text: str) -> None:
    assert "torch-arch-unsupported-new" not in errors(told(text))


@pytest.mark.parametrize(
    ("text", "told_so"),
    [
        ("Tesla P100, torch 2.11.0+cu128, fails", True),
        ("Tesla P100, torch 2.11.0+cu126, fails", False),
        ("Tesla V100, torch 2.11.0+cu129, fails", True),
        ("Tesla V100, torch 2.10.0+cu129, fails", False),
        ("Tesla V100, torch 2.10.0+cu130, fails", True),
        ("GTX 970, torch 2.9.1+cu130, fails", True),
        ("GTX 970, torch 2.9.1+cu126, fails", False),
    ],
)
def test_a_build_that_is_named(text: str, told_so: bool) -> None:
    assert ("torch-arch-unsupported-old" in errors(told(text))) is told_so


@pytest.mark.parametrize(
    ("driver", "torch", "old"),
    [
        ("470.82.01", "2.1.0+cu121", True),
        ("525.60.13", "2.1.0+cu121", False),
        ("440.33.01", "2.5.0", True),
        # The build for CUDA 11.8 runs there.
        ("450.80.02", "2.5.0", False),
        ("470.82.01", "2.8.0", True),
        ("525.60.13", "2.8.0", False),
    ],
)
def test_a_driver_and_a_release(driver: str, torch: str, old: bool) -> None:
    found = judged(f"NVIDIA driver {driver}, torch {torch}, it fails")
    assert ("driver-too-old" in errors(found.diagnosis)) is old
    assert bool(found.plan.steps) is old


@pytest.mark.parametrize(
    ("level", "torch", "old"),
    [("11.4", "2.8.0", True), ("12.0", "2.8.0", False), ("11.4", "2.5.0", False)],
)
def test_the_newest_cuda_of_a_driver_and_a_release(level: str, torch: str, old: bool) -> None:
    banner = f"| NVIDIA-SMI    Driver Version:   CUDA Version: {level}     |"
    found = told(f"{banner}\ntorch {torch}, it fails")
    assert ("driver-too-old" in errors(found)) is old
    (why,) = [finding.why for finding in found.findings] or [""]
    assert why == (
        f"Every published CUDA build of torch {torch} needs driver 525.60.13 or newer."
        if old
        else ""
    )


# --- torch and Python -----------------------------------------------------------------------------

PYTHONS = ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
WHEELS = {
    (release, python): any(
        python in build.pythons
        for build in KB.builds
        if str(build.torch) == release and build.published is not False
    )
    for release in RELEASES
    for python in PYTHONS
}
NO_WHEEL = drawn((pair for pair, there in WHEELS.items() if not there), 40)
WHEEL = drawn((pair for pair, there in WHEELS.items() if there), 40)


@pytest.mark.parametrize(("release", "python"), NO_WHEEL)
def test_a_release_without_a_wheel_for_the_python(release: str, python: str) -> None:
    found = judged(f"Python {python}, torch {release}, pip does not find it")
    (first, *_) = found.diagnosis.findings
    assert found.diagnosis.primary == first.cause == "torch-python-unsupported"
    assert first.title == f"torch {release} has no wheel for Python {python}"
    assert first.confidence is LIKELY
    assert any("venv" in step.commands[0] for step in found.plan.steps if step.commands)


@pytest.mark.parametrize(("release", "python"), WHEEL)
def test_a_release_with_a_wheel_for_the_python(release: str, python: str) -> None:
    assert not errors(told(f"Python {python}, torch {release}, pip does not find it"))


@pytest.mark.parametrize(
    "text",
    [
        # It was imported there: somebody built it.
        "PyTorch version: 2.1.0\nIs CUDA available: True\nPython version: 3.13.1 (64-bit runtime)",
        # The list is of that Python or of another one; it is there.
        "Python 3.13.1\nPackage Version\n------- -------\nnumpy 1.26.4\ntorch 2.1.0\n",
        "torch 2.1.0, File /usr/lib/python3.13/json/decoder.py",
        "Python 3.13, torch 2.1.0a0, pip does not find it",
        "Python 3.13, torch 0.0.9, pip does not find it",
        "Python 3.13, pip does not find torch",
    ],
)
def test_a_torch_that_is_there_or_unknown_has_its_python(text: str) -> None:
    assert "torch-python-unsupported" not in errors(told(text))


# --- driver and GPU -------------------------------------------------------------------------------

BRANCHES = {
    "Tesla K40m": (304, 470),
    "Tesla K80": (304, 470),
    "GTX 970": (331, 580),
    "GTX 1080 Ti": (367, 580),
    "Tesla V100": (384, 580),
    "RTX 2080 Ti": (410, 999),
    "RTX 3090": (455, 999),
    "RTX 4090": (520, 999),
    "RTX 5090": (570, 999),
}
DRIVERS = (
    *("390.157", "418.56", "440.100", "450.80.02", "470.256.02", "515.65.01", "525.147.05"),
    *("535.183.01", "550.54.14", "570.124.06", "580.95.05", "590.48.01"),
)
SUPPORTED = {
    (card, driver): first <= int(driver[:3]) <= last
    for card, (first, last) in BRANCHES.items()
    for driver in DRIVERS
}


@pytest.mark.parametrize(("card", "driver"), SUPPORTED)
def test_a_gpu_and_a_driver(card: str, driver: str) -> None:
    found = judged(f"Ubuntu 22.04, GPU {card}, NVIDIA driver {driver}, it fails")
    lost = not SUPPORTED[card, driver]
    assert ("driver-unsupported-gpu" in errors(found.diagnosis)) is lost
    assert bool(found.plan.steps) is lost
    for finding in found.diagnosis.findings if lost else ():
        assert finding.confidence is LIKELY
        assert {shown.fact for shown in finding.evidence} == {"gpus.0", "driver.reported"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Windows 11, GPU Tesla K80, NVIDIA driver 475.14, it fails", None),
        ("Windows 11, GPU Tesla K80, NVIDIA driver 512.15, it fails", "driver-unsupported-gpu"),
        ("Ubuntu 22.04, NVIDIA driver 550.54.14, it fails", None),
        ("Ubuntu 22.04, GPU RTX 5090, it fails", None),
        # A program got an answer of that GPU with that driver.
        ("GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-0)\nNVIDIA driver 550.54.14", None),
        ("RTX 5090, NVIDIA driver 550.54.14\n>>> torch.cuda.is_available()\nTrue", None),
    ],
)
def test_a_driver_that_counts_otherwise_or_answers(text: str, cause: str | None) -> None:
    assert errors(told(text)) == ({cause} if cause else set())


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 2025"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
    "Release Build  (dvs-builder@U22)"
)


@pytest.mark.parametrize(
    ("card", "modules", "wrong"),
    [
        ("RTX 5090", PROPRIETARY, True),
        ("RTX 5090", OPEN, False),
        ("RTX 4090", PROPRIETARY, False),
        ("RTX 4090", OPEN, False),
        ("GTX 1080 Ti", PROPRIETARY, False),
        ("GTX 1080 Ti", OPEN, True),
    ],
)
def test_a_gpu_and_the_kind_of_its_modules(card: str, modules: str, wrong: bool) -> None:
    found = judged(f"GPU {card}, it fails\n$ cat /proc/driver/nvidia/version\n{modules}\n")
    assert ("driver-wrong-flavour" in errors(found.diagnosis)) is wrong
    assert bool(found.plan.steps) is wrong


# --- torch and the system's glibc -----------------------------------------------------------------

SYSTEMS = {"Ubuntu 16.04": "2.23", "Ubuntu 18.04": "2.27", "Ubuntu 20.04": "2.31"}


def floor(release: str) -> str:
    rows = [build for build in KB.builds_on("linux_x86_64") if str(build.torch) == release]
    return str(min(build.glibc for build in rows if build.glibc and build.published is not False))


@pytest.mark.parametrize("release", RELEASES[::3])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_release_and_the_glibc_of_a_system(system: str, release: str) -> None:
    found = judged(f"{system} x86_64, torch {release}, pip does not find it")
    old = Version(SYSTEMS[system]) < Version(floor(release))
    assert ("platform-unsupported" in errors(found.diagnosis)) is old
    for step in found.plan.steps if old else ():
        (pin,) = {
            word for command in step.commands for word in command if word.startswith("torch==")
        }
        assert Version(floor(pin.partition("==")[2])) <= Version(SYSTEMS[system])


@pytest.mark.parametrize(
    "text",
    [
        "Ubuntu 18.04, it fails",
        "torch 2.9.0, it fails",
        "Linux, torch 2.9.0, it fails",
        # The image brings a glibc of its own.
        "Ubuntu 18.04, torch 2.9.0 in a docker container: docker run --gpus all -it image",
        "PyTorch version: 2.9.0+cu128\nIs CUDA available: True\nOS: Ubuntu 18.04.6 LTS (x86_64)",
    ],
)
def test_a_glibc_that_is_unknown_or_served_its_torch(text: str) -> None:
    assert "platform-unsupported" not in errors(told(text))


# --- what an extension is compiled with -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("nvcc 11.5, torch 2.1.0+cu121", "toolkit-torch-mismatch"),
        ("nvcc 12.4, torch 2.1.0+cu121", None),
        ("nvcc 11.5, torch 2.9.0", "toolkit-torch-mismatch"),
        ("nvcc 12.6, torch 2.9.0", None),
        ("nvcc 11.7, RTX 4090, torch 2.0.1", "arch-list-wrong"),
        ("nvcc 11.8, RTX 4090, torch 2.0.1", None),
        ("nvcc 12.6, RTX 5090, torch 2.7.0+cu128", "arch-list-wrong"),
        ("nvcc 12.8, RTX 5090, torch 2.7.0+cu128", None),
        ("nvcc 12.1, gcc 13.2, torch 2.1.0+cu121", "host-compiler-unsupported"),
        ("nvcc 12.1, gcc 12.2, torch 2.1.0+cu121", None),
    ],
)
def test_a_toolkit_where_an_extension_does_not_build(text: str, cause: str | None) -> None:
    assert errors(told(f"{text}, the extension fails to build")) == ({cause} if cause else set())
    assert cause not in errors(told(f"{text}, training is slow"))


@pytest.mark.parametrize(
    ("card", "release", "possible"),
    [
        ("Tesla T4", "2.5.8", True),
        ("Tesla V100", "2.0.0", True),
        ("Tesla T4", "1.0.9", False),
        ("A100", "2.5.8", False),
        ("RTX 3090", "2.8.3", False),
    ],
)
def test_flash_attn_and_a_gpu(card: str, release: str, possible: bool) -> None:
    found = told(f"GPU {card}\nflash-attn=={release}\ntorch==2.3.1+cu121\nit fails")
    named = {(finding.cause, finding.title) for finding in found.findings}
    title = "flash-attn does not support this GPU"
    assert (("not-environment", title) in named) is possible
    assert not errors(found)


OUT_OF_MEMORY = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.65 GiB total capacity)"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RTX 5090, torch 2.4.1", "torch-arch-unsupported-new"),
        ("Python 3.13, torch 2.1.0", "torch-python-unsupported"),
        ("RTX 5090, NVIDIA driver 550.54.14", "driver-unsupported-gpu"),
        ("Ubuntu 18.04, torch 2.8.0", "platform-unsupported"),
    ],
)
def test_what_an_error_shows_comes_before_what_is_only_said(text: str, cause: str) -> None:
    alone, beside = told(f"{text}, it fails"), told(f"{text}, training stops: {OUT_OF_MEMORY}")
    assert alone.primary == cause
    assert beside.primary == "out-of-memory"
    assert cause in errors(beside)
