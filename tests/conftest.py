"""Shared fixtures: interpreters with a real torch, found or skipped with a reason."""

from __future__ import annotations

import compileall
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from standin_fixtures import standins  # noqa: F401

import cudadoctor

# A job in the background (`nohup … &`) starts with these ignored, and so would every child of a
# test: the doctor leaves an ignored signal alone. Tests that send one need it at its default.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the doctor once: under PYTHONDONTWRITEBYTECODE each child of a test would anew."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(cudadoctor.__file__).parent, quiet=2)


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
