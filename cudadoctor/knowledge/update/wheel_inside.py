"""What lies inside a wheel of the index, read in parts: METADATA, torch/version.py, code lists."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterable
from typing import cast

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cudadoctor.knowledge.update.fetching import Fetcher, NotRead, RemoteFile
from cudadoctor.knowledge.update.listing import IndexFile
from cudadoctor.knowledge.update.pages import Unreadable, text_of

MOST_TEXT = 4 << 20
MOST_LIBRARY = 192 << 20
_READ_AT_ONCE = 1 << 20
_ARCHS = re.compile(rb"((?:(?:sm|compute)_\d{2,3}[a-z]? )*(?:sm|compute)_\d{2,3}[a-z]?) ?\0")
_PLAIN = re.compile(r"[ -~]{1,300}")


class Inside(msgspec.Struct, frozen=True):
    """What a wheel of torch says of itself.

    version: with its local part. cuda: that it was built with, None for a CPU build.
    archs: None not read. requires: its requirements, as packaging prints them.
    """

    version: str
    cuda: str | None
    requires: tuple[str, ...]
    archs: tuple[str, ...] | None = None


def requirements_of(fetch: Fetcher, file: IndexFile) -> tuple[str, ...]:
    """What a wheel requires, from the METADATA beside it or inside. Raises NotRead, Unreadable."""
    if file.metadata:
        try:
            return requirements_in(fetch.get(f"{file.url}.metadata").body)
        except NotRead:  # an index may promise what its file server lacks
            pass
    with _opened(fetch, file) as wheel:
        return requirements_in(_metadata(wheel))


def torch_inside(fetch: Fetcher, file: IndexFile, *, deep: bool) -> Inside:
    """What a wheel of torch says. deep: read its code list too, some ten megabytes more."""
    with _opened(fetch, file) as wheel:
        requires = requirements_in(_metadata(wheel))
        version, cuda = version_in(_member(wheel, "torch/version.py", MOST_TEXT))
        library = "torch/lib/libtorch_python.so"
        archs = None
        if deep and cuda is not None and library in wheel.namelist():
            archs = archs_in(_member(wheel, library, MOST_LIBRARY))
    return Inside(version, cuda, requires, archs)


def requirements_in(metadata: bytes) -> tuple[str, ...]:
    """The Requires-Dist lines of a METADATA. Raises Unreadable for a text that is none."""
    head = text_of(metadata).replace("\r\n", "\n").partition("\n\n")[0]
    if not head.startswith("Metadata-Version:"):
        raise Unreadable("The METADATA of a wheel does not begin as one.")
    return requirements(re.findall(r"^Requires-Dist: *(.+)$", head, re.MULTILINE))


def requirements(lines: Iterable[str]) -> tuple[str, ...]:
    """Requirements as packaging prints them. Raises Unreadable for a line that is none."""
    return tuple(_requirement(line.strip()) for line in lines)


def _requirement(line: str) -> str:
    """As packaging prints it; text that could act on a terminal is no requirement."""
    try:
        text = str(Requirement(line)) if _PLAIN.fullmatch(line) else ""
    except InvalidRequirement:
        text = ""
    if not text:
        raise Unreadable(f"A wheel requires {line[:80]!a}, which is no requirement.")
    return text


def version_in(source: bytes) -> tuple[str, str | None]:
    """The version and the CUDA version in a torch/version.py. Raises Unreadable."""
    text = text_of(source).replace("\r\n", "\n")
    version = re.search(r"^__version__ = '([0-9a-z.+]{1,40})'$", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=\n]+)? = (?:None|'(\d+\.\d+)')$", text, re.MULTILINE)
    if version is None or cuda is None:
        raise Unreadable("The torch/version.py of a wheel names no version or no CUDA.")
    return version[1], cuda[1]


def archs_in(library: bytes) -> tuple[str, ...] | None:
    """The longest list of architectures at the end of a text in a library.

    It need not be a text of its own: compilers lay constants without an end before it.
    """
    lists = _ARCHS.findall(library)
    return tuple(max(lists, key=len).decode("ascii").split()) if lists else None


def specifier_on(name: str, requires: tuple[str, ...]) -> str:
    """The specifier of the first requirement on a project that holds without an extra, "" none."""
    for line in requires:
        read = Requirement(line)
        plain = read.marker is None or "extra" not in str(read.marker)
        if plain and canonicalize_name(read.name) == name:
            return str(read.specifier)
    return ""


def _opened(fetch: Fetcher, file: IndexFile) -> zipfile.ZipFile:
    remote = io.BufferedReader(cast("io.RawIOBase", RemoteFile(fetch, file.url)), _READ_AT_ONCE)
    try:
        return zipfile.ZipFile(remote)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise Unreadable(f"{file.filename!a} is no wheel that can be read.") from error


def _metadata(wheel: zipfile.ZipFile) -> bytes:
    found = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(found) != 1:
        raise Unreadable("A wheel has no METADATA.")
    return _member(wheel, found[0], MOST_TEXT)


def _member(wheel: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with wheel.open(name) as member:
            found = member.read(most + 1)
    except (KeyError, EOFError, ValueError, OSError, NotImplementedError, RuntimeError) as error:
        raise Unreadable(f"A wheel has no {name} that can be read.") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"The {name} of a wheel is broken.") from error
    if len(found) > most:
        raise Unreadable(f"The {name} of a wheel is larger than {most >> 20} MiB.")
    return found
