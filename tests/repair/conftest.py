"""One sound environment for all tests here, and a broken copy of it for each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from repair_fixtures import Environment, broken_environment, fitting_index, sound_environment


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_environment(tmp_path_factory.mktemp("sound") / "venv")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fitting_index(tmp_path_factory.mktemp("index"))


@pytest.fixture
def broken(sound: Path, index: str, tmp_path: Path) -> Environment:
    """An environment that the doctor can cure."""
    if sys.platform == "win32":
        pytest.skip("the environments here are laid out as on POSIX")
    return broken_environment(sound, tmp_path / "venv", index)
