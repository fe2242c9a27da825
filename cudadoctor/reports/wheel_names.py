"""Names of wheels in a report: torch-2.3.0+cu121-cp310-cp310-win_amd64.whl."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudadoctor.reports.document import Document

_NAME = re.compile(
    r"(?P<name>[A-Za-z][\w.]{1,60})-(?P<version>\d[\w.+!%]{0,60})(?:-\d\w{0,10})?"
    r"-(?P<python>(?:cp|py|pp)[\w.]{1,30})-(?P<abi>[\w.]{2,30})-(?P<platform>[\w.]{2,120}?)"
    r"\.whl(?P<more>\.metadata)?"
)
_PYTHON = re.compile(r"cp(\d)(\d{1,2})")
_CHOSEN = re.compile(
    r"(?:downloading|using cached|obtaining dependency information|saved|processing)\b"
)


class Wheel(NamedTuple):
    """A wheel by its name. chosen: pip took it, so it fits the Python and the platform there."""

    name: str
    version: str
    pythons: tuple[str, ...]
    abi: str
    platforms: tuple[str, ...]
    chosen: bool = False
    line: int = 1

    @classmethod
    def of(cls, text: str) -> Wheel | None:
        """The wheel of that file name, None where it is none."""
        found = _NAME.search(unquote(text))
        return None if found is None else cls._found(found)

    @classmethod
    def _found(cls, found: re.Match[str], *, chosen: bool = False, line: int = 1) -> Wheel:
        return cls(
            name=found["name"].lower().replace("_", "-"),
            version=found["version"],
            pythons=tuple(found["python"].split(".")),
            abi=found["abi"],
            platforms=tuple(found["platform"].split(".")),
            chosen=chosen,
            line=line,
        )

    @property
    def python(self) -> Version | None:
        """The one Python that it is made for, None where it is made for several."""
        found = _PYTHON.fullmatch(self.pythons[0])
        if found is None or "abi3" in self.abi or len(self.pythons) > 1:
            return None
        try:
            return Version(f"{found[1]}.{found[2]}")
        except ValueError:
            return None

    @property
    def system(self) -> str | None:
        return self.tagged(self.platforms[-1])[0]

    @property
    def machine(self) -> str | None:
        return self.tagged(self.platforms[-1])[1]

    @staticmethod
    def tagged(tag: str) -> tuple[str | None, str | None]:
        """System and processor of a platform tag; None each where it is for any."""
        if tag.startswith(("manylinux", "linux", "musllinux")):
            found = re.search(r"(x86_64|aarch64|i686|armv\dl|ppc64le|s390x|riscv64)$", tag)
            return "Linux", found[1] if found else None
        if tag.startswith("win"):
            return "Windows", {"win_amd64": "x86_64", "win32": "x86", "win_arm64": "aarch64"}.get(
                tag
            )
        if tag.startswith("macosx"):
            found = re.search(r"(x86_64|arm64)$", tag)
            return "Darwin", found[1] if found else None
        return None, None


def wheels_of(doc: Document) -> Iterator[Wheel]:
    """Every wheel that the lines name."""
    for line in doc.lines:
        if ".whl" in line.text:
            chosen = _CHOSEN.search(line.text.lower()) is not None
            for found in _NAME.finditer(unquote(line.text)):
                yield Wheel._found(found, chosen=chosen, line=line.number)
