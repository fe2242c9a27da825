"""Lines about shared libraries: ldd, ldconfig -p, and paths of libraries of their own."""

from __future__ import annotations

import re

from cudadoctor.facts import Library


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
