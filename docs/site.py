"""A hook of MkDocs: the pages from outside docs, each where its links lead to.

The README is the home page. A link to a file that is not a page (a script) becomes its name:
the site has no copy of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    **{
        str(path.relative_to(ROOT)): str(path.relative_to(ROOT))
        for path in sorted((ROOT / "recipes").rglob("*.md"))
    },
}
"""File of the repository -> where it is on the site; files in docs lose that folder."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs."""
    from mkdocs.structure.files import File

    for source, target in OTHERS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """The name that the theme's search dialog lacks."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Let links lead to the pages of the site."""
    target = page.file.src_uri
    source = next((name for name, on_site in OTHERS.items() if on_site == target), f"docs/{target}")
    here = posixpath.dirname(target)

    def link(found: re.Match[str]) -> str:
        mark, text, path, anchor = found.groups()
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (ROOT / wanted).is_dir():
            wanted = posixpath.join(wanted, "README.md")
        on_site = OTHERS.get(wanted, wanted.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            return text
        return f"{mark}[{text}]({posixpath.relpath(on_site, here or '.')}{anchor or ''})"

    return _LINK.sub(link, markdown)
