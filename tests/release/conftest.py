"""A small cudadoctor.pyz, made without a network from what is installed here."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import build_pyz
import pytest
import pyz_main
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pyz")
    own = folder / "cudadoctor-0-py3-none-any.whl"
    with zipfile.ZipFile(own, "w") as archive:
        for path in (ROOT / "cudadoctor").rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, path.relative_to(ROOT))
    wheels = [own, *(_wheel(name, folder) for name in sorted(set(_required("cudadoctor"))))]
    out = folder / "cudadoctor.pyz"
    build_pyz.write(out, {pyz_main.this(): wheels})
    return out


def _required(name: str) -> Iterator[str]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name
            yield from _required(requirement.name)


def _wheel(name: str, folder: Path) -> Path:
    """An installed distribution as a wheel."""
    found = distribution(name)
    path = folder / f"{re.sub('[-.]+', '_', name)}-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(file.locate(), str(file))
    return path
