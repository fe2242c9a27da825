"""Texts about torch, its companions, its extensions and numpy -> the root cause."""

from __future__ import annotations

import pytest
from told_fixtures import cases, root_of


@pytest.mark.parametrize(("cause", "text"), cases("torch", "case"))
def test_a_text_about_torch_tells_its_cause(cause: str, text: str) -> None:
    assert root_of(text) == cause


@pytest.mark.parametrize(("cause", "text"), cases("torch", "bug"))
def test_a_bug_of_torch_is_no_fault_of_the_environment(cause: str, text: str) -> None:
    assert root_of(text) == cause
