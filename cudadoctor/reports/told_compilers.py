"""Compilers as authors tell them: "nvcc 9.1", "gcc: 7.4", the nvcc in a command that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Toolkit
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said
from cudadoctor.reports.values import version_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_WHO = "the author"
_IS = r"(?:[ _-]?version)?(?: is| ver\.?)?[ :=`\"'-]{1,4}v?"
_NVCC = re.compile(rf"\bnvcc{_IS}(?P<v>\d{{1,2}}\.\d)(?:\.\d{{1,3}})?\b", re.I)
_IN_PATH = re.compile(
    r"(?:/usr/local/cuda-(?P<a>\d{1,2}\.\d)|CUDA[\\/]{1,2}v(?P<b>\d{1,2}\.\d))[\\/]{1,2}bin[\\/]{1,2}nvcc"
    r"(?:\.exe)?['\"]? (?:failed|-D)",
    re.I,
)
_TOLD_CUDA = re.compile(r"(?<![\w.])cuda(?: ?toolkit)?\s?[:=]{1,2}\s?v?(?P<v>\d{1,2}\.\d)\b", re.I)
_GCC = re.compile(rf"\b(?:gcc|g\+\+){_IS}(?P<v>\d{{1,2}}(?:\.\d{{1,2}}){{0,2}})\b", re.I)
_BUILDS = ("nvcc", "failed building", "setup.py", "error compiling", "error building", "gcc")


def read_told_compilers(doc: Document, _: Knowledge) -> Iterator[Said]:
    """What the author says of nvcc and gcc, in a report that is about a build."""
    if not any(word in doc.low for word in _BUILDS):
        return
    for pattern in () if "compilation tools" in doc.low else (_NVCC, _IN_PATH, _TOLD_CUDA):
        found = pattern.search(doc.flat)
        if found is None:
            continue
        text = next(group for group in found.groups() if group)
        line = doc.line_at(found.start()).number
        toolkit = Toolkit(path="nvcc", origin="PATH", cuda=Version(text), nvcc="nvcc")
        yield Said("build.toolkits", (toolkit,), line, Rank.PROSE, _WHO)
        break
    found = _GCC.search(doc.flat)
    version = version_of(found["v"]) if found else None
    if found is not None and version is not None and 3 < version.major < 20:
        line = doc.line_at(found.start()).number
        yield Said("build.compiler.present", True, line, Rank.PROSE, _WHO)
        yield Said("build.compiler.name", "g++", line, Rank.PROSE, _WHO)
        yield Said("build.compiler.version", version, line, Rank.PROSE, _WHO)
