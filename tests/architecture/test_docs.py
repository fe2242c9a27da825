"""The README and docs/: short, with links that lead somewhere, and a picture of today's page."""

from __future__ import annotations

import importlib.util
import re
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from cudadoctor.knowledge.symptoms import symptoms

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def test_the_readme_opens_with_a_command_that_runs_and_ci_s_command_that_tests() -> None:
    text = README.read_text(encoding="utf-8")
    blocks = [token.content for token in MarkdownIt().parse(text) if token.type == "fence"]
    last_line_of_ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert "cudadoctor check" in blocks[0]
    assert last_line_of_ci.partition(" ")[2] in blocks[1]
    assert len(text.splitlines()) <= 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        target = (page.parent / path) if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", target.read_text(encoding="utf-8"))
            assert anchor in [
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
            ]


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_causes_are_those_of_explain() -> None:
    made = _script("make").files()
    old = "python docs/make.py rewrites them"
    assert {path.name for path in DOCS.glob("causes/*")} == {
        name.rpartition("/")[2] for name in made if name.startswith("causes/")
    }, old
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: {old}"


def test_the_commands_on_the_pages_are_those_of_the_planner() -> None:
    make = _script("make")
    written = make.COMMANDS.read_text(encoding="utf-8")
    assert make.commands() == written, "python docs/make.py rewrites them"


def test_every_error_text_leads_to_its_cause() -> None:
    index = (DOCS / "causes" / "README.md").read_text(encoding="utf-8")
    rows = [row for row in symptoms().rows if row.means]
    assert len(rows) > 600
    lost = [row.key for row in rows if not any(f"({way.cause}.md)" in index for way in row.means)]
    assert not lost


def test_the_picture_shows_the_page_that_is_printed_today() -> None:
    picture = _script("picture")
    lines = picture.page(ROOT / "docs" / "picture.toml")
    drawn = (ROOT / "docs" / "check.svg").read_text(encoding="utf-8")
    words = unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", drawn))).split()
    shown = "".join(word for line in lines for word in line.text.split())
    assert "".join(words).endswith(shown), "python docs/picture.py draws it anew"
