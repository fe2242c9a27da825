"""The pytest plugin: `@pytest.mark.cuda(...)` skips a test whose needs are not met here.

The marker takes what `cudadoctor.require` takes. With --require-gpu such a test fails instead.
"""

from __future__ import annotations

import pytest

from cudadoctor.needs import RequirementError, require


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail the tests marked cuda where their needs are not met, instead of skipping them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cuda(**needs): needs a GPU; takes what cudadoctor.require takes"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("cuda"):
        unmet = _unmet(mark)
        if unmet and item.config.getoption("--require-gpu"):
            pytest.fail(unmet, pytrace=False)
        if unmet:
            pytest.skip(unmet.partition("\n")[0])


def _unmet(mark: pytest.Mark) -> str:
    try:
        require(**mark.kwargs)
    except RequirementError as error:
        return str(error)
    return ""
