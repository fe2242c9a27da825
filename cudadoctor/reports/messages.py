"""Facts that the driver's messages name in passing, and names of boards and cloud machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Gpu
from cudadoctor.model.versions import driver_of
from cudadoctor.reports.telling import Rank, Said
from cudadoctor.reports.values import version_of

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge
    from cudadoctor.reports.document import Document

_AUTHOR = "the author"
_DRIVER = "the driver's message"


def read_messages(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Versions and boards, each behind words that stand in its message."""
    for words, read in _MESSAGES:
        if any(word in doc.low for word in words):
            yield from read(doc)


# --- the author's words for nvidia-smi's banner ------------------------------------------------

_SMI_SAYS = re.compile(
    r"nvidia-smi\b(?:[^.]|\.(?=\S)){0,50}\bcuda(?: version)?[ :=]{1,3}(?P<cuda>\d{1,2}\.\d)\b",
    re.I,
)


def _level(doc: Document) -> Iterator[Said]:
    if found := _SMI_SAYS.search(doc.flat):
        line = doc.line_at(found.start()).number
        yield Said("driver.cuda", Version(found["cuda"]), line, Rank.PROSE, _AUTHOR)


# --- two versions of one driver, as the CUDA library tells them ----------------------------------

_RELEASE = r"(\d{3}\.[\d.]{1,8}\d)"
_DSO = re.compile(rf"kernel version {_RELEASE} does not match DSO version {_RELEASE}", re.I)


def _mismatch(doc: Document) -> Iterator[Said]:
    if found := _DSO.search(doc.flat):
        line = doc.line_at(found.start()).number
        yield Said("driver.library", driver_of(found[2]), line, Rank.MESSAGE, _DRIVER)
        yield Said("driver.kernel", driver_of(found[1]), line, Rank.MESSAGE, _DRIVER)


# --- boards and machines of the cloud ----------------------------------------------------------

_L4T = re.compile(
    r"\b(?:L4T|R)[ :]{0,2}(?:release )?R?(?P<l4t>3[2-9]\.\d(?:\.\d)?)\b"
    r"|\bR(?P<major>3[2-9]) \(release\), REVISION: (?P<minor>\d\.\d)",
    re.I,
)
_INSTANCES = (
    ("Tesla K80", r"\bp2\.\d{0,2}xlarge\b|\bNC6\b"),
    ("Tesla V100-SXM2-16GB", r"\bp3\.\d{0,2}xlarge\b"),
    ("Tesla T4", r"\bg4dn\.\w{5,8}\b|\bNC\d{1,2}as_T4"),
    ("NVIDIA A10G", r"\bg5\.\d{0,2}xlarge\b"),
    ("NVIDIA L4", r"\bg6\.\d{0,2}xlarge\b|\bg2-standard"),
    ("NVIDIA A100-SXM4-40GB", r"\bp4d\.24xlarge\b|\ba2-highgpu"),
    ("NVIDIA H100 80GB HBM3", r"\bp5\.48xlarge\b|\ba3-highgpu"),
    ("Tesla M60", r"\bg3s?\.\d{0,2}xlarge\b"),
)
_CLOUD = tuple((name, re.compile(words, re.I)) for name, words in _INSTANCES)


def _board(doc: Document) -> Iterator[Said]:
    if found := _L4T.search(doc.flat):
        text = found["l4t"] or f"{found['major']}.{found['minor']}"
        line = doc.line_at(found.start()).number
        yield Said("platform.l4t", version_of(text), line, Rank.PROSE, _AUTHOR)
        yield Said("platform.jetson", True, line, Rank.PROSE, _AUTHOR)


def _instance(doc: Document) -> Iterator[Said]:
    for name, pattern in _CLOUD:
        if found := pattern.search(doc.flat):
            line = doc.line_at(found.start()).number
            yield Said("gpus", (Gpu(index=0, name=name),), line, Rank.PROSE, _AUTHOR)
            return


_MESSAGES = (
    (("nvidia-smi",), _level),
    (("does not match dso",), _mismatch),
    (("l4t", "(release), revision"), _board),
    (("xlarge", "-highgpu", "g2-standard", "_t4", "nc6"), _instance),
)
"""Words that stand in each message, and who reads it."""
