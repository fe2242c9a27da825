"""How much an environment takes, in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudadoctor.knowledge import Knowledge, TorchBuild

UNPACKED = 2.3
"""Installed size over wheel size, of torch with its CUDA libraries (measured: 2.27)."""
UNPACKED_CPU = 4.5
"""The same for a CPU build, whose code packs better and whose dependencies weigh more."""
LIBRARIES_BYTES = 2_000_000_000
"""Wheels of the CUDA libraries that a CUDA build for Linux brings (measured: 1.8 to 2.2 GB)."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What is downloaded and what it takes on disk. None not known. counted: from the real files.

    free_bytes: on the file system of the folder.
    """

    download_bytes: int | None
    installed_bytes: int | None
    counted: bool = False
    free_bytes: int | None = None

    @property
    def too_small(self) -> bool:
        needed, free = self.installed_bytes, self.free_bytes
        return needed is not None and free is not None and free < needed


def room(
    build: TorchBuild, kb: Knowledge, sizes: Iterable[int | None] = (), free: int | None = None
) -> Room:
    """The room for a build; sizes: of the files that a resolver found, in bytes."""
    found = tuple(sizes)
    counted = bool(found) and None not in found
    factor = UNPACKED if build.cuda else UNPACKED_CPU
    download = sum(one or 0 for one in found) if counted else _supposed(build, kb)
    return Room(
        download_bytes=download,
        installed_bytes=None if download is None else int(download * factor),
        counted=counted,
        free_bytes=free,
    )


def _supposed(build: TorchBuild, kb: Knowledge) -> int | None:
    """From the tables: the wheel, or that of a like variant, and its libraries."""
    wheel = build.download_bytes or next(
        (
            one.download_bytes
            for one in kb.builds_on(build.platform)
            if one.download_bytes
            and one.torch == build.torch
            and (one.cuda is None) == (build.cuda is None)
        ),
        None,
    )
    if wheel is None:
        return None
    libraries = build.cuda is not None and build.platform.startswith("linux")
    return wheel + (LIBRARIES_BYTES if libraries else 0)
