"""Texts in other languages than English: English template -> translated template."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cudadoctor.findings import Diagnosis, Finding

LANGUAGES = ("en", "es")


class Language:
    """Translates templates; what has no translation stays English."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def __call__(self, template: str, **values: object) -> str:
        """The translated template with its values filled in."""
        translated = self._table.get(template, template)
        return translated.format(**values) if values else translated

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis with the texts of its findings translated."""
        if not self._table:
            return diagnosis
        findings = tuple(self._finding(one) for one in diagnosis.findings)
        return msgspec.structs.replace(diagnosis, findings=findings)

    def _finding(self, one: Finding) -> Finding:
        title, why = (self._table.get(text) for text in one.templates)
        return msgspec.structs.replace(
            one,
            title=title.format_map(one.values) if title else one.title,
            why=why.format_map(one.values) if why else one.why,
        )


@cache
def language(name: str) -> Language:
    """The language of that name; English needs no table."""
    if name == "en":
        return Language({})
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    file = Path(__file__).parent / "locale" / f"{name}.toml"
    return Language(tomllib.loads(file.read_text(encoding="utf-8")))
