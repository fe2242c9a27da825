"""Shared fixtures: interpreters with a real torch, found or skipped with a reason."""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from standin_fixtures import standins  # noqa: F401

import cudadoctor
from cudadoctor.cli.looking import KNOWLEDGE
from cudadoctor.knowledge import renewed, tables

FROZEN = Path(__file__).parent / "judged" / "tables"
"""The tables that an update may renew, as they were when the pinned outputs were written.

What the tests expect of a release, of the newest one above all, they expect of these.
REWRITE_JUDGED copies them from the package; it is to be run after a table was changed by hand.
"""

# A job in the background (`nohup … &`) starts with these ignored, and so would every child of a
# test: the doctor leaves an ignored signal alone. Tests that send one need it at its default.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the doctor once: under PYTHONDONTWRITEBYTECODE each child would recompile it.

    And settle which tables the tests rest on: neither those of today, nor those that whoever runs
    the tests has renewed.
    """
    folder = tempfile.TemporaryDirectory(prefix="cudadoctor-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_STATE_HOME"] = folder.name
    os.environ.pop(KNOWLEDGE, None)
    own = Path(tables.FOLDER)
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(cudadoctor.__file__).parent, quiet=2)
        for name in renewed.TABLES if os.environ.get("REWRITE_JUDGED") else ():
            shutil.copy(own / f"{name}.json", FROZEN)
    tables.FOLDER = str(shutil.copytree(own, Path(folder.name, "tables")))
    shutil.copytree(FROZEN, tables.FOLDER, dirs_exist_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the tests as pytest compiles them, or each worker of each run would do it again."""
    usual, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = usual


def _interpreter(variable: str, usual: str) -> str:
    path = os.environ.get(variable) or usual
    if not Path(path).exists():
        pytest.skip(f"no interpreter for this test: {variable} is not set and {usual} is absent")
    return path


@pytest.fixture(scope="session")
def python_cu130() -> str:
    """A Python with torch 2.14.1, a CUDA 13.0 build, and no driver under it."""
    return _interpreter("CUDADOCTOR_TEST_CU130", "/tmp/envs/cu130/bin/python")


@pytest.fixture(scope="session")
def python_cpu() -> str:
    """A Python with a CPU build of torch."""
    return _interpreter("CUDADOCTOR_TEST_CPU", "/tmp/envs/cpu/bin/python")
