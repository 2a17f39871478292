"""The page in a real browser, and what it is made of."""

from __future__ import annotations

import html.parser
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_report import LOST, cell, sample_report

from prr_testing.browser import DOWN, ENTER, ESCAPE, RIGHT, NoBrowser, Page, browser
from prr_testing.matrix import page


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    try:
        with browser("--window-size=1400,1000") as opened:
            yield opened
    except NoBrowser as why:
        pytest.skip(str(why))


@pytest.fixture
def report() -> dict[str, Any]:
    return sample_report()


@pytest.fixture
def made(report: dict[str, Any], tmp_path: Path) -> Path:
    page.write(report, tmp_path)
    return tmp_path / "matrix.html"


def test_a_cell_opens_its_drift(window: Page, made: Path) -> None:
    window.open(made)
    assert window.text('[data-cell="glm-5.1/reasoning_newlines/vllm"]') == "−30"
    window.click('[data-cell="glm-5.1/reasoning_newlines/vllm"]')
    assert window.run("return document.getElementById('drift').open")
    assert window.text("#name") == "GLM-5.1 · newlines in reasoning · vLLM"
    assert "60 of 90 tokens" in window.text("#kept")
    assert window.text("#place") == "vllm/parser/x.py:538"
    assert window.text(".source") == "text = text.rstrip()"
    first = window.run("return [...document.querySelectorAll('.first')].map(e => [e.textContent, e.title])")
    assert first == [["↵\n↵\n", "token 60"], ["</think>", "token 60"]]
    spans = "[...document.querySelectorAll('.tokens.sampled span')]"
    odd, even, *_ = window.run(f"return {spans}.map(e => getComputedStyle(e).backgroundColor)")
    assert odd != even
    window.click("#close")
    assert not window.run("return document.getElementById('drift').open")


def test_keys_are_enough(window: Page, made: Path) -> None:
    window.open(made)
    window.run("document.querySelector('.cell').focus()")
    window.press(RIGHT + DOWN)
    where = "return document.activeElement.dataset.cell"
    assert window.run(where) == "qwen3.6/reasoning_newlines/ours_vllm"
    window.press(ENTER)
    assert window.text("#name") == "Qwen3.6 · newlines in reasoning · prr on vLLM"
    window.press(RIGHT)
    assert window.text("#name").startswith("GLM-5.1")
    window.press(ESCAPE)
    window.wait(where, "glm-5.1/reasoning_newlines/vllm")
    assert window.run("return document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 1


def test_a_link_opens_a_cell(window: Page, made: Path) -> None:
    window.open(made, "glm-5.1/reasoning_newlines/vllm")
    assert window.text("#name") == "GLM-5.1 · newlines in reasoning · vLLM"


def test_dark_and_light(window: Page, made: Path) -> None:
    window.open(made)
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = window.run(colour)
    window.click("#theme")
    assert window.run(colour) != before


def test_nothing_is_loaded_and_data_cannot_end_the_script(made: Path) -> None:
    text = made.read_text()
    assert "</script>" not in text[text.index('id="data"') : text.rindex("<script>")].removesuffix("</script>\n")
    found: list[str] = []

    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.extend(f"{tag} {name}" for name, _ in attributes if name in ("src", "href"))

    Links().feed(text)
    assert found == []


def test_every_button_says_what_it_shows(made: Path) -> None:
    text = made.read_text()
    assert 'aria-label="GLM-5.1, newlines in reasoning, vLLM: 60 of 90 tokens kept, parser"' in text
    assert 'aria-label="GPT-OSS, parallel calls, prr on vLLM: no such turn"' in text


def test_json_and_markdown_agree(made: Path, report: dict[str, Any]) -> None:
    assert json.loads((made.parent / "matrix.json").read_text()) == report
    text = (made.parent / "matrix.md").read_text()
    assert "| newlines in reasoning | −30 parser | ✓ |" in text
    assert "- vLLM, newlines in reasoning: **parser**: reasoning: lost (`vllm/parser/x.py:538`)" in text
    assert report["totals"]["vllm"] == {"cells": 60, "exact": 59, "reusable_tokens": 5400, "kept_tokens": 5370}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, False),
        ({"exact": False, "kept": 3, "reason": "retention_template"}, False),
        ({"exact": False, "kept": 3}, True),
        ({"reason": "error_bridge"}, True),
        ({"exact": False, "possible": False}, False),
    ],
)
def test_what_fails_the_run(fields: dict[str, Any], fault: bool) -> None:
    assert bool(page.faults([cell("qwen3.6", "bpe_seam", "ours_vllm", **fields)])) is fault
    assert not page.faults([cell("qwen3.6", "bpe_seam", "vllm", **LOST)]), "stock may drift"
