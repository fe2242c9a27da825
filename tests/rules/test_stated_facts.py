"""Pairs that cannot work, told by nothing but a report's facts, and the nearest pairs that can.

What is expected is computed here out of the rows of the tables, by nothing of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

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
