"""Sentences in which programs and authors name facts: one row of phrases.toml each."""

import re
from functools import cache

from msgspec import Struct, convert

from cudadoctor.knowledge.patterns import Pattern
from cudadoctor.knowledge.wording import wording
from cudadoctor.model.machine import OptInt, OptStr, Strings
from cudadoctor.reports import values
from cudadoctor.reports.document import Document, Match
from cudadoctor.reports.statements import Facts, Rank, Reader, Statements, gated, stated

AUTHOR, PROGRAM = "the author", "a line printed by a program"


class Phrase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence that states facts; phrases.toml says what each field means."""

    words: Strings = ("",)
    also: str = ""
    pattern: str
    source: str = PROGRAM
    rank: Rank = Rank.TOOL
    facts: Facts = {}
    each: str = ""
    unless: OptStr = None
    reach: OptInt = None
    once: str = ""

    def means_else(self, found: Match) -> bool:
        """Whether this match is one that the row excludes."""
        if self.unless is None:
            return False
        span = (max(0, found.start() - self.reach), found.end()) if self.reach else ()
        return _compiled(self.unless).search(found.string, *span) is not None


_compiled = cache(re.compile)
_pattern_of = cache(Pattern)
PHRASES = {
    section: convert(
        [group | row for group in groups for row in group.pop("rows", [{}])], tuple[Phrase, ...]
    )
    for section, groups in wording("phrases", dict[str, list[Facts]]).items()
}
"""The phrases of each section of the table."""


def read_table(doc: Document, section: str) -> Statements:
    """What the first place of each phrase of a section states."""
    done = set()
    for phrase in PHRASES[section]:
        if phrase.once in done or not (doc.mentions(*phrase.words) and phrase.also in doc.low):
            continue
        pattern = _pattern_of(phrase.pattern)
        texts = (doc.text, doc.low_text) if pattern.of_lines else (doc.told, doc.low_told)
        matches = pattern.finditer(*texts)
        found = next(matches, None)
        if found and not phrase.means_else(found):
            done |= {phrase.once} - {""}
            facts = phrase.facts | values.facts_of(found)
            if phrase.each:
                entries: dict[object, None] = {}
                for match in (found, *matches):
                    entries |= dict.fromkeys(values.entries(match, len(entries)))
                facts = {phrase.each: sorted(entries, key=_alphabet)}
            yield from stated(doc.line_of(found), phrase.source, facts, phrase.rank)


def _alphabet(entry: object) -> str:
    return entry if isinstance(entry, str) else ""


def reader(section: str) -> Reader:
    """The reader of the phrases of a section."""

    def read(doc: Document) -> Statements:
        return read_table(doc, section)

    read.__name__ = f"read_{section}"
    return read


_XFORMERS = re.compile(
    r"(?i)xformers was built for:? ?-? ?PyTorch (?P<built>\d\S{2,40})"
    r"(?: with CUDA (?:(?P<cuda>\d{2})0?(?P<minor>\d{1,2})|None))?"
    r" \(you have (?P<have>\d\S{2,40}?)\)",
)
_XFORMERS_RELEASE = re.compile(r"(?i)\bxformers[ =:v]{1,3}(0\.0\.\d{1,3}\S{0,30})")


@gated("xformers was built for")
def read_xformers(doc: Document) -> Statements:
    """xformers names the torch that it was built for beside the one that is there."""
    if found := _XFORMERS.search(doc.flat):
        facts = values.torch_facts(found["have"].rstrip(")"))
        release = _XFORMERS_RELEASE.search(doc.flat)
        if release and (torch := values.torch_version(found["built"])):
            cuda = f"{found['cuda']}.{found['minor']}" if found["cuda"] else None
            package = {"name": "xformers", "version": release[1], "torch": torch, "cuda": cuda}
            facts["packages"] = [package]
        yield from stated(doc.line_of(found), "xformers", facts, Rank.MESSAGE)
