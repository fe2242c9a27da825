"""Questions to torch and their answers: sessions of Python, notebooks and one-liners.

An answer stands behind the question on its line, or on a line of its own below. Several questions
that are printed together have their answers in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cudadoctor.model.machine import Gpu
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.said import Facts, Said, gated, stated

_KIND = {
    "torch.__version__": "version",
    "torch.version.__version__": "version",
    "torch.version.cuda": "cuda",
    "torch.version.hip": "hip",
    "torch.cuda.is_available": "available",
    "torch.cuda.device_count": "count",
    "torch.cuda.get_device_name": "name",
    "torch.cuda.get_device_capability": "capability",
    "torch.cuda.get_arch_list": "archs",
    "torch.backends.cudnn.version": "cudnn",
    "torch.backends.cudnn.enabled": "switch",
    "torch.cuda.current_device": "number",
    "torch.cuda.nccl.version": "other",
    "sys.version": "python",
    "platform.python_version": "python",
}
_ASKED = re.compile(
    r"(?<![\w.])(torch\.(?:version\.)?__version__|torch\.version\.(?:cuda|hip)"
    r"|torch\.cuda\.(?:is_available|device_count|get_device_name|get_device_capability|get_arch_list"
    r"|current_device)|torch\.cuda\.nccl\.version|torch\.backends\.cudnn\.(?:version|enabled)"
    r"|sys\.version|platform\.python_version)(?![\w.])(?:\([\w\".: ]{0,30}\))?"
)
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


@gated(*(words for words in _KIND if words.startswith("torch.")))
def read_transcripts(doc: Document) -> Iterator[Said]:
    """Answers of torch that a person asked for by hand."""
    pending: list[str] = []
    asked_at = 0
    for index, (number, text) in enumerate(doc.lines):
        if len(text) > LONGEST_LINE:
            continue
        questions = list(_ASKED.finditer(text))
        if questions:
            yield from _beside(text, questions, number)
            asked = [_KIND[question[1]] for question in questions]
            # A question behind a prompt is one of a session; others may be lines of a program.
            pending = asked if _PROMPT.match(text) else pending + asked
            asked_at = index
        elif pending and text.strip():
            answers = _answers(text, pending)
            if index - asked_at > _FAR:
                pending = []
            for kind, answer in answers:
                pending = [waiting for waiting in pending if waiting != kind]
                yield from _stated(kind, answer, number)


def _beside(text: str, questions: list[re.Match[str]], line: int) -> Iterator[Said]:
    """Answers on the line of the question: torch.cuda.is_available() -> False."""
    for question in questions:
        behind = _SAME_LINE.match(text, question.end())
        if behind and not _ASKED.match(behind["answer"]):
            yield from _stated(_KIND[question[1]], behind["answer"], line)


def _answers(text: str, pending: list[str]) -> list[tuple[str, str]]:
    """Which questions a line answers: one, or all of them in their order."""
    if _PROMPT.match(text) and not _OUT.match(text):
        return []
    body = _OUT.sub("", text).strip()
    if not body or len(body) > 300:
        return []
    whole = body.strip("()") if "," in body and len(pending) > 1 else body
    words = [bare for word in re.split(r",\s{0,3}|\s{1,8}", whole) if (bare := word.strip("'\","))]
    if 1 < len(pending) <= len(words) <= len(pending) + 6 and (pairs := _in_order(pending, words)):
        return pairs
    bare = body.strip("'\"")
    return [(kind, bare) for kind in pending if _FACTS[kind](bare)][:1]


def _in_order(pending: list[str], words: list[str]) -> list[tuple[str, str]]:
    """Each question with its word; labels that were printed between are passed over."""
    pairs: list[tuple[str, str]] = []
    rest = iter(words)
    for kind in pending:
        word = next((word for word in rest if _FACTS[kind](word)), None)
        if word is None:
            return []
        pairs.append((kind, word))
    return pairs


def _stated(kind: str, answer: str, line: int) -> Iterator[Said]:
    facts = {path: value for path, value in _FACTS[kind](answer).items() if path != _NO_FACT}
    return stated(line, "an answer of torch", facts)


# --- answers by their kind -----------------------------------------------------------------------

_NO_FACT = "-"
_ANSWERED: Facts = {_NO_FACT: None}
"""What is an answer and says nothing that counts."""


def _cuda(text: str) -> Facts:
    if found := re.match(r"['\"]?(\d{1,2}\.\d{1,2})(?:\.\d{1,4})?['\"]?(?![\w.])", text):
        cuda = values.release(found[1])
        return {"torch.build": "cuda", "torch.cuda": cuda, "torch.installed": True}
    return _ANSWERED if re.match(r"None\b", text) else {}


def _available(text: str) -> Facts:
    found = re.match(r"['\"`*(]{0,3}(true|false)\b", text, re.I)
    if found is None:
        return {}
    seen = found[1].lower() == "true"
    return {"torch.imported.cuda_available": seen, "torch.imported.ok": True}


def _count(text: str) -> Facts:
    found = re.match(r"(\d{1,3})(?![\d.])", text)
    return {"torch.imported.device_count": int(found[1])} if found else {}


def _name(text: str) -> Facts:
    name = values.gpu_name(text.strip("'\"` "))
    return {"gpus": (Gpu(index=0, name=name),)} if name and values.is_nvidia(name) else {}


def _capability(text: str) -> Facts:
    found = re.match(r"\(?(\d{1,2}, ?\d)\)?", text)
    return {"torch.imported.capabilities": (values.dotted(found[1]),)} if found else {}


def _archs(text: str) -> Facts:
    found = tuple(re.findall(r"\b(?:sm|compute)_\d{2,3}[af]?", text))
    return {"torch.archs": found} if found else {}


def _cudnn(text: str) -> Facts:
    found = re.match(r"(\d{4,6})(?!\d)", text)
    if found is None:
        return _ANSWERED if text.startswith("None") else {}
    number = int(found[1])
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return {"torch.imported.cudnn": f"{major}.{rest // 100}.{rest % 100}"}


def _hip(text: str) -> Facts:
    if text == "None":
        return _ANSWERED
    found = re.match(r"['\"]?(\d{1,2}\.\d[\w.-]{0,30})", text)
    return {"torch.build": "rocm", "torch.hip": found[1]} if found else {}


_FACTS: dict[str, Callable[[str], Facts]] = {
    "version": lambda text: values.torch_facts(text.strip("'\"` ")),
    "cuda": _cuda,
    "hip": _hip,
    "available": _available,
    "count": _count,
    "name": _name,
    "capability": _capability,
    "archs": _archs,
    "cudnn": _cudnn,
    "switch": lambda text: _ANSWERED if text.startswith(("True", "False")) else {},
    "number": lambda text: _ANSWERED if re.match(r"\d{1,3}(?![\d.])", text) else {},
    "python": values.python_facts,
    "other": lambda text: _ANSWERED if text.startswith("(") else {},
}
