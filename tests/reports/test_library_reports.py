"""Words of the dynamic loader and of CUDA's libraries -> the root cause, by where the file lies."""

from __future__ import annotations

import pytest
from told_fixtures import cases, root_of


@pytest.mark.parametrize(("cause", "text"), cases("libraries", "case"))
def test_words_of_the_loader_tell_their_cause(cause: str, text: str) -> None:
    assert root_of(text) == cause


@pytest.mark.parametrize(("cause", "text"), cases("libraries", "near"))
def test_what_only_looks_alike_does_not(cause: str, text: str) -> None:
    assert root_of(text) != cause
