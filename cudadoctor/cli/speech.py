"""The language that the command line speaks. Renderers get it as an argument."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cudadoctor.locale.language import Language

LANGUAGES = ("en", "es")
_VARIABLES = ("CUDADOCTOR_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
DOCUMENTS = ("json", "sarif", "junit", "prometheus")
"""Values of --format that programs read."""
_chosen: list[str] = []


def chosen(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The language of --lang, else of the first variable that is set; a document is English."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    named = _values("--format", words)
    if "--json" in words or (named[-1:] and named[-1] in DOCUMENTS):
        return "en"
    named = _values("--lang", words)
    wanted = next(filter(None, (*named[-1:], *map(env.get, _VARIABLES))), "")
    code = re.split(r"[_.@-]", wanted.lower())[0]
    return code if code in LANGUAGES else "en"


def _values(option: str, words: Sequence[str]) -> list[str]:
    """What an option is given, without a parser."""
    named = [word for before, word in zip(("", *words), words, strict=False) if before == option]
    return named + [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]


def speak(name: str) -> None:
    """From now on, this language."""
    _chosen[:] = [name]


def code() -> str:
    """The code of the language that is spoken, for documents that name theirs."""
    return _name()


def current(*parts: str) -> Language:
    """The language that is spoken, with further tables where a command needs them."""
    from cudadoctor.locale.language import language

    return language(_name(), *parts)


def say(template: str, **values: object) -> str:
    """A sentence of the command line, with its values filled in."""
    if _name() == "en":  # a fast check loads nothing for it
        return template.format(**values) if values else template
    return current()(template, **values)


def spoken(text: str) -> str:
    """A sentence that came filled in, from a journal or a probe."""
    return text if _name() == "en" else current().spoken(text)


def _name() -> str:
    if not _chosen:
        speak(chosen(sys.argv[1:], os.environ))
    return _chosen[0]


def english(template: str, **values: object) -> str:
    """A sentence for a record, which is English; `spoken` translates it when it is shown."""
    return template.format(**values) if values else template
