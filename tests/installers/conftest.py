"""Each test here asks without the configuration of whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from resolver_fixtures import clean  # noqa: F401

from cudadoctor.host import local


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """The scratch folder goes with the test."""
    yield
    local.close_host()
