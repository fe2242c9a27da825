"""Texts in other languages than English: English template -> translated template."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from cudadoctor.model.findings import Diagnosis, Finding

_BOUNDARY = re.compile(r"(?<=\.) (?=[A-Z{]|torch )")
"""Between two sentences; in a template the second one may begin with a value, or as it is."""
_LEAST_LETTERS = 6
"""A template with fewer letters of its own could have made almost any text."""
_LONGEST = 2000
"""A longer text is no sentence of ours, and every template would be tried at each of its places."""


class Language:
    """Translates templates; what has no translation stays English."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table
        self._patterns = _patterns(table)

    def __call__(self, template: str, **values: object) -> str:
        """The translated template with its values filled in."""
        translated = self._table.get(template, template)
        return translated.format(**values) if values else translated

    def spoken(self, text: str) -> str:
        """A text whose values are filled in already, by the template that it was made from."""
        if not self._table or not text or len(text) > _LONGEST:
            return text
        sentences = _BOUNDARY.split(text)
        whole = self._matched(text, len(sentences))
        return whole or " ".join(self._matched(sentence, 1) or sentence for sentence in sentences)

    def _matched(self, text: str, sentences: int) -> str | None:
        """By a template of that many sentences: no value of a shorter one holds the rest."""
        if text in self._table:
            return self._table[text]
        for pattern, template in self._patterns:
            if len(_BOUNDARY.split(template)) < sentences:
                continue
            if found := pattern.fullmatch(text):
                # A value may be a sentence itself; it is shorter than what it stands in.
                values = {name: self.spoken(value) for name, value in found.groupdict().items()}
                return self._table[template].format_map(values)
        return None

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis with the texts of its findings translated."""
        if not self._table:
            return diagnosis
        findings = tuple(self._finding(finding) for finding in diagnosis.findings)
        return replace(diagnosis, findings=findings)

    def _finding(self, finding: Finding) -> Finding:
        title, why = (self._table.get(text) for text in finding.templates)
        values = {name: self.spoken(value) for name, value in finding.values.items()}
        return replace(
            finding,
            title=title.format_map(values) if title else self.spoken(finding.title),
            why=why.format_map(values) if why else self.spoken(finding.why),
        )


def _patterns(table: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Templates with values, as patterns of what they make; the most telling first."""
    cut = [(re.split(r"\{(\w+)\}", template), template) for template in table]
    with_values = [
        (sum(map(len, pieces[::2])), pieces, template)
        for pieces, template in cut
        if len(pieces) > 1
    ]
    return [
        (re.compile(_pattern(template), re.DOTALL), template)
        for letters, _, template in sorted(with_values, reverse=True)
        if letters >= _LEAST_LETTERS
    ]


def _pattern(template: str) -> str:
    """What the template makes; a value that stands twice is the same in both places."""
    named = set()

    def value(found: re.Match[str]) -> str:
        again = found[1] in named
        named.add(found[1])
        return f"(?P={found[1]})" if again else f"(?P<{found[1]}>.+?)"

    return re.sub(r"\\\{(\w+)\\\}", value, re.escape(template))


@cache
def language(name: str, *parts: str) -> Language:
    """The language of that name; English needs no table. parts: further tables, read on demand."""
    if name == "en":
        return Language({})
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, str] = {}
    for stem in (name, *(f"{name}_{part}" for part in parts)):
        file = Path(__file__).parent / f"{stem}.toml"
        table |= tomllib.loads(file.read_text(encoding="utf-8"))
    return Language(table)
