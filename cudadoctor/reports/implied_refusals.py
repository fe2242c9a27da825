"""Refusals that a report tells in words, without the line in which the installer names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from cudadoctor.model.machine import Install

if TYPE_CHECKING:
    from cudadoctor.reports.document import Document

_SAID = re.compile(
    r"no matching (?:distribution|version|package|tool|wheel)|"
    r"(?:could(?: ?n[o']t)?|can(?:not|'t)) find (?:a |any )?(?:matching )?versions?\b|"
    r"could find a version that satisf|no compatible version found for: (?:py)?torch|"
    r"doesn't have a source distribution or wheel|no wheels? (?:is |are )?available|"
    r"unable to find (?:installation )?candidates|no solution found when resolving|"
    r"(?:torch|pytorch)(?: version)?(?:[ =v]{1,3}\d[\w.+]{0,20})? "
    r"(?:is|are|was|were) (?:not|no longer) available|"
    r"(?:version|wheel|release|build)s? (?:is|are) (?:not|no longer) available|"
    r"(?:找不到|没有找到|未找到|没有)(?:对应的|合适的|该|这个|匹配的)?\s?(?:版本|torch|pytorch|安装包|轮子)|"
    r"(?:torch|pytorch)的?版本(?:找不到|没有)|無い?バージョン|"
    r"no (?:pre-?built |binary )?wheels? for (?:python|cp|this|my|linux|windows|mac|arm|aarch64)|"
    r"(?:wheel|release|version)s? (?:for|of)[^.\n]{0,40} (?:do(?:es)?n't|do(?:es)? not) exist"
)
"""What people quote or say where an installer found nothing."""
_TORCH = r"(?:torch|torchvision|torchaudio)"
_PINNED = re.compile(rf"{_TORCH}(?:\[[\w,]{{1,30}}\])?\s?===?\s?\d[\w.+*-]{{0,40}}$")
_NAMED = re.compile(
    r"(?<![\w./-])(?P<name>torch|pytorch|torchvision|torchaudio)(?: version)?[ =(v]{1,4}"
    r"(?P<version>\d\.\d{1,2}(?:\.\d{1,2})?(?:\+\w{2,12})?)(?![\w.]*\.whl)"
)
_SOLVERS = frozenset({"conda", "mamba", "micromamba"})
"""Their refusals name the package themselves."""
_FAR = 160
"""How far from the words a release may stand that they speak of."""


def with_implied(doc: Document, installs: list[Install]) -> list[Install]:
    """The installs; the last of torch with a refusal, where words say that there was one."""
    said = _SAID.search(doc.low)
    if said is None or any(one.refused or one.installed for one in installs):
        return installs
    for place in range(len(installs) - 1, -1, -1):
        one = installs[place]
        if one.tool in _SOLVERS:
            continue
        asked = next((text for text in one.requirements if _PINNED.match(text)), None)
        if asked is not None:
            return _replaced(installs, place, asked)
    near = doc.low[max(0, said.start() - _FAR) : said.end() + _FAR]
    if found := _NAMED.search(near):
        name = found["name"].replace("pytorch", "torch")
        return [*installs, _told(f"{name}=={found['version']}", doc.line_at(said.start()).number)]
    for place in range(len(installs) - 1, -1, -1):
        if "torch" in installs[place].requirements and installs[place].tool not in _SOLVERS:
            return _replaced(installs, place, "torch")
    return installs


def _replaced(installs: list[Install], place: int, asked: str) -> list[Install]:
    offered = () if asked == "torch" else None
    told = msgspec.structs.replace(installs[place], refused=asked, failed=True, offered=offered)
    return [*installs[:place], told, *installs[place + 1 :]]


def _told(asked: str, line: int) -> Install:
    return Install(tool="pip", refused=asked, failed=True, line=line)
