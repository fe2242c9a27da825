"""Questions to torch and their answers: sessions of Python, notebooks and one-liners.

An answer stands behind the question on its line, or on a line of its own below. Several questions
that are printed together have their answers in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from cudadoctor.model.machine import Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.telling import Rank, Said

if TYPE_CHECKING:
    from cudadoctor.knowledge import Knowledge

Facts = Callable[[str], values.Pairs]

_WORDS = (
    ("torch.__version__", "version"),
    ("torch.version.__version__", "version"),
    ("torch.version.cuda", "cuda"),
    ("torch.version.hip", "hip"),
    ("torch.cuda.is_available", "available"),
    ("torch.cuda.device_count", "count"),
    ("torch.cuda.get_device_name", "name"),
    ("torch.cuda.get_device_capability", "capability"),
    ("torch.cuda.get_arch_list", "archs"),
    ("torch.backends.cudnn.version", "cudnn"),
    ("torch.backends.cudnn.enabled", "switch"),
    ("torch.cuda.current_device", "number"),
    ("torch.cuda.nccl.version", "other"),
    ("sys.version", "python"),
    ("platform.python_version", "python"),
)
_ASKED = re.compile(
    r"(?<![\w.])(torch\.(?:version\.)?__version__|torch\.version\.(?:cuda|hip)"
    r"|torch\.cuda\.(?:is_available|device_count|get_device_name|get_device_capability|get_arch_list"
    r"|current_device)|torch\.cuda\.nccl\.version|torch\.backends\.cudnn\.(?:version|enabled)"
    r"|sys\.version|platform\.python_version)(?![\w.])(?:\([\w\".: ]{0,30}\))?"
)
_KIND = dict(_WORDS)
_SAME_LINE = re.compile(
    r"[)'\"`\s*]{0,4}(?:=>|->|→|:|==?|,|#|//|returns?|is|gives?|shows?|prints?|outputs?)"
    r"[\s:=>'\"`*]{0,6}(?P<answer>\S.{0,120})"
)
_PROMPT = re.compile(
    r"\s{0,8}(?:>>>|\.\.\.|\$|In ?\[\d{0,4}\]:|#|\(\w{1,30}\) |PS |[A-Z]:\\|[\w-]{1,30}@)"
)
_OUT = re.compile(r"\s{0,8}Out ?\[\d{0,4}\]: ?")
LONGEST_LINE = 1500
_FAR = 6
"""Lines below a question in which its answer may stand."""


def read_transcripts(doc: Document, _: Knowledge) -> Iterator[Said]:
    """Answers of torch that a person asked for by hand."""
    if not any(words in doc.low for words, _ in _WORDS[:10]):
        return
    pending: list[str] = []
    asked_at = 0
    for index, line in enumerate(doc.lines):
        if len(line.text) > LONGEST_LINE:
            continue
        asked = [_KIND[one[1]] for one in _ASKED.finditer(line.text)]
        if asked:
            yield from _beside(line.text, line.number)
            fresh = index - asked_at > _FAR or _PROMPT.match(line.text) is not None
            pending = asked if fresh and not _is_script(line.text) else pending + asked
            asked_at = index
        elif pending and line.text.strip():
            answers = _answers(line.text, pending)
            if index - asked_at > _FAR:
                pending = []
            for kind, answer in answers:
                pending = [one for one in pending if one != kind]
                yield from _said(kind, answer, line.number)


def _is_script(text: str) -> bool:
    """Whether this line is one of a program rather than a question of a session."""
    return _PROMPT.match(text) is None


def _beside(text: str, line: int) -> Iterator[Said]:
    """Answers on the line of the question: torch.cuda.is_available() -> False."""
    for one in _ASKED.finditer(text):
        behind = _SAME_LINE.match(text, one.end())
        answer = behind["answer"] if behind else ""
        if answer and _ASKED.match(answer) is None:
            yield from _said(_KIND[one[1]], answer, line)


def _answers(text: str, pending: list[str]) -> list[tuple[str, str]]:
    """Which questions a line answers: one, or all of them in their order."""
    if _PROMPT.match(text) and not _OUT.match(text):
        return []
    body = _OUT.sub("", text).strip()
    if not body or len(body) > 300:
        return []
    whole = body.strip("()") if "," in body and len(pending) > 1 else body
    words = [one.strip("'\",") for one in re.split(r",\s{0,3}|\s{1,8}", whole) if one.strip("'\",")]
    if 1 < len(pending) <= len(words) and len(words) <= len(pending) + 6:
        pairs = _in_order(pending, words)
        if pairs:
            return pairs
    first = next((kind for kind in pending if _FACTS[kind](body.strip("'\""))), None)
    return [(first, body.strip("'\""))] if first else []


def _in_order(pending: list[str], words: list[str]) -> list[tuple[str, str]]:
    """Each question with its word; labels that were printed between are passed over."""
    pairs: list[tuple[str, str]] = []
    place = 0
    for kind in pending:
        found = next((n for n in range(place, len(words)) if _answers_kind(kind, words[n])), None)
        if found is None:
            return []
        pairs.append((kind, words[found]))
        place = found + 1
    return pairs


def _answers_kind(kind: str, word: str) -> bool:
    return (word == "None" and kind in ("cuda", "hip", "cudnn")) or bool(_FACTS[kind](word))


def _said(kind: str, answer: str, line: int) -> Iterator[Said]:
    for path, value in _FACTS[kind](answer):
        if path != "-":
            yield Said(path, value, line, Rank.TOOL, "an answer of torch")


def _version(text: str) -> values.Pairs:
    return values.torch_facts(text.strip("'\"` "))


def _cuda(text: str) -> values.Pairs:
    found = re.match(r"['\"]?(\d{1,2}\.\d{1,2})(?:\.\d{1,4})?['\"]?(?![\w.])", text)
    if found:
        return (
            ("torch.build", "cuda"),
            ("torch.cuda", Version(found[1])),
            ("torch.installed", True),
        )
    return (("-", "None"),) if re.match(r"None\b", text) else ()


def _available(text: str) -> values.Pairs:
    found = re.match(r"['\"`*(]{0,3}(true|false)\b", text, re.I)
    if found is None:
        return ()
    seen = found[1].lower() == "true"
    return (("torch.imported.cuda_available", seen), ("torch.imported.ok", True))


def _count(text: str) -> values.Pairs:
    found = re.match(r"(\d{1,3})(?![\d.])", text)
    return (("torch.imported.device_count", int(found[1])),) if found else ()


def _name(text: str) -> values.Pairs:
    name = values.gpu_name(text.strip("'\"` "))
    known = name and values.is_nvidia(name)
    return (("gpus", (Gpu(index=0, name=name),)),) if known else ()


def _capability(text: str) -> values.Pairs:
    found = re.match(r"\(?(\d{1,2}), ?(\d)\)?", text)
    if found is None:
        return ()
    return (("torch.imported.capabilities", (Version(f"{found[1]}.{found[2]}"),)),)


def _archs(text: str) -> values.Pairs:
    found = tuple(re.findall(r"\b(?:sm|compute)_\d{2,3}[af]?", text))
    return (("torch.archs", found),) if found else ()


def _cudnn(text: str) -> values.Pairs:
    found = re.match(r"(\d{4,6})(?!\d)", text)
    if found is None:
        return (("-", "None"),) if text.startswith("None") else ()
    number = int(found[1])
    major, rest = (
        (number // 10000, number % 10000) if number >= 90000 else (number // 1000, number % 1000)
    )
    return (("torch.imported.cudnn", f"{major}.{rest // 100}.{rest % 100}"),)


def _hip(text: str) -> values.Pairs:
    found = re.match(r"['\"]?(\d{1,2}\.\d[\w.-]{0,30})", text)
    return (("torch.build", "rocm"), ("torch.hip", found[1])) if found else ()


def _switch(text: str) -> values.Pairs:
    return (("-", text),) if text.startswith(("True", "False")) else ()


def _number(text: str) -> values.Pairs:
    return (("-", text),) if re.match(r"\d{1,3}(?![\d.])", text) else ()


_FACTS: dict[str, Facts] = {
    "version": _version,
    "cuda": _cuda,
    "hip": _hip,
    "available": _available,
    "count": _count,
    "name": _name,
    "capability": _capability,
    "archs": _archs,
    "cudnn": _cudnn,
    "switch": _switch,
    "number": _number,
    "python": values.python_facts,
    "other": lambda text: (("-", text),) if text.startswith("(") else (),
}
