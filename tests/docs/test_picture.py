"""README's picture and figures are those of docs/demo.json, which `make demo` wrote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import picture  # noqa: E402

DEMO: dict[str, Any] = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def _sum(run: str, field: str) -> int:
    return sum(turn[field] for turn in DEMO["runs"][run])


def test_the_figures_agree_with_each_other() -> None:
    for run in picture.RUNS:
        assert DEMO["hit_rate"][run] == _sum(run, "cached_tokens") / _sum(run, "prompt_tokens")
        assert all(turn["cached_tokens"] <= turn["max_cached_tokens"] for turn in DEMO["runs"][run])
    assert [turn["turn"] for turn in DEMO["runs"]["prr"]] == list(range(1, len(DEMO["runs"]["stock"]) + 1))


@pytest.mark.parametrize("theme", picture.THEMES)
def test_the_picture_is_drawn_from_the_figures(theme: str) -> None:
    drawn = (ROOT / "docs" / f"demo-{theme}.svg").read_text(encoding="utf-8")
    assert drawn == picture.draw(DEMO, picture.THEMES[theme]), "run: make picture DEMO=docs/demo.json"


def test_every_bar_is_as_high_as_its_figure() -> None:
    root = ElementTree.fromstring(picture.draw(DEMO, picture.THEMES["light"]))
    most = max(turn["reusable_tokens"] for run in picture.RUNS for turn in DEMO["runs"][run])
    bars = {}
    for group in root.iter(f"{SVG}g"):
        told = group.find(f"{SVG}title")
        assert told is not None
        assert told.text is not None
        turn, run = re.fullmatch(r"turn (\d+), (\w+): .*", told.text).groups()  # type: ignore[union-attr]
        bars[int(turn), run] = [float(rect.attrib["height"]) for rect in group.iter(f"{SVG}rect")]
    per_token = (picture.BOTTOM - picture.TOP) / most
    for run in picture.RUNS:
        for turn in DEMO["runs"][run]:
            if turn["reusable_tokens"]:
                heights = [turn["cached_tokens"] * per_token, turn["reusable_tokens"] * per_token]
                assert bars.pop((turn["turn"], run)) == pytest.approx(heights, abs=0.1)
    assert not bars


def test_the_title_states_the_result() -> None:
    root = ElementTree.fromstring((ROOT / "docs" / "demo-light.svg").read_text(encoding="utf-8"))
    stock, prr = (f"{DEMO['hit_rate'][run]:.1%}" for run in picture.RUNS)
    assert root.findtext(f"{SVG}title") == f"Prefix-cache hit rate: {stock} → {prr}"


def test_no_figures_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(picture, "DOCS", tmp_path)
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for source, said in ((tmp_path / "none.json", "run make demo first"), (wrong, "holds no figures of a demo")):
        monkeypatch.setattr(sys, "argv", ["picture.py", str(source)])
        assert picture.main() == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.json"]


def test_readme_says_what_was_measured() -> None:
    stock, prr = DEMO["runs"]["stock"], DEMO["runs"]["prr"]
    text = " ".join(README.split())
    rates = {f"{DEMO['hit_rate'][run]:.1%}" for run in picture.RUNS}
    assert set(re.findall(r"\d+(?:\.\d+)?%", text)) == rates
    exact = sum(turn["prefix_exact"] for turn in stock)
    left = sum(turn["reusable_tokens"] - turn["kept_tokens"] for turn in stock)
    assert f"stock kept every token in {exact} of {len(stock)} turns and left {left} tokens behind" in text
    assert all(turn["prefix_exact"] and turn["cached_tokens"] == turn["max_cached_tokens"] for turn in prr)
    assert f"prr kept every token in all {len(prr)} turns" in text
    assert f"whole blocks of {DEMO['block_size']} tokens" in text
    longer, shorter = _sum("prr", "prompt_tokens"), _sum("stock", "prompt_tokens")
    computed = [_sum(run, "prompt_tokens") - _sum(run, "cached_tokens") for run in ("prr", "stock")]
    assert f"{longer} tokens instead of {shorter}" in text
    assert f"the engine computed {computed[0]} instead of {computed[1]}" in text
