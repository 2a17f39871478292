"""The matrix as JSON, as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from .turns import ROWS, TITLES

COLUMNS = ("vllm", "ours_vllm", "sglang", "ours_sglang")
_HEADS = {"vllm": "vLLM", "ours_vllm": "+ prr", "sglang": "SGLang", "ours_sglang": "+ prr"}
_NAMES = {"vllm": "vLLM", "ours_vllm": "prr on vLLM", "sglang": "SGLang", "ours_sglang": "prr on SGLang"}

_REASONS = {
    "retention_template": "retention_template: the template drops old reasoning here and has no switch to keep it, and "
    "so do we by default: a planned break. PRR_RETENTION=all keeps it.",
}

Cell = Mapping[str, Any]


def report(engines: Mapping[str, str], cells: Sequence[Cell], missing: Mapping[str, str]) -> dict[str, Any]:
    """out/matrix.json. engines: name to version; missing: engine to why it did not run."""
    return {
        "engines": dict(engines),
        "not_run": dict(missing),
        "models": TITLES,
        "rows": {row.name: {"title": row.title, "what": row.what} for row in ROWS},
        "titles": _NAMES,
        "reasons": _REASONS,
        "totals": {by: _totals(cells, by) for by in COLUMNS if any(c["by"] == by for c in cells)},
        "cells": list(cells),
    }


def faults(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of ours that are not exact without a named reason (docs/refusals.md), or are by a fault of ours."""
    return [
        cell
        for cell in cells
        if cell["by"].startswith("ours") and cell["possible"]
        if cell["reason"].startswith("error_") or not (cell["exact"] or cell["reason"])
    ]


