"""What the benchmark says: a table, the plain words that the figures allow, JSON and a plot."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .run import MODES, OPPONENT, Mode, Result, TurnResult

LIMITS = (
    "Completions are scripted: how often real models leave the canonical text is not measured here, it is the input"
    " `--variation`.",
    "The network is a tiny attention-only one on a CPU: token counts and cache hits are the engine's own, times only"
    " compare within this table. Hybrid models (Mamba, gated delta nets), sliding windows and speculative decoding"
    " cache otherwise and are not covered.",
    "Nothing is evicted and no two replays share a prefix: this is the ceiling that parsing and rendering allow, before"
    " the memory of a real service takes its share.",
)


def pooled(results: Sequence[Result], mode: Mode, variation: float) -> Result:
    """The results of all seeds as one."""
    having = [r for r in results if r.mode == mode and r.variation == variation]
    turns = tuple(turn for result in having for turn in result.turns)
    dropped = tuple(reason for result in having for reason in result.dropped)
    return Result(mode, variation, having[0].seed, turns, dropped)


def first_token_ms(result: Result) -> float:
    """Median over all turns but the first of each conversation, which has nothing cached in any mode."""
    times = [turn.first_token_s for turn in result.turns if turn.turn > 1]
    return 1000 * statistics.median(times) if times else 0.0


def last_prompts(result: Result) -> float:
    """Mean length of the last prompt of a conversation."""
    last: dict[str, int] = {}
    for turn in result.turns:
        last[turn.conversation] = turn.prompt
    return statistics.mean(last.values())


def show(console: Console, results: Sequence[Result], variation: float, title: str) -> None:
    """Print the table at one variation rate, the words to it, and the curve."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in (
        "uncached prefill\ntokens", "hit rate", "beyond the\nsystem prompt", "most\npossible", "turns\nexact",
        "first token\nms", "last prompt\ntokens", "reasoning kept\nbeyond template",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for mode in MODES:
        result = pooled(results, mode, variation)
        exact = sum(turn.exact for turn in result.turns)
        table.add_row(
            mode.name,
            str(result.uncached),
            f"{result.hit_rate:.1%}",
            f"{result.hit_rate_beyond_system:.1%}",
            f"{result.best_hit_rate:.1%}",
            f"{exact}/{len(result.turns)}",
            f"{first_token_ms(result):.0f}",
            f"{last_prompts(result):.0f}",
            str(int(result.total(lambda t: t.retained_reasoning))) if mode.ours else "",
        )
    optimum = pooled(results, _mode("prr, retention all"), variation)
    table.add_section()
    best = int(optimum.total(lambda t: t.prompt - t.possible))
    table.add_row("infinite cache, all kept", str(best), f"{optimum.best_hit_rate:.1%}", "", "", "", "", "", "")
    console.print(table)
    for mode in MODES:
        if mode.ours:
            counts = ", ".join(
                f"{outcome} {n}" for outcome, n in pooled(results, mode, variation).outcomes.most_common()
            )
            console.print(f"{mode.name}: {counts}", highlight=False)
    curve = Table(title="hit rate over the variation rate (an input, not a measurement)", title_justify="left")
    curve.add_column("")
    variations = sorted({result.variation for result in results})
    for rate in variations:
        curve.add_column(f"{rate:g}", justify="right")
    for mode in MODES:
        curve.add_row(mode.name, *(f"{pooled(results, mode, rate).hit_rate:.1%}" for rate in variations))
    curve.add_row("infinite cache, all kept", *(f"{_optimum(results, rate):.1%}" for rate in variations))
    console.print(curve)
    for line in (*findings(results), *LIMITS):
        console.print(f"- {line}", highlight=False, soft_wrap=True)


def _mode(name: str) -> Mode:
    return next(mode for mode in MODES if mode.name == name)


def _optimum(results: Sequence[Result], variation: float) -> float:
    return pooled(results, _mode("prr, retention all"), variation).best_hit_rate


