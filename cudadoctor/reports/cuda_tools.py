"""Banners of compilers: nvcc, gcc, clang and Microsoft's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Toolkit
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

_NVCC = re.compile(r"Cuda compilation tools,? {1,3}release {1,3}(\d{1,2}\.\d{1,2})", re.I)
_SHORT = re.compile(r"\brelease (\d{1,2}\.\d), V\1\.\d{1,4}", re.I)
_BUILD = re.compile(r"Build cuda_(\d{1,2}\.\d{1,2})\.r", re.I)
_HOME = re.compile(
    r"(?<![\w/])(?P<path>/usr/local/cuda-(?P<cuda>\d{1,2}\.\d)|/opt/cuda(?:-\d{1,2}\.\d)?"
    r"|[A-Za-z]:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v(?P<win>\d{1,2}\.\d))"
)
_GCC = re.compile(
    r"\b(gcc|g\+\+|c\+\+|cc)(?:-\d{1,2})?(?:\.exe)?"
    r" \([^()\n]{1,80}(?:\([^()\n]{1,40}\)[^()\n]{0,40})?\)"
    r" (\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)"
)
_GCC_LINE = re.compile(r"\bgcc version (\d{1,2}\.\d{1,2}(?:\.\d{1,2})?) ")
_CLANG = re.compile(r"\bclang version (\d{1,2}\.\d{1,2}\.\d{1,2})")
_MSVC = re.compile(r"Microsoft \(R\) C/C\+\+ .{0,40}?(?:Version )?(19\.\d{2}(?:\.\d{1,6}){0,2}) ")


def read_nvcc(doc: Document, _: Knowledge) -> Iterator[Said]:
    """nvcc --version in any generation, whole or one line of it."""
    if not any(words in doc.low for words in ("cuda compilation", "build cuda_", ", v")):
        return
    found = _NVCC.search(doc.flat) or _BUILD.search(doc.flat) or _SHORT.search(doc.flat)
    if found is None:
        return
    line = doc.line_at(found.start()).number
    toolkit = Toolkit(path="nvcc", origin="PATH", cuda=Version(found[1]), nvcc="nvcc")
    yield Said("build.toolkits", (toolkit,), line, Rank.TOOL, "nvcc --version")
    yield Said("build.used", "nvcc", line, Rank.COMMAND, "nvcc --version")


_VERSION_FILE = re.compile(r"(?<![\w-])CUDA Version (\d{1,2}\.\d)\.\d{1,4}\b")
_VERSION_JSON = re.compile(r'"name" ?: ?"CUDA SDK", "version" ?: ?"(\d{1,2}\.\d)')


def read_toolkit_files(doc: Document, _: Knowledge) -> Iterator[Said]:
    """version.txt and version.json of a toolkit, and the words with which NVIDIA's images start."""
    if "cuda version " not in doc.low and '"cuda sdk"' not in doc.low:
        return
    found = _VERSION_FILE.search(doc.flat) or _VERSION_JSON.search(doc.flat)
    if found is None:
        return
    line = doc.line_at(found.start()).number
    toolkit = Toolkit(path="/usr/local/cuda", origin="/usr/local", cuda=Version(found[1]))
    yield Said("build.toolkits", (toolkit,), line, Rank.MESSAGE, "the toolkit's version file")
    if "container image copyright" in doc.low:
        yield Said("container.kind", "docker", line, Rank.MESSAGE, "NVIDIA's image")


def read_compilers(doc: Document, _: Knowledge) -> Iterator[Said]:
    """gcc --version, clang --version and the banner of cl.exe."""
    if not any(word in doc.low for word in ("gcc ", "g++ ", "c++ ", "clang version", "cc (")):
        return
    for name, pattern, group in (
        ("g++", _GCC, 2),
        ("g++", _GCC_LINE, 1),
        ("clang++", _CLANG, 1),
        ("cl", _MSVC, 1),
    ):
        found = pattern.search(doc.flat)
        version = values.version_of(found[group]) if found else None
        if found is None or version is None or _of_a_program(doc.flat, found.start()):
            continue
        line = doc.line_at(found.start()).number
        yield Said("build.compiler.present", True, line, Rank.MESSAGE, name)
        yield Said("build.compiler.name", name, line, Rank.MESSAGE, name)
        yield Said("build.compiler.version", version, line, Rank.MESSAGE, name)
        return


def _of_a_program(flat: str, place: int) -> bool:
    """Whether this is the compiler with which a kernel or a module was built."""
    before = flat[max(0, place - 160) : place]
    return any(words in before for words in ("Linux version", "NVRM", "Kernel Module"))
