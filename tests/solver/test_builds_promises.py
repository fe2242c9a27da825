"""What holds for the solver on every machine, whatever its parts."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from test_builds import KB, machine_of

from cudadoctor.solver.builds import Choice, best_build
from cudadoctor.solver.demand import allowed

DRIVERS = (
    *("418.87.00", "450.80.02", "470.256.02", "525.60.12", "525.60.13", "535.183.01"),
    *("550.54.14", "570.124.06", "580.65.05", "580.65.06", "595.71.05", "615.71.09"),
)
CAPABILITIES = (
    "3.5",
    "3.7",
    "5.2",
    "6.1",
    "7.0",
    "7.5",
    "8.0",
    "8.6",
    "8.9",
    "9.0",
    "10.0",
    "12.0",
)
PYTHONS = ("3.8.10", "3.9.2", "3.10.4", "3.11.9", "3.12.3", "3.13.1", "3.14.0")
WISHES = ("2.6", "2.6.0", "2.12", "2.14.1+cu126", ">=2.4,<2.9", "1.13", "2.15", "2.14.0+cpu", "9.9")


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    found = draw(st.lists(st.sampled_from(CAPABILITIES), min_size=1, max_size=3, unique=True))
    return {
        "driver": draw(st.sampled_from(DRIVERS)),
        "python": draw(st.sampled_from(PYTHONS)),
        "glibc": draw(st.sampled_from(("2.17", "2.27", "2.28", "2.39"))),
        "machine": draw(st.sampled_from(("x86_64", "aarch64"))),
        "gpus": [
            {"name": f"NVIDIA GPU {capability}", "capability": capability} for capability in found
        ],
    }


def solved(row: dict[str, Any], keep: str | None = None) -> Choice:
    return best_build(machine_of(row), KB, keep=keep)


def release_of(choice: Choice) -> Version:
    return choice.build.torch if choice.build else Version("0")


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from(DRIVERS))
def test_a_newer_driver_never_gives_an_older_release(row: dict[str, Any], other: str) -> None:
    low, high = sorted(
        (row["driver"], other), key=lambda version: [int(part) for part in version.split(".")]
    )
    before, after = solved({**row, "driver": low}), solved({**row, "driver": high})
    assert release_of(before) <= release_of(after)


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from(WISHES))
def test_a_wish_is_kept_or_refused_and_never_bent(row: dict[str, Any], wish: str) -> None:
    choice = solved(row, wish)
    if choice.build is not None:
        assert choice.build in allowed(wish, KB.builds_on(choice.build.platform))


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from((None, *WISHES)))
def test_what_was_not_seen_published_is_never_prescribed(
    row: dict[str, Any], wish: str | None
) -> None:
    choice = solved(row, wish)
    ways = [way.build for way in choice.alternatives if way.build is not None]
    for build in (*ways, *((choice.build,) if choice.build else ())):
        assert build.published is True
        assert build.cuda is None or build.archs is not None


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from((None, *WISHES)))
def test_each_reason_is_a_sentence_and_each_variant_has_one(
    row: dict[str, Any], wish: str | None
) -> None:
    choice = solved(row, wish)
    variants = [rejection.variant for rejection in choice.why_not]
    assert len(variants) == len(set(variants))
    assert choice.build is None or choice.build.variant not in variants
    texts = [*choice.why, *(rejection.reason for rejection in choice.why_not)]
    texts += [alternative.text for alternative in choice.alternatives]
    assert all(text.endswith(".") and "None" not in text for text in texts)
    assert choice.build is None or not choice.alternatives


@settings(max_examples=100, deadline=None)
@given(rows())
def test_leaving_a_gpu_out_never_gives_an_older_release(row: dict[str, Any]) -> None:
    if len(row["gpus"]) < 2:
        return
    fewer = {**row, "gpus": row["gpus"][1:]}
    both, less = solved(row), solved(fewer)
    unserved = both.build is not None and any("left out" in text for text in both.why)
    assert unserved or release_of(both) <= release_of(less)
