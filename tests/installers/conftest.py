"""Each test here asks without the configuration of whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from resolver_fixtures import clean  # noqa: F401

from cudadoctor.host import early


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """The scratch folder goes with the test."""
    yield
    early.end()
