"""The rules of other installers: what each chooses, and why each difference from ours is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from grid_machines import Plain
from peer_choosers import PEERS, Answer, Shelf
from peer_classes import CLASSES, outcome
from peer_reasons import EXPLAINED
from peer_rules import MACHINES, RESULT, Difference, differences, document, unexplained
from second_reading import of_tables

READING = of_tables()
SHELF = Shelf(READING)
CHOOSE = {peer.name: peer.choose for peer in PEERS}

CASES: dict[str, Plain] = {
    "470/3090": {"driver": "470.82.01", "level": "11.4", "capabilities": ("8.6",)},
    "580/5090": {"driver": "580.95.05", "level": "13.0", "capabilities": ("12.0",)},
    "610": {"driver": "610.43.02", "level": "13.3", "capabilities": ("8.6",)},
    "580/V100": {"driver": "580.95.05", "level": "13.0", "capabilities": ("7.0",)},
    "570/5090": {"driver": "570.124.06", "level": "12.8", "capabilities": ("12.0",)},
}


def _plain(case: str) -> Plain:
    return {
        "kind": "linux",
        "platform": "linux_x86_64",
        "glibc": "2.39",
        "python": "3.12",
        "names": ("NVIDIA GeForce RTX 5090" if "5090" in case else "Some GPU",),
        "numbers": "linux",
        "by_level": False,
        "told": True,
        **CASES[case],
    }


@pytest.mark.parametrize(
    ("peer", "case", "answer"),
    [
        ("uv --torch-backend=auto", "470/3090", ("cu118", "2.7.1")),
        ("uv --torch-backend=auto", "580/5090", ("cu132", "2.15.0")),
        ("uv --torch-backend=auto", "580/V100", ("cu132", "2.15.0")),
        ("light-the-torch", "580/5090", ("cu130", "2.9.1")),
        ("light-the-torch", "470/3090", ("cu118", "2.7.1")),
        ("torchruntime", "580/V100", ("cu124", "2.6.0")),
        ("torchruntime", "470/3090", ("cu128", "2.11.0")),
        ("env-doctor", "580/5090", ("cu130", "2.9.1")),
        ("env-doctor", "470/3090", ("cu113", "1.12.1")),
        ("gaff", "610", ("cpu", "2.14.1")),
        ("gaff", "580/V100", ("cu130", "2.14.1")),
        ("gpu-installer", "470/3090", ("cu124", "2.5.1")),
        ("gpu-installer", "580/V100", ("cu130", "2.11.0")),
        ("torch-installer", "570/5090", ("cu132", "2.15.0")),
        ("preflight-gpu", "570/5090", ("cu128", "2.11.0")),
        ("preflight-gpu", "580/V100", ("cu130", "2.14.1")),
        ("gpu-doctor", "580/5090", ("cu121", "2.5.1")),
        ("pip install torch", "470/3090", ("cu132", "2.15.0")),
        ("conda-forge (__cuda)", "570/5090", ("CUDA 12.9", "2.13.0")),
    ],
)
def test_each_rule_chooses_as_its_source_says(
    peer: str, case: str, answer: tuple[str, str]
) -> None:
    assert CHOOSE[peer](_plain(case), SHELF)[:2] == answer


@pytest.mark.parametrize(
    ("answer", "ours", "case", "kind"),
    [
        (Answer("cu130", "2.14.1"), ("2.14.1", "cu126"), "580/V100", "no code"),
        (Answer("cu132", "2.15.0"), ("2.13.0", "cu129"), "570/5090", "driver"),
        (Answer("cu126", "2.13.0"), ("2.14.1", "cu126"), "580/V100", "older"),
        (Answer("cu130", "2.15.0"), ("2.15.0", "cu132"), "580/5090", "not published"),
        (Answer("cu128", "2.8.0"), ("2.7.1", "cu118"), "580/5090", "ours missed"),
        (Answer("cu132", "2.15.0"), None, "580/5090", "ours missed"),
        (Answer("cpu", "2.14.1"), ("2.7.1", "cu118"), "470/3090", "cpu"),
        (Answer(None), ("2.7.1", "cu118"), "470/3090", "declined"),
        (Answer("cu130", None), ("2.8.0", "cu128"), "580/5090", "nothing there"),
        (Answer("CUDA 13.0", "2.13.0", "conda-forge"), ("2.14.1", "cu126"), "580/V100", "no code"),
    ],
)
def test_the_class_of_an_answer(
    answer: Answer, ours: tuple[str, str] | None, case: str, kind: str
) -> None:
    assert outcome(answer, ours, _plain(case), READING) == kind
    assert kind in CLASSES


@pytest.fixture(scope="module")
def found() -> list[Difference]:
    return differences(MACHINES, READING)


def test_every_class_of_every_peer_is_explained(found: list[Difference]) -> None:
    assert unexplained(found) == []


def test_the_committed_table_is_current(found: list[Difference]) -> None:
    assert RESULT.read_text(encoding="utf-8") == document(found, READING), (
        "run python benchmarks/peer_rules.py"
    )


def test_a_class_without_a_reason_fails(found: list[Difference]) -> None:
    older = next(difference for difference in found if difference.kind == "older")
    lines = unexplained([older._replace(kind="glibc")])
    assert len(lines) == 1
    assert lines[0].startswith(f"{older.peer}: glibc: ")


def test_a_wheel_of_a_peer_that_is_better_than_ours_fails(found: list[Difference]) -> None:
    better = found[0]._replace(kind="ours missed")
    assert unexplained([better])


def test_no_reason_is_left_for_a_peer_that_is_gone() -> None:
    assert {peer for peer, _ in EXPLAINED} <= set(CHOOSE)
    assert {kind for _, kind in EXPLAINED} <= set(CLASSES)
