"""Every format is named where a reader looks for it. What fails here is the list of places for a new family."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prr_plugins.common.parsing.formats import FORMATS

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page.read_text() for page in sorted((ROOT / "docs" / "formats").glob("*.md"))}
# The row of a name in the SGLang plugin; read as text, since this runs where that engine is not.
_FAMILY = re.compile(r'^    "(prr_\w+)": Family\("([^"]+)", "([^"]+)"\)', re.M)


@pytest.mark.parametrize("name", FORMATS)
def test_readme_names_it(name: str) -> None:
    assert f"`{name}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_one_page_describes_it(name: str) -> None:
    """In docs/formats/, in a table with the models and the source of the layout; readers of the site find it."""
    pages = [page for page, text in PAGES.items() if re.search(rf"^\| `{name}` \| .+ \| .+ \|$", text, re.M)]
    assert len(pages) == 1
    assert f"(formats/{pages[0]})" in (ROOT / "docs" / "index.md").read_text()
    assert f": formats/{pages[0]}\n" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_the_module_says_where_the_layout_comes_from(name: str) -> None:
    source = (ROOT / "prr_plugins" / "common" / "parsing" / "formats" / f"{FORMATS[name]}.py").read_text()
    assert source.startswith(f'"""`{name}`: ')


def test_the_table_of_sglang_is_the_plugin_s() -> None:
    rows = _FAMILY.findall((ROOT / "prr_plugins" / "sglang" / "detectors.py").read_text())
    assert rows
    text = (ROOT / "docs" / "sglang.md").read_text()
    for name, tool, reasoning in rows:
        row = re.search(rf"^\| `{name}` \| `{re.escape(tool)}` \| (.+) \|$", text, re.M)
        assert row, name
        assert f"`{reasoning}`" in row[1], name
    assert set(re.findall(r"^\| `(prr_\w+)` \|", text, re.M)) == {name for name, _, _ in rows}


@pytest.mark.parametrize("name", FORMATS)
def test_it_has_tests_of_its_own(name: str) -> None:
    tests = (ROOT / "tests" / "common" / "parsing" / "formats").glob("test_*.py")
    assert any(f'"{name}"' in path.read_text() for path in tests)
