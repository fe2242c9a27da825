"""torch's RELEASE.md: the matrix of CUDA versions per minor release; announced, not seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cudadoctor.knowledge.update.pages import Unreadable
from cudadoctor.knowledge.update.rows import Reading, Row, Tables
from cudadoctor.knowledge.update.torch_index import WATCHED

SOURCE = "release-md"
URL = "https://raw.githubusercontent.com/pytorch/pytorch/main/RELEASE.md"
TITLE = "pytorch/pytorch RELEASE.md, release compatibility matrix"

_CUDA = re.compile(r"CUDA (\d{1,2}\.\d)\b(?: ?\(CUDNN (\d[\d.]*\d)\))?", re.IGNORECASE | re.ASCII)


def read(text: str, tables: Tables, url: str) -> Reading:
    """Builds that are announced for the newest releases and that the tables lack."""
    announced = dict(_matrix(text))
    if not announced:
        raise Unreadable(f"{url!a} has no matrix of CUDA versions per release.")
    rows = [
        row
        for release in tables["torch"]["releases"][:WATCHED]
        for cuda, cudnn in announced.get(_minor(release["torch"]), ())
        for row in _builds(release["torch"], cuda, cudnn, tables, url)
    ]
    return Reading(rows=tuple(rows))


def _matrix(text: str) -> Iterator[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """Minor release -> the CUDA versions of its row, with their cuDNN."""
    columns: list[int] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "pytorch version" in cells[0].lower():
            columns = [at for at, cell in enumerate(cells) if "cuda" in cell.lower()]
        elif columns and re.fullmatch(r"\d+\.\d+", cells[0]):
            found = [cell for at, cell in enumerate(cells) if at in columns]
            pairs = [(one[1], one[2]) for cell in found for one in _CUDA.finditer(cell)]
            yield cells[0], tuple(pairs)


def _builds(torch: str, cuda: str, cudnn: str | None, tables: Tables, url: str) -> Iterator[Row]:
    variant = f"cu{cuda.replace('.', '')}"
    there = [row for row in tables["torch"]["builds"] if row["torch"] == torch]
    platforms = {row["platform"] for row in there if not row["platform"].startswith("macos")}
    for platform in sorted(platforms - {"windows_arm64"}):
        known = next(
            (row for row in there if (row["variant"], row["platform"]) == (variant, platform)), None
        )
        if known is None:
            glibc = next((row["glibc"] for row in there if row["platform"] == platform), None)
            yield _announced((torch, variant, platform), cuda, cudnn, glibc, url)


def _announced(
    key: tuple[str, str, str], cuda: str, cudnn: str | None, glibc: str | None, url: str
) -> Row:
    values: dict[str, Any] = {
        **dict.fromkeys(("toolkit", "published", "archs", "bytes")),
        "cuda": cuda,
        "cudnn": cudnn if key[2].startswith("linux") else None,
        "uncertain": False,
        "contested": [],
        "glibc": glibc,
        "default": False,
    }
    names = dict(zip(("torch", "variant", "platform"), key, strict=True))
    return Row(table="torch.builds", key=names, values=values, source=SOURCE, url=url)


def _minor(torch: str) -> str:
    return ".".join(torch.split(".")[:2])
