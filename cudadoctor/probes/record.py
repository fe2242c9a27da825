"""Compares the files of torch that every import needs, and of its wheels, with their RECORD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from cudadoctor.host.local import Host
from cudadoctor.model.versions import whole

MOST_RECORD = 16 << 20
NEEDED = (
    "version.py",
    "__init__.py",
    "_tensor.py",
    "nn/__init__.py",
    "cuda/__init__.py",
    "optim/__init__.py",
    "autograd/__init__.py",
    "utils/__init__.py",
    "utils/data/__init__.py",
    "distributed/__init__.py",
    "backends/cudnn/__init__.py",
)
"""Python files that every import of torch, or every training, opens."""
_LIBRARIES = {"Windows": (b".dll,", b".pyd,"), "Darwin": (b".so,", b".dylib,")}


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are absent, empty, or (libraries only) shorter than RECORD says."""

    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    short: tuple[str, ...] = ()


def compare(host: Host, entry: str, dist_info: str) -> Damage | None:
    """The damage of the torch in that folder of the path; None where there is no RECORD."""
    data = host.read(f"{entry}/{dist_info}/RECORD", MOST_RECORD).data
    if not data:
        return None
    missing, empty, short = [], [], []
    # A search through RECORD costs more than a look at the file.
    sick = tuple(name for name in NEEDED if not host.stat(f"{entry}/torch/{name}").size)
    for path, expected in expected_sizes(data, host.system, sick):
        found = host.stat(f"{entry}/{path}")
        if found.exists is False:
            missing.append(path)
        elif found.exists and not found.size and expected:
            empty.append(path)
        elif found.exists and found.size < expected and not path.endswith(".py"):
            short.append(path)
    return Damage(missing=tuple(missing), empty=tuple(empty), short=tuple(short))


def compare_wheels(host: Host, records: Iterable[tuple[str, str]]) -> Damage:
    """The libraries of NVIDIA's wheels that are gone, empty or cut short, as on a full disk.

    Which parts of cuDNN are gone is for the loader's own look to tell.

    records: folder of the path and dist-info. Two wheels may claim one file: the smaller counts.
    """
    claimed: dict[tuple[str, str], int] = {}
    for entry, dist_info in records:
        data = host.read(f"{entry}/{dist_info}/RECORD", MOST_RECORD).data
        for path, size in _sizes(_lines_with(data, b"/lib/lib"), "nvidia/"):
            if ".so" in path:
                claimed[entry, path] = min(size, claimed.get((entry, path), size))
    missing: list[str] = []
    empty: list[str] = []
    short: list[str] = []
    for (entry, path), expected in claimed.items():
        found = host.stat(f"{entry}/{path}")
        if found.exists and found.size < expected:
            (short if found.size else empty).append(path)
        elif found.exists is False and "libcudnn" not in path:
            missing.append(path)
    return Damage(missing=tuple(missing), empty=tuple(empty), short=tuple(short))


def expected_sizes(
    data: bytes, system: str = "Linux", needed: tuple[str, ...] = NEEDED
) -> Iterator[tuple[str, int]]:
    """Path and size of the files worth a look: of 15,000 some fifty are needed by every import."""
    wanted = (f"torch/{name},".encode() for name in needed)
    lines = [line for part in wanted for line in _lines_with(data, part)]
    for ending in _LIBRARIES.get(system, (b".so",)):
        lines += _lines_with(data, ending)
    yield from _sizes(lines, "torch/")


def _sizes(lines: Iterable[str], below: str) -> Iterator[tuple[str, int]]:
    for line in dict.fromkeys(lines):
        path, _, rest = line.partition(",")
        size = rest.rpartition(",")[2]
        if path.startswith(below) and ".." not in path:
            yield path, whole(size) or 0


def _lines_with(data: bytes, part: bytes) -> list[str]:
    """The lines that hold a text, found without cutting the other lines out."""
    found = []
    at = data.find(part)
    while at >= 0:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line = data[data.rfind(b"\n", 0, at) + 1 : end]
        found.append(line.decode("utf-8", "replace").strip())
        at = data.find(part, end)
    return found
