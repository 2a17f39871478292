"""What `make bench-parsers` says: ratios, growth, a table and a plot of its rows.

A row is one parser on one completion: `format`, `case`, `delta`, `parser`, `tokens`, `us_per_token`, `capped`, `found`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# tokens of reasoning and of the argument
CASES: Mapping[str, tuple[int, int]] = {
    "short call": (30, 20),
    "1k total": (512, 450),
    "8k code": (30, 8_192),
    "32k reasoning": (32_768, 20),
    "64k total": (32_768, 32_768),
}
GROWTH = ("1k total", "64k total")
DELTAS = {"1 token": 1, "8 tokens": 8, "whole": 0}
PARSERS = ("prr", "prr_in_vllm", "vllm", "sglang")


def round_to(value: float) -> float:
    return float(f"{value:.4g}")


def summarise(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratios: ours over the faster engine for each format, case and delta; growth of ours.

    An engine's capped figure is a lower bound of its time, so the ratio is then an upper bound of ours.
    """
    at = {(r["format"], r["case"], r["delta"], r["parser"]): r for r in rows if "us_per_token" in r and r["found"]}
    formats = sorted({key[0] for key in at})

    def cost(*key: str) -> float | None:
        found = at.get(key)  # type: ignore[arg-type]
        return found["us_per_token"] if found else None

    ratios: dict[str, dict[str, Any]] = {}
    for format in formats:
        ratios[format] = {}
        for case in CASES:
            for delta in DELTAS:
                engines = {e: c for e in ("vllm", "sglang") if (c := cost(format, case, delta, e))}
                ours, inside = cost(format, case, delta, "prr"), cost(format, case, delta, "prr_in_vllm")
                if not engines or ours is None:
                    continue
                faster = min(engines, key=engines.__getitem__)
                ratios[format][f"{case}, {delta}"] = {
                    "faster_engine": faster,
                    "prr_to_faster": round_to(ours / engines[faster]),
                    "prr_in_vllm_to_vllm": round_to(inside / engines["vllm"]) if inside and "vllm" in engines else None,
                    "engine_capped": bool(at[format, case, delta, faster]["capped"]),
                }
    growth = {}
    for parser in PARSERS:
        growth[parser] = {
            f"{format}, {delta}": round_to(64 * b["us_per_token"] / a["us_per_token"])
            for format in formats
            for delta in DELTAS
            if (a := at.get((format, GROWTH[0], delta, parser)))
            and (b := at.get((format, GROWTH[1], delta, parser)))
            and not a["capped"]
            and not b["capped"]
        }
    streamed = [delta for delta in DELTAS if DELTAS[delta]]
    families, totals = (
        {
            f"{format}, {delta}": round_to(ratio)
            for format in formats
            for delta in DELTAS
            if (ratio := _of_family(at, format, delta, by_token)) is not None
        }
        for by_token in (False, True)
    )
    return {
        # time per token over all completions of a family, each weighing the same, however short
        "prr_to_faster_engine_by_family": families,
        # all time of a family over all its tokens: each token weighs the same
        "prr_to_faster_engine_by_token": totals,
        "worst_family_streamed": max(r for name, r in families.items() if name.split(", ")[1] in streamed),
        "goal_half_met": {f: all(families.get(f"{f}, {delta}", 0) <= 0.5 for delta in streamed) for f in formats},
        "goal_half_met_by_token": {f: all(totals.get(f"{f}, {delta}", 0) <= 0.5 for delta in DELTAS) for f in formats},
        "single_completions_above_half": {
            f"{format}, {name}": row["prr_to_faster"]
            for format, found in ratios.items()
            for name, row in found.items()
            if row["prr_to_faster"] > 0.5
        },
        # left out above: to give the text back is not the same work
        "call_not_found": sorted(
            f"{r['parser']}: {r['format']}, {r['case']}, {r['delta']}" for r in rows if not r.get("found", True)
        ),
        "worst_growth_1k_to_64k": {p: max(g.values(), default=None) for p, g in growth.items()},
        "ratios": ratios,
        "growth_1k_to_64k": growth,
    }


def _of_family(
    at: Mapping[tuple[str, str, str, str], Mapping[str, Any]], format: str, delta: str, by_token: bool
) -> float | None:
    """Ours over the faster of the engines that parse every completion; None where neither does.

    Summed over the completions are microseconds a token or (`by_token`) all microseconds.
    """

    def spent(parser: str) -> float:
        tokens = {case: at[format, case, delta, "prr"]["tokens"] if by_token else 1 for case in CASES}
        return sum(at[format, case, delta, parser]["us_per_token"] * tokens[case] for case in CASES)

    engines = [e for e in ("vllm", "sglang") if all((format, case, delta, e) in at for case in CASES)]
    return spent("prr") / min(map(spent, engines)) if engines else None


def show(report: Mapping[str, Any]) -> None:
    """The table for a person."""
    from rich.console import Console
    from rich.table import Table

    at = {(r["format"], r["case"], r["delta"], r["parser"]): r for r in report["rows"]}
    table = Table(title="CPU time per token, µs (≥: capped, a lower bound)", title_justify="left")
    for column in ("format", "case", "delta", *PARSERS, "prr / faster engine"):
        table.add_column(column, justify="left" if column in ("format", "case", "delta") else "right")
    for format in sorted({r["format"] for r in report["rows"]}):
        for case in CASES:
            for delta in DELTAS:
                cells = []
                for parser in PARSERS:
                    row = at.get((format, case, delta, parser), {})
                    value = row.get("us_per_token")
                    cells.append("-" if value is None else f"{'≥' if row['capped'] else ''}{value:.2f}")
                ratio = report["summary"]["ratios"].get(format, {}).get(f"{case}, {delta}", {}).get("prr_to_faster")
                table.add_row(format, case, delta, *cells, "-" if ratio is None else f"{ratio:.2f}")
        table.add_section()
    Console().print(table)
    summary = report["summary"]
    Console().print("prr / faster engine, by family:", summary["prr_to_faster_engine_by_family"])
    Console().print("prr / faster engine, by token:", summary["prr_to_faster_engine_by_token"])
    Console().print("single completions above a half:", summary["single_completions_above_half"])
    Console().print("growth of the work from 1k to 64k tokens, worst:", summary["worst_growth_1k_to_64k"])


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Microseconds per token against length, one token a delta: flat is linear."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    formats = sorted({r["format"] for r in report["rows"]})
    columns = 4
    lines = -(-len(formats) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(14, 3 * lines), sharex=True, sharey=True, squeeze=False)
    for axis, format in zip(axes.flat, formats, strict=False):
        for parser in PARSERS:
            points = sorted(
                (r["tokens"], r["us_per_token"])
                for r in report["rows"]
                if r["format"] == format and r["parser"] == parser and r["delta"] == "1 token" and "us_per_token" in r
            )
            axis.plot(*zip(*points, strict=True) if points else ((), ()), marker="o", label=parser)
        axis.set_title(format)
        axis.set_xscale("log")
        axis.set_yscale("log")
    axes[0][0].legend()
    figure.supxlabel("tokens parsed")
    figure.supylabel("CPU µs per token, one token a delta")
    figure.tight_layout()
    figure.savefig(path)
