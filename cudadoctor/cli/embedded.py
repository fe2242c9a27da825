"""A facts document inside other text: an issue into which somebody pasted it."""

from __future__ import annotations

import json
import re

from cudadoctor.model import factfile
from cudadoctor.model.machine import Machine
from cudadoctor.reports.document import decoded

_START = re.compile(r'\{\s{0,20}"(?:schema|cudadoctor)"\s{0,5}:')
_QUOTED = re.compile(r"^[ \t]{0,8}>[ ]?", re.M)
_MOST = 20
"""Beginnings that are tried: a document is one of the first, or there is none."""


def facts_in(data: bytes) -> Machine | None:
    """The machine of the first facts document, or check, in a text; None where there is none.

    Several documents one behind the other are a list of reports, not one.
    """
    if b'"schema"' not in data.replace(b"\0", b""):
        return None
    text = decoded(data)
    return _first(text) or (_first(_QUOTED.sub("", text)) if ">" in text else None)


def _first(text: str) -> Machine | None:
    decoder = json.JSONDecoder()
    for found in list(_START.finditer(text))[:_MOST]:
        try:
            plain, end = decoder.raw_decode(text, found.start())
            machine = factfile.from_document(plain)
        except (ValueError, RecursionError):
            continue
        return None if _START.match(text[end : end + 80].lstrip()) else machine
    return None
