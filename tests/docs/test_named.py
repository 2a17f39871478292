"""Whatever a page names exists: links, paths, make targets, commands and their options, variables, parsers, imports."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from prr_plugins.cli.app import app
from prr_plugins.common import bridge, matching, parsing, prompts, store
from prr_plugins.common.parsing.formats import FORMATS
from prr_plugins.common.settings import NOT_SETTINGS, SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
_PATH = re.compile(r"(?<![\w/.-])(?:prr_plugins|testing|tests|docs|tools|benchmarks|\.ci)/[\w./*-]*")


def _fences(text: str) -> Iterator[tuple[str, str]]:
    for found in _FENCE.finditer(text):
        yield found[2], found[3]


def _prose(text: str) -> str:
    return _FENCE.sub("", text)


def _code(text: str) -> list[str]:
    """Lines of code blocks, without their comments, and spans of code."""
    lines = [line.partition(" #")[0] for _, block in _fences(text) for line in block.splitlines()]
    return lines + [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _prose(text))]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", h).lower()).strip().replace(" ", "-") for h in headings}


@each_page
def test_links_resolve(page: Path) -> None:
    for found in _LINK.finditer(_prose(page.read_text(encoding="utf-8"))):
        target = found[1] or found[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), target
        assert to.is_relative_to(ROOT), target
        if anchor and to.suffix == ".md":
            assert anchor in _anchors(to), target


@each_page
def test_paths_exist(page: Path) -> None:
    for code in _code(page.read_text(encoding="utf-8")):
        for path in _PATH.findall(code):
            assert any(ROOT.glob(path.rstrip("./"))), path


def _targets() -> set[str]:
    rules = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    return {target for rule in rules for target in rule.split()}


@each_page
def test_make_targets_exist(page: Path) -> None:
    for code in _code(page.read_text(encoding="utf-8")):
        for target in re.findall(r"(?:^|[;&] *)make ([a-z][\w-]*)", code):
            assert target in _targets(), code


def test_make_help_lists_every_target_that_readme_names() -> None:
    told = set(re.findall(r"^# make ([a-z-]+)", (ROOT / "Makefile").read_text(), re.M))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8")
        named = {t for code in _code(text) for t in re.findall(r"(?:^|[;&] *)make ([a-z][\w-]*)", code)}
        assert named - told <= {"help", "format"}


@each_page
def test_commands_exist(page: Path) -> None:
    """`prr COMMAND [COMMAND] --option`, in a span of code or at the start of a line of a code block."""
    root = typer.main.get_command(app)
    for code in _code(page.read_text(encoding="utf-8")):
        words = code.strip().split()
        if len(words) < 2 or words[0] != "prr" or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        command = root
        for word in words[1:]:
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, code
            command = command.commands[word]
        options = {option for parameter in command.params for option in parameter.opts}
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
            assert option in options | {"--help"}, code


@each_page
def test_variables_exist(page: Path) -> None:
    known = {setting.variable for setting in SETTINGS} | NOT_SETTINGS
    known |= set(re.findall(r"\bPRR_[A-Z_]+\b", (ROOT / "tools" / "setup_engine.py").read_text()))
    for name, wildcard in re.findall(r"\b(PRR_[A-Z_]+)(\*?)", page.read_text(encoding="utf-8")):
        assert any(other.startswith(name) for other in known) if wildcard else name in known, name


@each_page
def test_metrics_exist(page: Path) -> None:
    known = "".join(path.read_text() for path in (ROOT / "prr_plugins" / "common").rglob("*.py"))
    for name in re.findall(r"`(prr_\w+_total)\b", page.read_text(encoding="utf-8")):
        assert name in known, name


@each_page
def test_imports_exist(page: Path) -> None:
    for language, block in _fences(page.read_text(encoding="utf-8")):
        if language != "python" or "import" not in block:
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prr_plugins"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_readme_names_every_parser() -> None:
    (said,) = re.findall(r"^Parsers: (.*?)\.\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert set(re.findall(r"`(prr_\w+)`", said)) == set(FORMATS)


def test_index_and_site_list_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        if name != "index.md":
            assert f"]({name})" in index, name
        assert re.search(rf"(?:: |- ){re.escape(name)}$", navigation, re.M), name


@pytest.mark.parametrize("room", [parsing, bridge, prompts, store, matching], ids=lambda room: room.__name__)
def test_the_reference_holds_every_public_name(room: ModuleType) -> None:
    name = room.__name__
    page = (DOCS / "reference" / f"{name.rpartition('.')[2]}.md").read_text(encoding="utf-8")
    shown = set(re.findall(rf"^::: {re.escape(name)}\.(\w+)$", page, re.M))
    assert shown == set(room.__all__)


def test_at_most_ten_words_of_our_own() -> None:
    _, _, words = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Words\n")
    assert len(re.findall(r"^\| (?!word |---)", words, re.M)) <= 10
