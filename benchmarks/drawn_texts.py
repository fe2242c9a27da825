"""Draws user texts at random, to be read by people who do not know the code.

    python benchmarks/drawn_texts.py [--seed 14] [--count 40]

Prints the texts as a numbered list. The population is every sentence that has a translation (what
findings, remedies, pages, errors and help say), every page of `explain`, and every paragraph of
README, docs, CHANGELOG and the recipes. A text is drawn with its kind, kinds by their size.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LEAST_WORDS = 4


def paragraphs(text: str) -> Iterator[str]:
    """Prose only: no code, no tables, no headings."""
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    for part in re.split(r"\n\s*\n|\n(?=- )", prose):
        plain = " ".join(part.split())
        if plain and not plain.startswith(("#", "|", "<", "!", "[")):
            yield plain


def population() -> list[tuple[str, str]]:
    """(kind, text) of all that users read, in a fixed order."""
    from cudadoctor.rules.registry import explained_rules

    found = []
    for file in sorted((ROOT / "cudadoctor/locale").glob("*.toml")):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        found += [("sentence", text) for text in table]
    found += [("explain", text) for rule in explained_rules() for text in paragraphs(rule.page)]
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    documents += sorted((ROOT / "recipes").rglob("*.md"))
    found += [
        ("document", text)
        for file in documents
        for text in paragraphs(file.read_text(encoding="utf-8"))
    ]
    for file in sorted((ROOT / "recipes").rglob("*.py")):
        words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        found += [("recipe", text) for text in paragraphs(words)]
    return [pair for pair in dict.fromkeys(found) if len(pair[1].split()) >= LEAST_WORDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    everything = population()
    drawn = random.Random(options.seed).sample(everything, options.count)
    print(f"# {options.count} of {len(everything)} texts, seed {options.seed}")
    for number, (kind, text) in enumerate(drawn, 1):
        print(f"{number}. [{kind}] {text}")


if __name__ == "__main__":
    main()