def findings(results: Sequence[Result]) -> list[str]:
    """Where stock loses nothing and where it does, as far as these results show."""
    lines = []
    for mode in MODES:
        if mode.ours:
            continue
        for variation in sorted({result.variation for result in results}):
            result = pooled(results, mode, variation)
            parts = []
            for name, inside in (("inside a tool loop", False), ("after a new user message", True)):
                turns = [t for t in result.turns if t.turn > 1 and t.after_user is inside]
                if turns:
                    parts.append(f"{name} {sum(t.exact for t in turns)} of {len(turns)} turns kept whole")
            lost = int(result.total(lambda t: t.possible - t.cached))
            verdict = "loses nothing" if lost == 0 else f"recomputes {lost} tokens that could have been cached"
            lines.append(f"{mode.name}, variation {variation:g}: {verdict} ({'; '.join(parts)})")
    dropped = Counter(reason for result in results for reason in result.dropped)
    lines += [f"left out: {reason} ({count} times)" for reason, count in dropped.items()]
    return lines


def write_json(
    path: Path, results: Sequence[Result], variation: float, seeds: Sequence[int], about: dict[str, Any]
) -> None:
    """Write the figures, per mode at the main variation rate, the curve, and every turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rates = sorted({result.variation for result in results})
    document = {
        **about,
        "variation": variation,
        "seeds": list(seeds),
        "modes": {mode.name: _figures(pooled(results, mode, variation)) for mode in MODES},
        "optimum": {
            "hit_rate": _optimum(results, variation),
            "uncached_prefill_tokens": int(
                pooled(results, _mode("prr, retention all"), variation).total(lambda t: t.prompt - t.possible)
            ),
        },
        "curve": {mode.name: [[rate, pooled(results, mode, rate).hit_rate] for rate in rates] for mode in MODES},
        "findings": findings(results),
        "limits": list(LIMITS),
        "turns": [
            {"mode": result.mode.name, "variation": result.variation, "seed": result.seed, **asdict(turn)}
            for result in results
            for turn in result.turns
        ],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _figures(result: Result) -> dict[str, Any]:
    def count(value: Callable[[TurnResult], float]) -> int:
        return int(result.total(value))

    return {
        "turns": len(result.turns),
        "exact_turns": count(lambda t: t.exact),
        "prompt_tokens": count(lambda t: t.prompt),
        "cached_tokens": count(lambda t: t.cached),
        "uncached_prefill_tokens": result.uncached,
        "hit_rate": result.hit_rate,
        "hit_rate_beyond_system_prompt": result.hit_rate_beyond_system,
        "possible_hit_rate": result.best_hit_rate,
        "first_token_ms_median": first_token_ms(result),
        "last_prompt_tokens_mean": last_prompts(result),
        "retained_reasoning_tokens": count(lambda t: t.retained_reasoning),
        "outcomes": dict(result.outcomes),
        "left_out": list(result.dropped),
    }


def plot(path: Path, results: Sequence[Result], variation: float) -> None:
    """Hit rate over variation, and uncached prefill tokens per mode, as one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rates = sorted({result.variation for result in results})
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    for mode in MODES:
        style = "-" if mode.ours else "--"
        marker = "s" if mode.name == OPPONENT else "o"
        values = [100 * pooled(results, mode, rate).hit_rate for rate in rates]
        left.plot(rates, values, style, marker=marker, label=mode.name)
    left.plot(
        rates, [100 * _optimum(results, rate) for rate in rates], ":", color="black", label="infinite cache, all kept"
    )
    left.set(xlabel="variation rate (input)", ylabel="prefix-cache hit rate, %", title="Hit rate")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    left.grid(alpha=0.3)
    names = [mode.name for mode in MODES]
    uncached = [pooled(results, mode, variation).uncached for mode in MODES]
    colours = ["tab:blue" if mode.ours else "tab:gray" for mode in MODES]
    right.barh(names[::-1], uncached[::-1], color=colours[::-1])
    right.set(xlabel="tokens", title=f"Uncached prefill tokens at variation {variation:g}")
    right.grid(alpha=0.3, axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
