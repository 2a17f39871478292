"""What the demo shows: a table per run that grows with every turn, the hit rates, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..parsers import Parsers
from .replay import Row, best_hit_rate, hit_rate
from .session import Session


class Report:
    """Collects the rows of all runs of one session."""

    def __init__(self, console: Console, session: Session, seed: int | None, *, engine: str, block_size: int) -> None:
        self._console = console
        self._session = session
        self._spelling = "the session's own tokens" if seed is None else f"random tokens, seed {seed}"
        self._engine = engine
        self._block_size = block_size
        self._rows: dict[str, list[Row]] = {}

    @contextmanager
    def run(self, name: str, chosen: Parsers) -> Iterator[Callable[[Row], None]]:
        """Shows a run's table while it grows; hands out what takes its rows."""
        rows = self._rows[name] = []
        table = self._table(f"{name}: --tool-call-parser {chosen.tool} --reasoning-parser {chosen.reasoning}")

        def on_row(row: Row) -> None:
            rows.append(row)
            table.add_row(*_cells(row))

        if self._console.is_terminal:
            with Live(table, console=self._console, refresh_per_second=4):
                yield on_row
        else:
            yield on_row
            self._console.print(table)

    def _table(self, title: str) -> Table:
        caption = (
            f"{self._session.name}, {len(self._session.turns)} turns, {self._spelling}; blocks of {self._block_size}"
        )
        table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
        for heading in ("turn", "prompt", "reusable", "kept", "cached", "possible"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("mode")
        table.add_column("prefix", ratio=1)
        return table

    def _faults(self) -> tuple[list[int], list[int]]:
        """Turns in which ours did not keep every token; in which it did not cache the most possible."""
        figures = [row.figures for row in self._rows["prr"]]
        wrong = [f.turn for f in figures if not f.prefix_exact]
        return wrong, [f.turn for f in figures if f.cached_tokens != f.max_cached_tokens]

    @property
    def kept(self) -> bool:
        """Whether ours kept every token and cached the most possible."""
        return not any(self._faults())

    def verdict(self) -> None:
        """Print the hit rates and what they mean."""
        stock, prr = self._rows["stock"], self._rows["prr"]
        wrong, missed = self._faults()
        lost = sum(r.figures.reusable_tokens - r.figures.kept_tokens for r in stock)
        exact = sum(r.figures.prefix_exact for r in stock)
        say = self._console.print
        say(f"stock kept every token in {exact} of {len(stock)} turns and left {lost} behind", highlight=False)
        if wrong:
            say(f"[red]prr did not keep every token in turns {wrong}[/]", highlight=False)
        if missed:
            say(f"[red]prr did not cache the most possible in turns {missed}[/]", highlight=False)
        if self.kept:
            say(f"prr kept every token and cached the most possible in all {len(prr)} turns", highlight=False)
        say(
            f"[bold]prefix-cache hit rate: {hit_rate(stock):.1%} -> {hit_rate(prr):.1%}[/]"
            f" (most possible {best_hit_rate(prr):.1%})",
            highlight=False,
        )

    def document(self) -> dict[str, Any]:
        """The figures."""
        return {
            "engine": self._engine,
            "model": self._session.model,
            "block_size": self._block_size,
            "runs": {name: [asdict(row.figures) for row in rows] for name, rows in self._rows.items()},
            "hit_rate": {name: hit_rate(rows) for name, rows in self._rows.items()},
        }


def write(out: Path, reports: Sequence[Report]) -> None:
    """The figures as JSON: those of the first report, and of the others (other block sizes) under `also`."""
    first, *others = (report.document() for report in reports)
    document = {**first, "also": others} if others else first
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _cells(row: Row) -> list[str]:
    figures = row.figures
    numbers = (figures.turn, figures.prompt_tokens, figures.reusable_tokens, figures.kept_tokens, figures.cached_tokens)
    mode = "stream" if figures.streaming else "whole"
    if row.finish_reason == "length":
        mode += ", cut"
    if figures.turn == 1:
        prefix = "-"
    elif figures.prefix_exact:
        prefix = "[green]exact[/]"
    else:
        prefix = f"[red]{escape(figures.drift or '')}[/]"
    if row.outcome:
        prefix += f" [dim]({escape(row.outcome)})[/]"
    short = figures.cached_tokens < figures.max_cached_tokens
    cells = [str(number) for number in numbers]
    return [*cells, f"[red]{figures.max_cached_tokens}[/]" if short else str(figures.max_cached_tokens), mode, prefix]
