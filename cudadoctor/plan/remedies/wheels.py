"""Which wheels of the environment are there for torch alone.

A change from CUDA 13 to CUDA 12 wheels needs this: cuDNN, NCCL and others of both write into the
same folders, and uninstalling the old ones afterwards would delete the new files. So the old ones
go first; but a wheel that another package needs stays.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cudadoctor.model.requirements import TORCH_FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cudadoctor.model.machine import Distribution

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_LIBRARY = re.compile(r"nvidia-(?P<base>[a-z][a-z-]*?)(?:-cu(?P<major>\d+))?")
_SHARED = frozenset({"cudnn", "cusparselt", "nccl", "nvshmem"})
_FIRST_MAJOR_APART = 13  # From CUDA 13 on, the toolkit's own parts lie in a folder of their own.


def only_for_torch(packages: Iterable[Distribution]) -> tuple[str, ...]:
    """The nvidia-*, cuda-* and triton wheels that nothing but torch and its companions need."""
    installed = {one.name: one for one in packages}
    below = _needed_by(TORCH_FAMILY, installed)
    others = [name for name in installed if name not in below and name not in TORCH_FAMILY]
    kept = _needed_by(others, installed, every_extra=True)
    return tuple(sorted(name for name in below - kept if _is_torch_wheel(name)))


def kept_by_others(packages: Iterable[Distribution]) -> dict[str, str]:
    """Wheels of torch that another package needs as well -> that package."""
    packages = tuple(packages)
    installed = {one.name: one for one in packages}
    below = _needed_by(TORCH_FAMILY, installed)
    kept: dict[str, str] = {}
    for name in installed:
        if name in below or name in TORCH_FAMILY:
            continue
        needed = _needed_by((name,), installed, every_extra=True) & below
        kept |= {wheel: name for wheel in needed if _is_torch_wheel(wheel) and wheel not in kept}
    return kept


def colliding(packages: Iterable[Distribution], major: int) -> tuple[str, ...]:
    """Installed library wheels that write into the folders of those for this CUDA major."""
    return tuple(sorted(one.name for one in packages if collides(one.name, major)))


def collides(name: str, major: int) -> bool:
    """Whether a wheel shares its folder with its counterpart for another CUDA major."""
    found = _LIBRARY.fullmatch(name)
    if not found or not found["major"] or int(found["major"]) == major:
        return False
    if found["base"] in _SHARED:
        return True
    return max(int(found["major"]), major) < _FIRST_MAJOR_APART


def _needed_by(
    roots: Iterable[str], installed: dict[str, Distribution], *, every_extra: bool = False
) -> set[str]:
    """All that the roots require, directly or through others; torch itself is not entered.

    every_extra: count the roots' optional requirements too, since nobody knows whether they were
    asked for. Below the roots, only the extras that were asked for count.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    start = [(name, frozenset({"*"} if every_extra else ())) for name in roots]
    open_ends = list(start)
    while open_ends:
        name, extras = open_ends.pop()
        if (name, extras) in seen or name not in installed:
            continue
        seen.add((name, extras))
        followed = _requirements(installed[name], extras)
        open_ends += [one for one in followed if one[0] not in TORCH_FAMILY]
    return {name for name, _ in seen} - {name for name, _ in start}


def _requirements(
    one: Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for line in one.requires:
        found = _NAME.match(line)
        wanted = set(_EXTRA.findall(line))
        if found and (not wanted or "*" in extras or wanted & extras):
            asked = (extra.strip() for extra in (found[2] or "").split(","))
            yield _canonical(found[1]), frozenset(extra for extra in asked if extra)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_torch_wheel(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-", "triton", "pytorch-triton"))
