"""What `explain` finds by a text: the causes of every error text, and nothing for idle words."""

from __future__ import annotations

import sys

import pytest
from scenario_reader import HERE

from cudadoctor import knowledge
from cudadoctor.cli.options import cause_of
from cudadoctor.rules.pasted.search import search

sys.path.insert(0, str(HERE.parent / "benchmarks"))

import explain_search

EVERY = 23
"""A sample: benchmarks/explain_search.py searches for all of them."""
LEAST = {"whole": 1.0, "elsewhere": 1.0, "first_half": 0.8, "second_half": 0.8}


def _first(text: str) -> list[str]:
    return [hit.cause for hit in search(text, knowledge.load())][: explain_search.FIRST]


@pytest.mark.parametrize("change", explain_search.CHANGES, ids=lambda change: change.__name__)
def test_an_error_text_finds_its_cause_among_the_first_three(
    change: explain_search.Change,
) -> None:
    sample = [*explain_search.asked(change)][::EVERY]
    missed = [
        (text, sorted(causes), found)
        for row, text, _ in sample
        if (causes := explain_search.expected(row)).isdisjoint(found := _first(text))
    ]
    assert len(missed) <= (1 - LEAST[change.__name__]) * len(sample), missed


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("error 803", "cuda-compat-conflict"),
        ("CUDA error 802", "fabric-manager"),
        ("NVML error 18", "driver-library-mismatch"),
        ("18", "driver-library-mismatch"),
        ("Xid 79", "gpu-lost"),
        ("79", "gpu-lost"),
        ("NCCL error 2", "nccl-other"),
        ("cuda not availble", "torch-cpu-build"),
        ("kernal image is not availabel", "torch-arch-unsupported-new"),
    ],
)
def test_numbers_and_misspelled_words_find_their_cause(text: str, cause: str) -> None:
    assert cause in _first(text)


@pytest.mark.parametrize("text", ["a recipe for pizza", "hello world", "what is the weather", ""])
def test_words_that_are_like_no_error_text_find_nothing(text: str) -> None:
    assert _first(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("torch_cpu_build", "torch-cpu-build"),
        ("Driver too old", "driver-too-old"),
        ("driver-libary-mismatch", "driver-library-mismatch"),
        ("shm", None),
        ("unknown error", None),
        ("libcuda.so.1: cannot open shared object file", None),
    ],
)
def test_a_name_is_found_as_people_write_it(text: str, cause: str | None) -> None:
    assert cause_of(text) == cause
