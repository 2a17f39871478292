"""What the site needs beside docs/: a hook of mkdocs (see mkdocs.yml).

CONTRIBUTING.md and CHANGELOG.md stand at the root, where people and forges look for them; here they become pages of the
site. A link of a page to a file that the site does not hold (source, tests, README) becomes its text: such links are
for readers of the checkout. Links within docs/ are left alone, so `--strict` still judges them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parent.parent
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""File at the root: page of the site."""

_CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.S)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in MOVED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=links(text, ".")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in MOVED.values():
        return markdown
    return links(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def on_page_content(html: str, **_: Any) -> str:
    """A bar in a cell of a table is written `\\|`; within code Python-Markdown would show the backslash."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def links(markdown: str, folder: str) -> str:
    """`markdown` with the relative links of a page that stands in `folder` of the checkout as the site has them."""

    def link(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = posixpath.normpath(posixpath.join(folder, path))
        if target in MOVED:
            here = posixpath.relpath(folder, "docs") if folder != "." else "."
            return f"[{text}]({posixpath.relpath(MOVED[target], here)}{anchor})"
        if not target.startswith("docs/"):
            return text
        return f"[{text}]({target.removeprefix('docs/')}{anchor})" if folder == "." else found[0]

    return _LINK.sub(link, markdown)
