"""The tables of words and phrases name only what the model and the readers have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cudadoctor.model.machine import Gpu, Install
from cudadoctor.reports import dumps, values
from cudadoctor.reports.installs import SENTENCES
from cudadoctor.reports.phrases import PHRASES, Phrase
from cudadoctor.reports.statements import stated

OF_A_GPU = {"gpu", "name", "cc", "memory", "memory_used", "count", "index"}
OF_A_NODE = {"mode", "path", "group"}


def rows() -> Iterator[Phrase]:
    for phrases in PHRASES.values():
        yield from phrases


def constant(template: Any) -> Any:
    """A template with a value that every type takes in the place of the text."""
    if isinstance(template, dict):
        return {name: constant(part) for name, part in template.items()}
    if isinstance(template, list):
        return [constant(part) for part in template]
    return "11" if template == "$" else template


def test_each_group_of_a_phrase_means_something() -> None:
    known = {*values.WORDS.groups, *values.WORDS.choices, *values.GROUPS, *OF_A_GPU, *OF_A_NODE}
    for row in rows():
        assert set(re.compile(row.pattern).groupindex) <= known, row.pattern


def test_each_row_states_what_the_model_has() -> None:
    facts = [row.facts for row in rows()]
    facts += [values.WORDS.python[words] for words in values.WORDS.python]
    facts += [*values.WORDS.subdirs.values()]
    facts += [chosen for texts in values.WORDS.choices.values() for chosen in texts.values()]
    for fact in facts:
        assert len(list(stated(1, "a test", fact))) == len(fact)


@pytest.mark.parametrize("name", sorted(set(values.WORDS.groups) - {"flavour", "container"}))
def test_each_group_takes_its_text_to_the_models_type(name: str) -> None:
    template = constant(values.WORDS.groups[name])
    assert list(stated(1, "a test", template))


def test_each_field_of_a_dump_has_a_reader() -> None:
    fields = {field for dump in (dumps.COLLECT_ENV, *dumps.DUMPS) for field in dump.sure.values()}
    fields |= {field for dump in dumps.DUMPS for field in dump.common.values()}
    unread = fields - dumps.LINES.keys() - dumps.BLOCKS.keys()
    assert {field.partition(" ")[0] for field in unread} <= {"package"}


def test_each_sentence_of_an_installer_states_fields_of_an_install() -> None:
    for tool, sentences in SENTENCES.items():
        for sentence in sentences:
            assert msgspec.convert({"tool": tool, **sentence.fields}, Install).tool == tool


def test_each_label_of_nvidia_smi_is_a_field_of_a_gpu() -> None:
    from cudadoctor.reports.smi import labels

    fields = {*labels().columns.values(), *labels().pages.values()}
    assert fields <= set(Gpu.__struct_fields__)
