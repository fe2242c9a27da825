"""Lines about shared libraries: ldd, ldconfig -p, and paths of libraries of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cudadoctor.model.machine import Library
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge


def library_at(path: str, fallback: str | None = None) -> Library | None:
    """A library by its path: soname and version out of the file's name, owner out of its place."""
    name = re.split(r"[/\\]", path.strip())[-1].rstrip(".,;)'\"")
    found = re.fullmatch(r"(lib[\w+-]{2,40}\.so)(?:\.(\d{1,4}(?:\.\d{1,4}){0,3}))?", name)
    if found is None:
        windows = re.fullmatch(r"\w{2,40}\.dll", name, re.I)
        owner = owner_of(path, fallback)
        return Library(soname=name, path=path.strip(), owner=owner) if windows else None
    version = found[2] if found[2] and "." in found[2] else None
    major = f".{found[2].partition('.')[0]}" if found[2] else ""
    return Library(
        soname=f"{found[1]}{major}",
        path=path.strip(),
        owner=owner_of(path, fallback),
        version=version,
    )


_OWNERS = (
    ("site-packages/torch/", "torch"),
    ("dist-packages/torch/", "torch"),
    ("site-packages/nvidia/", "wheel"),
    ("dist-packages/nvidia/", "wheel"),
    ("site-packages/cusparselt/", "wheel"),
    ("/usr/local/cuda", "toolkit"),
    ("/opt/cuda", "toolkit"),
    ("nvidia gpu computing toolkit", "toolkit"),
    ("conda", "conda"),
    ("miniforge", "conda"),
    ("mamba", "conda"),
    ("/envs/", "conda"),
    ("/usr/lib", "system"),
    ("/lib/", "system"),
    ("/lib64/", "system"),
)


def owner_of(path: str, fallback: str | None = None) -> str | None:
    """Whose a library is, by its place."""
    low = path.lower().replace("\\", "/")
    return next((owner for words, owner in _OWNERS if words in low), fallback)


_LDD = re.compile(
    r"\s{0,12}(?P<soname>lib[\w+-]{2,40}\.so[\d.]{0,12})(?: \([\w,. -]{2,40}\))? => "
    r"(?P<path>not found|/\S{3,200})"
)
_TRACKED = re.compile(
    r"lib(cudnn|cublas|cudart|nvrtc|nvJitLink|cusparse|cufft|curand|cusolver|nccl|cupti|nvToolsExt"
    r"|nvshmem|cufile|cuda|nvidia-ml|stdc\+\+|c10|torch)"
)


def read_loader_lines(doc: Document, _: Knowledge) -> Iterator[Said]:
    """ldd and ldconfig -p: which file answers to a soname, and what nothing provides."""
    if " => " not in doc.low or ".so" not in doc.low:
        return
    found: dict[str, Library] = {}
    missing: dict[str, int] = {}
    first = 0
    for line in doc.lines:
        row = _LDD.match(line.text) if " => " in line.text else None
        if row is None or not _TRACKED.match(row["soname"]):
            continue
        first = first or line.number
        if row["path"] == "not found":
            missing.setdefault(row["soname"], line.number)
        elif (one := library_at(row["path"])) is not None:
            found.setdefault(one.path, one)
    if found:
        yield Said("libraries.copies", tuple(found.values()), first, Rank.TOOL, "ldd")
    if missing:
        yield Said("libraries.missing", tuple(missing), min(missing.values()), Rank.TOOL, "ldd")
