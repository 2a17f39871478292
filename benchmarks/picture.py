"""Draws what `make demo` measured: `make picture`.

Reads a demo's JSON, keeps a copy of it beside the pages (docs/demo.json) and draws docs/demo-light.svg and
docs/demo-dark.svg from that copy alone, so a test can hold picture and text against the figures.

Two files, not one with a `prefers-color-scheme` rule: inside an `<img>` such a rule asks the system, while GitHub and
the site have a switch of their own. GitHub reads README's `<picture>` by what the reader chose, and both know the
fragments `#gh-light-mode-only` and `#gh-dark-mode-only`.

Only the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
RUNS = ("stock", "prr")

WIDTH, HEIGHT = 860, 404
LEFT, RIGHT, TOP, BOTTOM = 64, 844, 116, 352
BAR, GAP = 22, 4
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Colours:
    """One theme. The two runs are orange and blue of Okabe and Ito's set, told apart with any kind of colour vision."""

    background: str
    text: str
    quiet: str
    grid: str
    stock: str
    prr: str


THEMES = {
    "light": Colours("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#d55e00", "#0072b2"),
    "dark": Colours("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#e69f00", "#56b4e9"),
}


def percent(share: float) -> str:
    return f"{share:.1%}"


def best_hit_rate(demo: dict[str, Any]) -> float:
    """The hit rate if every turn of ours had cached the most that is possible."""
    turns = demo["runs"]["prr"]
    return sum(turn["max_cached_tokens"] for turn in turns) / sum(turn["prompt_tokens"] for turn in turns)


def heading(demo: dict[str, Any]) -> str:
    """The result in one line."""
    return f"Prefix-cache hit rate: {percent(demo['hit_rate']['stock'])} → {percent(demo['hit_rate']['prr'])}"


def subheading(demo: dict[str, Any]) -> str:
    """What was run."""
    name, _, version = demo["engine"].replace("+cpu", " (CPU)").partition(" ")
    return (
        f"One agent session of {len(demo['runs']['prr'])} turns on {ENGINES.get(name, name)} {version}, "
        f"stock parsers beside prr. Most possible: {percent(best_hit_rate(demo))}."
    )


def draw(demo: dict[str, Any], colours: Colours) -> str:
    """The picture as SVG text: for each turn and run the reusable tokens as an outline, the cached ones filled."""
    return "\n".join(_lines(demo, colours)) + "\n"


def _lines(demo: dict[str, Any], colours: Colours) -> Iterator[str]:
    runs = {name: demo["runs"][name] for name in RUNS}
    most = max(turn["reusable_tokens"] for turns in runs.values() for turn in turns)
    step = next(s for s in (10 ** (n // 3) * (1, 2, 5)[n % 3] for n in range(30)) if most / s <= 4)
    per_token = (BOTTOM - TOP) / most
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title what" font-family="{FONT}" font-size="13">'
    )
    yield f'<title id="title">{escape(heading(demo))}</title>'
    yield f'<desc id="what">{escape(subheading(demo))} Per turn: reusable tokens and cached tokens.</desc>'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{colours.background}"/>'
    yield _text(24, 38, heading(demo), colours.text, 'font-size="22" font-weight="600"')
    yield _text(24, 62, subheading(demo), colours.quiet)
    yield from _legend(colours)
    for tokens in range(0, most + 1, step):
        y = round(BOTTOM - tokens * per_token, 1)
        stroke = colours.quiet if tokens == 0 else colours.grid
        yield f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{stroke}"/>'
        yield _text(LEFT - 8, y + 4, f"{tokens}", colours.quiet, 'text-anchor="end"')
    width = (RIGHT - LEFT) / len(runs["prr"])
    for index, pair in enumerate(zip(*runs.values(), strict=True)):
        middle = LEFT + (index + 0.5) * width
        for run, turn, left in zip(RUNS, pair, (middle - BAR - GAP / 2, middle + GAP / 2), strict=True):
            yield from _bar(run, turn, round(left, 1), per_token, colours)
        yield _text(middle, BOTTOM + 19, f"{index + 1}", colours.quiet, 'text-anchor="middle"')
        if not any(turn["reusable_tokens"] for turn in pair):
            yield _text(middle, BOTTOM - 8, "no turn yet", colours.quiet, 'text-anchor="middle" font-size="11"')
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 40, "turn", colours.quiet, 'text-anchor="middle"')
    middle = (TOP + BOTTOM) / 2
    yield _text(16, middle, "tokens", colours.quiet, f'text-anchor="middle" transform="rotate(-90 16 {middle:g})"')
    yield "</svg>"


def _bar(run: str, turn: dict[str, Any], left: float, per_token: float, colours: Colours) -> Iterator[str]:
    if not turn["reusable_tokens"]:
        return
    colour = getattr(colours, run)
    told = f"turn {turn['turn']}, {run}: {turn['cached_tokens']} of {turn['reusable_tokens']} reusable tokens cached"
    yield f"<g><title>{told}</title>"
    for tokens, paint in (
        (turn["cached_tokens"], f'fill="{colour}"'),
        (turn["reusable_tokens"], f'fill="{colour}" fill-opacity="0.08" stroke="{colour}" stroke-width="1.5"'),
    ):
        height = round(tokens * per_token, 1)
        yield f'<rect x="{left:g}" y="{BOTTOM - height:g}" width="{BAR}" height="{height:g}" {paint}/>'
    yield "</g>"


def _legend(colours: Colours) -> Iterator[str]:
    entries = (
        (
            24,
            f'fill="none" stroke="{colours.quiet}" stroke-width="1.5"',
            "reusable tokens (empty part: not cached)",
        ),
        (392, f'fill="{colours.stock}"', "cached, stock parsers"),
        (592, f'fill="{colours.prr}"', "cached, prr"),
    )
    for left, paint, label in entries:
        yield f'<rect x="{left}" y="80" width="13" height="13" {paint}/>'
        yield _text(left + 20, 91, label, colours.text)


def _text(x: float, y: float, text: str, colour: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}"{" " if more else ""}{more}>{escape(text, quote=False)}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the figures of a demo.")
    parser.add_argument(
        "demo", type=Path, nargs="?", default=ROOT / "out" / "demo.json", help="its JSON (default: out/demo.json)"
    )
    source = parser.parse_args().demo
    try:
        text = source.read_text(encoding="utf-8")
        demo = json.loads(text)
        pictures = {name: draw(demo, colours) for name, colours in THEMES.items()}
    except FileNotFoundError:
        print(f"picture: {source} is not there: run make demo first", file=sys.stderr)
        return 2
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"picture: {source} holds no figures of a demo ({type(error).__name__}: {error})", file=sys.stderr)
        return 2
    (DOCS / "demo.json").write_text(text, encoding="utf-8")
    for name, picture in pictures.items():
        (DOCS / f"demo-{name}.svg").write_text(picture, encoding="utf-8")
    print(f"{heading(demo)}: docs/demo-light.svg, docs/demo-dark.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
