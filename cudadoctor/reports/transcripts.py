"""Questions to torch and their answers: sessions of Python, notebooks and one-liners.

An answer stands behind the question on its line, or on a line of its own below. Several questions
that are printed together have their answers in the same order.
"""

import re

from cudadoctor.model.machine import Gpu, StrPair
from cudadoctor.reports import values
from cudadoctor.reports.document import Document
from cudadoctor.reports.statements import Facts, Statements, gated, stated

_KIND = values.WORDS.questions
"""Question -> the kind of its answer."""
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
_CODE = re.compile(
    r"\s{0,40}(?:if|elif|while|assert|for|return|raise|def)\b|[^#\n]{0,200}\)\s?[-+*/%<>]=?\s?\d"
)
"""A line of a program: what it compares and computes with is no answer."""
_PROMPT = re.compile(
    r"\s{0,8}(?:>>>|\.\.\.|\$|In ?\[\d{0,4}\]:|#|\(\w{1,30}\) |PS |[A-Z]:\\|[\w-]{1,30}@)"
)
_OUT = re.compile(r"\s{0,8}Out ?\[\d{0,4}\]: ?")
LONGEST_LINE = 1500
_FAR = 6
"""Lines below a question in which its answer may stand."""


@gated(*(words for words in _KIND if words.startswith("torch.")))
def read_transcripts(doc: Document) -> Statements:
    """Answers of torch that a person asked for by hand."""
    pending: list[str] = []
    asked_at = 0
    for index, (number, text) in enumerate(doc.lines):
        if len(text) > LONGEST_LINE:
            continue
        questions = list(_ASKED.finditer(text))
        if questions and _CODE.match(text):
            pending = []
        elif questions:
            # answers on the line of the question: torch.cuda.is_available() -> False
            for question in questions:
                behind = _SAME_LINE.match(text, question.end())
                if behind and not _ASKED.match(behind["answer"]):
                    yield from _stated(_KIND[question[1]], behind["answer"], number)
            asked = [_KIND[question[1]] for question in questions]
            # A question behind a prompt is one of a session; others may be lines of a program.
            pending = asked if _PROMPT.match(text) else pending + asked
            asked_at = index
        elif pending and text.strip():
            answers = dict(_answers(text, pending))
            near = index - asked_at <= _FAR
            pending = [kind for kind in pending if near and kind not in answers]
            for kind, answer in answers.items():
                yield from _stated(kind, answer, number)


def _answers(text: str, pending: list[str]) -> list[StrPair]:
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
    return [(kind, bare) for kind in pending if _FACTS[kind](bare) is not None][:1]


def _in_order(pending: list[str], words: list[str]) -> list[StrPair]:
    """Each question with its word; labels that were printed between are passed over."""
    rest = iter(words)
    pairs = [
        (kind, next((word for word in rest if _FACTS[kind](word) is not None), ""))
        for kind in pending
    ]
    return pairs if all(word for _, word in pairs) else []


def _stated(kind: str, answer: str, line: int) -> Statements:
    return stated(line, "output from torch", _FACTS[kind](answer) or {})


def _name(text: str) -> Facts | None:
    name = values.gpu_name(text.strip("'\"` "))
    return {"gpus": (Gpu(index=0, name=name),)} if name and values.is_nvidia(name) else None


_FACTS: dict[str, values.TextReader] = {
    **values.matchers("answers"),
    "version": lambda text: values.torch_facts(text.strip("'\"` ")) or None,
    "name": _name,
    "python": lambda text: values.python_facts(text) or None,
}
"""What an answer states by the kind of its question: {} if nothing, None if it is no answer."""
