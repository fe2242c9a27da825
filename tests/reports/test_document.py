"""Decoration around pasted text comes off, whatever put it there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudadoctor.knowledge.symptoms import by_mark, symptoms
from cudadoctor.reports.document import NotTextError, document
from cudadoctor.reports.symptoms import standing

SEARCHED = [word for row in symptoms().rows for word in row.words]

ERROR = "RuntimeError: CUDA error: out of memory"


@pytest.mark.parametrize(
    "pasted",
    [
        ERROR,
        f"> {ERROR}",
        f"> > {ERROR}",
        f"\x1b[31m{ERROR}\x1b[0m",
        f"^[[1;31m{ERROR}^[[0m",
        f"[31m{ERROR}[0m",
        f"2024-05-01T10:00:00.123Z {ERROR}",
        f"2024-05-01 10:00:00,123 {ERROR}",
        f"webui-docker-auto-1  | {ERROR}",
        f"[rank3]: {ERROR}",
        f"(Worker pid=4242) {ERROR}",
        f"train.0 [stderr] {ERROR}",
        f"<pre><code>{ERROR}</code></pre>",
        f"│ {ERROR}",
        f"\ufeff{ERROR}",
        f"{ERROR}\r",
        f" 10%|#  | 1/10\r100%|###| 10/10\r{ERROR}",
        "RuntimeError: CUDA error:\n   out of memory",
        "RuntimeError: CUDA error: out of\n> memory",
    ],
)
def test_the_error_is_whole_without_its_decoration(pasted: str) -> None:
    assert document(pasted).flat.strip() == ERROR


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_every_encoding_of_a_terminal_is_read(encoding: str) -> None:
    text = f"{ERROR}\nNVIDIA-SMI 535.104.05\n"
    assert document(text.encode(encoding)).lines[1].text == "NVIDIA-SMI 535.104.05"


def test_line_numbers_of_an_editor_come_off_and_rows_of_a_table_stay() -> None:
    numbered = "\n".join(f"{n}: step" for n in range(8, 14))
    assert {line.text for line in document(numbered).lines} == {"step"}
    row = "|   0  Tesla T4            Off  | 00000000:00:1E.0 Off |                    0 |"
    assert document(row).lines[0].text == row


def test_a_prompt_of_python_is_no_quotation() -> None:
    assert document(">>> import torch").lines[0].text == ">>> import torch"


def test_fences_and_entities_of_markdown_come_off() -> None:
    doc = document("```python\na &lt; b\n```")
    assert [line.text for line in doc.lines] == ["", "a < b", ""]


def test_a_position_leads_back_to_its_line() -> None:
    doc = document("first\n\nsecond line\nthird")
    assert doc.line_at(doc.flat.index("line")).number == 3
    assert doc.line_at(len(doc.flat)).number == 4


def test_letters_that_grow_in_lower_case_keep_their_place() -> None:
    doc = document("İİİ\nNVIDIA")
    assert doc.line_at(doc.low.index("nvidia")).number == 2


@pytest.mark.parametrize(
    "data", [b"\x7fELF\x00\x01\x02\x03" * 50, b"\x00" * 64, bytes(range(256)) * 9]
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(NotTextError):
        document(data)


def test_a_line_without_end_is_cut_in_its_middle() -> None:
    line = document("a" * 300_000 + "end").lines[0].text
    assert line.startswith("aaa")
    assert line.endswith("end")
    assert len(line) < 30_000


def test_of_a_flood_the_beginning_and_the_end_are_kept() -> None:
    doc = document("first\n" + ("x" * 49 + "\n") * 200_000 + "last")
    assert doc.lines[0].text == "first"
    assert doc.lines[-1].text == "last"
    assert len(doc.text) < 5_000_000


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("Mon Jul 14 16:25:58 2025\n+---+\n| NVIDIA-SMI 570.133.20", "2025-07-14"),
        ("[Sun May 17 15:55:50 2026] NVRM: loading", "2026-05-17"),
        ("2024-05-01T10:00:00Z a\n2024-05-03 10:00:00 b", "2024-05-03"),
        ("Active: failed since Mon 2024-07-01 14:43:57 UTC; 5s ago", "2024-07-01"),
        ("Python 3.10.7 (tags/v3.10.7:6cc6b13, Sep  5 2022, 14:08:36)", ""),
        ("Built on Wed_Jul_22_19:09:09_PDT_2020", ""),
        ("2024-13-01 10:00:00 no month", ""),
    ],
)
def test_the_day_of_a_report_is_that_of_its_latest_stamp(text: str, day: str) -> None:
    assert document(text).day == day


@given(
    text=st.text("ab_ .:-", max_size=24),
    words=st.text("ab_ .:-", min_size=1, max_size=8),
)
def test_the_search_finds_what_stands_there(text: str, words: str) -> None:
    low = document(text).low
    found = standing(low, by_mark([words]))
    assert bool(found) == (words in low)


@given(st.lists(st.sampled_from(SEARCHED), max_size=5), st.sampled_from([" ", "-", "x", ""]))
def test_the_search_overlooks_no_search_text(texts: list[str], between: str) -> None:
    doc = document(between.join(texts))
    there = standing(doc.low, symptoms().search_texts)
    assert there >= {text for text in SEARCHED if text in doc.low}