def write(made: Mapping[str, Any], folder: Path) -> None:
    """The three files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "matrix.json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "matrix.md").write_text(markdown(made), encoding="utf-8")
    (folder / "matrix.html").write_text(page(made), encoding="utf-8")


def _totals(cells: Sequence[Cell], by: str) -> dict[str, int]:
    mine = [c for c in cells if c["by"] == by and c["possible"]]
    return {
        "cells": len(mine),
        "exact": sum(c["exact"] for c in mine),
        "reusable_tokens": sum(c["reusable"] for c in mine),
        "kept_tokens": sum(c["kept"] for c in mine),
    }


def _shown(cell: Cell) -> str:
    if not cell["possible"]:
        return "·"
    if cell["cause"] and cell["cause"]["kind"] == "engine":
        return "✕"
    return "✓" if cell["exact"] else f"−{cell['reusable'] - cell['kept']}"


def _by_key(cells: Sequence[Cell]) -> dict[tuple[str, str, str], Cell]:
    return {(c["model"], c["row"], c["by"]): c for c in cells}


def _columns(made: Mapping[str, Any]) -> list[str]:
    return [by for by in COLUMNS if by in made["totals"]]


def _models(made: Mapping[str, Any]) -> list[str]:
    there = {c["model"] for c in made["cells"]}
    return [model for model in TITLES if model in there]


# ---------------------------------------------------------------------------------------- Markdown


def markdown(made: Mapping[str, Any]) -> str:
    """Tables of all cells, then every drift with its cause."""
    cells = _by_key(made["cells"])
    columns = _columns(made)
    versions = " and ".join(f"{_NAMES[e]} {v}" for e, v in made["engines"].items())
    lines = [
        "# Drift matrix",
        "",
        f"Tokens of *prompt + completion* that stand unchanged in the next prompt; {versions}. ✓: all of them. "
        "−n: the last n are lost. ·: the format has no such turn.",
        "",
    ]
    for model in _models(made):
        lines += [f"## {TITLES[model]}", "", f"| | {' | '.join(_NAMES[by] for by in columns)} |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        for row in ROWS:
            found = [cells.get((model, row.name, by)) for by in columns]
            shown = " | ".join("" if c is None else _shown(c) + _kind(c) for c in found)
            lines.append(f"| {row.title.replace('<', '&lt;')} | {shown} |")
        lines += ["", *_causes(model, cells, columns), ""]
    return "\n".join(lines)


def _kind(cell: Cell) -> str:
    if cell["cause"]:
        return f" {cell['cause']['kind']}"
    return f" `{cell['reason']}`" if cell["reason"] and cell["possible"] and not cell["exact"] else ""


def _causes(model: str, cells: Mapping[tuple[str, str, str], Cell], columns: Sequence[str]) -> Iterator[str]:
    for row in ROWS:
        for by in columns:
            cell = cells.get((model, row.name, by))
            if cell is None or not cell["cause"]:
                continue
            cause = cell["cause"]
            where = f" (`{_location(cause['place'])}`)" if cause["place"] else ""
            what = cause["what"].replace("\n", " ").replace("<", "\\<").replace("|", "\\|")
            yield f"- {_NAMES[by]}, {row.title.replace('<', chr(92) + '<')}: **{cause['kind']}**: {what}{where}"


def _location(place: Sequence[Any]) -> str:
    file, line, _ = place
    return f"{file}:{line}" if line else str(file)


# ---------------------------------------------------------------------------------------- HTML


def page(made: Mapping[str, Any]) -> str:
    """The page. Its data is inside; nothing is loaded."""
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    data = json.dumps(made, ensure_ascii=False).replace("<", "\\u003c")  # no markup can end the script
    return template.substitute(totals=_summary(made), table=_table(made), data=data, about=html.escape(_about(made)))


def _about(made: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{_NAMES[engine]} {version}" for engine, version in made["engines"].items())
    missing = "".join(f" {_NAMES[engine]} did not run: {why}" for engine, why in made["not_run"].items())
    return f"{versions}: their own parsers, templates and renderers, real vocabularies.{missing}"


def _summary(made: Mapping[str, Any]) -> str:
    parts = []
    for by, total in made["totals"].items():
        share = 100 * total["kept_tokens"] / total["reusable_tokens"] if total["reusable_tokens"] else 0
        parts.append(
            f"<div><b>{total['exact']} / {total['cells']}</b>"
            f"<span>{html.escape(_NAMES[by])}: exact turns, {share:.1f} % of tokens</span></div>"
        )
    return f'<div class="totals">{"".join(parts)}</div>'


def _table(made: Mapping[str, Any]) -> str:
    cells = _by_key(made["cells"])
    columns, models = _columns(made), _models(made)
    heads = "".join(f'<th class="model" colspan="{len(columns)}" scope="colgroup">{TITLES[m]}</th>' for m in models)
    below = "".join(
        f'<th scope="col" class="{_classes(i, by)}">{_HEADS[by]}</th>' for _ in models for i, by in enumerate(columns)
    )
    lines = ["<table>", f"<thead><tr><td></td>{heads}</tr><tr><td></td>{below}</tr></thead><tbody>"]
    for row in ROWS:
        line = [f'<tr><th scope="row">{html.escape(row.title)}</th>']
        for model in models:
            for i, by in enumerate(columns):
                cell = cells.get((model, row.name, by))
                line.append(f'<td class="{_classes(i, "")}">{_button(cell) if cell else ""}</td>')
        lines.append("".join(line) + "</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _classes(index: int, by: str) -> str:
    return " ".join(name for name, on in (("model", index == 0), ("ours", by.startswith("ours"))) if on)


def _colour(cell: Cell) -> str:
    if cell["cause"]:
        return str(cell["cause"]["kind"])
    if not cell["possible"]:
        return "none"
    return "" if cell["exact"] else "template"


def _button(cell: Cell) -> str:
    kind = (
        cell["cause"]["kind"] if cell["cause"] else "" if cell["exact"] else "template" if cell["possible"] else "none"
    )
    key = f"{cell['model']}/{cell['row']}/{cell['by']}"
    row = next(r for r in ROWS if r.name == cell["row"])
    label = f"{TITLES[cell['model']]}, {row.title}, {_NAMES[cell['by']]}: "
    if not cell["possible"]:
        label += cell["reason"]
    else:
        label += f"{cell['kept']} of {cell['reusable']} tokens kept" + (f", {kind}" if kind else "")
    return (
        f'<button type="button" class="cell {kind}" data-cell="{html.escape(key)}" aria-label="{html.escape(label)}">'
        f"{_shown(cell)}</button>"
    )
