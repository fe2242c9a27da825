"""What the author of a report asks for in words: releases that must stay, and what worked before.

A sentence of a program ("vllm requires torch==2.6.0"), advice ("you must use ...") and a question
("should I use ...") ask for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from cudadoctor.knowledge.patterns import Pattern
from cudadoctor.model.machine import AUTHOR, BEFORE, Machine, OptStr, ProjectFile
from cudadoctor.model.requirements import normal
from cudadoctor.reports import phrases
from cudadoctor.reports.document import Document, Match
from cudadoctor.reports.packages import KNOWN, distribution
from cudadoctor.reports.statements import Rank, Statements, gated, stated

_P = r"['\"]?(?P<name>[a-z][\w-]{2,30})(?: version)?['\"]?"
_V = (
    r"(?: ?(?P<op>[=<>~]=|<|>) ?|(?: (?:at|on|to|version|is|release|be))? (?:v|version )?|[-=])"
    r"(?P<v>\d{1,4}\.\d{1,3}(?:\.\d{1,3}){0,2}(?:\.post\d{1,2})?)(?![\w-]|\.\d)"
)
_MODAL = (
    r"(?:must|have to|has to|need to|needs to|want to|prefer to|plan to|would like to|had to"
    r"|required to|supposed to|please|going to|can only|like to|forced to)"
)
_STAY = r"(?:stay|stick|remain|keep|hold|run|use|stuck|be)(?: (?:on|at|with|to|using))?"
_OURS = r"(?: (?:the|our|my|this|exactly|existing|installed|current))?"
_FIXED = (
    # we must stay on vllm==0.6.6.post1; please keep torch at 2.4.1
    Pattern(rf"(?:{_MODAL} (?:also |still )?{_STAY}|\b(?:i|we) keep){_OURS} {_P}{_V}"),
    # we are stuck on torch 2.4; I'm pinned to vllm 0.8.5
    Pattern(
        r"\b(?:i'm|we're|i am|we are|project is|team is|cluster is) "
        r"(?:stuck|locked|pinned|tied|bound|fixed|limited)(?: in)? (?:on|at|to|with)"
        rf"{_OURS} {_P}{_V}"
    ),
    # I need torch 2.6; our model requires transformers 4.46
    Pattern(
        rf"\b(?:i|we|(?:my|our) \w{{2,20}})(?: (?:really|still|also|do))? (?:need|needs|require"
        rf"|requires|depend on|depends on){_OURS} {_P}{_V}"
    ),
    # requirements said torch 2.4.1; the trainer pins torch==2.4.1
    Pattern(
        r"\b(?:requirements(?:\.txt)?|trainer|repo|repository|project|lock ?file) "
        rf"(?:say|says|said|pin|pins|pinned|asks? for|asked for|want|wants|wanted) {_P}{_V}"
    ),
    # vllm must stay at 0.8.5; torch 2.4.1 has to stay
    Pattern(rf"{_P} (?:must|has to|have to|needs to|should) (?:stay|remain|be kept|be pinned){_V}"),
    # condition: torchtext 0.18.0; our requirement from ops: vllm==0.6.6
    Pattern(rf"\b(?:condition|requirement|constraint|mandatory)(?: [\w' ]{{1,30}})?: {_P}{_V}"),
    Pattern(rf"{_P}{_V} (?:must|has to|have to|needs to) (?:stay|remain|be kept|not change)"),
)
_UNCHANGED = Pattern(
    r"(?:can(?:'t|not| not)|must not|mustn't|may not|not allowed to|(?:do not|don't) want to"
    r"|won't|will not|rather not|without|avoid|not an option to)"
    r" (?:really |simply |just |easily |currently )?"
    r"(?P<how>upgrad|updat|bump|downgrad|chang|touch|replac|mov)(?:e|es|ing)?"
    rf"{_OURS} {_P}"
)
_KEPT = Pattern(
    rf"(?:{_MODAL} (?:keep|leave|stay on|stick with|stay with){_OURS} {_P}"
    r" (?:as it is|as is|where it is|untouched|unchanged|alone)"
    rf"|{_P.replace('<name>', '<other>')} (?:must|has to|needs to) (?:stay|remain|be left|be kept)"
    r" (?:as it is|as is|where it is|untouched|unchanged|alone))"
)
_BEFORE = (
    # it was xformers 0.0.33.post1 before the upgrade; it worked with bitsandbytes 0.45.0
    Pattern(
        rf"\b(?:was|had|were on|was on|used|ran|came from) {_P}{_V}(?: [\w,]{{1,15}}){{0,2}}"
        r" (?:before|prior to|until)\b"
    ),
    Pattern(
        r"\b(?:before|previously|until)\b(?: [\w,]{1,15}){0,5} (?:was|had|were on|was on|used|ran) "
        rf"{_P}{_V}"
    ),
    Pattern(
        r"\b(?:worked|ran|works|was working|was fine|fine)(?: \w{2,12})? (?:with|on|under) "
        rf"{_P}{_V}"
    ),
    Pattern(rf"{_P}{_V} (?:worked|was working|was fine|used to work)"),
    Pattern(rf"\b(?:upgraded|updated|bumped) {_P} from (?:v)?(?P<v>\d[\w.]{{2,20}}) to\b"),
)
_ASKS_NOTHING = re.compile(
    r"(?:\b(?:do|does|did|should|shall|would|if|whether|you|users|not|never|to)|n't)"
    r"(?: (?:i|we|still|also|they|you))?(?: (?:have|need|really))? ?$"
)
_NO_PACKAGE = re.compile(r"cud|nccl|nvidia|lib|magma|intel")


@gated("stay", "keep", "need", "require", "depend", "must", "can't", "cannot", "can not", "without",
       "avoid", "want", "before", "previous", "until", "work", "upgraded", "updated", "remain",
       "pinned", "locked", "stuck", "tied", "allowed", "condition",
       "requirements", "trainer", "repo", "project", "lock",
       "constraint", "mandatory")  # fmt: skip
def read_demands(doc: Document) -> Statements:
    """Which releases must stay, and which ones worked before."""
    wanted = dict(_wanted(doc))
    before = dict(_before(doc))
    files = [
        ProjectFile(name=name, requires=tuple(found))
        for name, found in ((AUTHOR, wanted), (BEFORE, before))
        if found
    ]
    for line in list((wanted | before).values())[:1]:
        yield from stated(line, phrases.AUTHOR, {"python.files": tuple(files)}, Rank.PROSE)
    for requirement, line in wanted.items():
        name, _, release = requirement.partition("==")
        if release[:1].isdigit() and not release.endswith("*") and not name.startswith("torch"):
            facts = {"packages": (distribution(name, release),)}
            yield from stated(line, phrases.AUTHOR, facts, Rank.PROSE)


def _wanted(doc: Document) -> Iterator[tuple[str, int]]:
    """A requirement as pip writes it -> its line; "*" stands for what is installed."""
    for pattern in _FIXED:
        for found in pattern.finditer(doc.low, doc.low):
            name = _package(found["name"])
            if name and not _asks_nothing(found):
                yield f"{name}{_specifier(found)}", doc.line_of(found)
    for found in _UNCHANGED.finditer(doc.low, doc.low):
        if name := _package(found["name"]):
            up = found["how"] in ("upgrad", "updat", "bump")
            yield f"{name}{'<=' if up else '=='}*", doc.line_of(found)
    for found in _KEPT.finditer(doc.low, doc.low):
        if name := _package(found["name"] or found["other"]):
            yield f"{name}==*", doc.line_of(found)


def _before(doc: Document) -> Iterator[tuple[str, int]]:
    for pattern in _BEFORE:
        for found in pattern.finditer(doc.low, doc.low):
            name = _package(found["name"])
            if name and name != "torch":
                yield f"{name}=={found['v'].rstrip('.')}", doc.line_of(found)


def _package(text: str) -> OptStr:
    name = normal(text)
    name = "torch" if name == "pytorch" else name
    return name if KNOWN.fullmatch(name) and not _NO_PACKAGE.match(name) else None


def _asks_nothing(found: Match) -> bool:
    return _ASKS_NOTHING.search(found.string, max(0, found.start() - 24), found.start()) is not None


def _specifier(found: Match) -> str:
    """torch 2.6 is any patch of it, and 2.6.0 that one."""
    release, sign = found["v"], found["op"]
    if sign not in (None, "=="):
        return f"{sign}{release}"
    return f"=={release}.*" if release.count(".") == 1 else f"=={release}"


def with_installed(m: Machine) -> Machine:
    """The machine with the releases that must stay as they are.

    A package of which an installer found no release is one that could not be upgraded: nobody said
    that it must not.
    """
    files = m.python.files
    if m.look != "report" or not files:
        return m
    refused = {normal(re.split(r"[^\w.-]", i.refused or "")[0]) for i in m.installs or ()}
    kept = (replace(file, requires=tuple(_resolved(file.requires, m, refused))) for file in files)
    found = tuple(file for file in kept if file.requires)
    return replace(m, python=replace(m.python, files=found or None))


def _resolved(requires: Iterable[str], m: Machine, refused: set[str]) -> Iterator[str]:
    for line in requires:
        name, sign, _ = line.partition("=*") if line.endswith("=*") else (line, "", "")
        if not sign:
            yield line
            continue
        bare, here = name[:-1], m.package(name[:-1])
        version = m.torch.version.public if bare == "torch" and m.torch.version else None
        release = version or (here and here.version.partition("+")[0])
        if release and bare not in refused:
            yield f"{name}={release}"
