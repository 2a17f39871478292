"""`make conformance`: every parser on every fixture of `canitoolcall`, and what becomes of each turn afterwards.

One run, one table: ours as a library (both streaming policies), ours through what vLLM and SGLang call, stock vLLM,
stock SGLang. The fixtures, chunkings and checks are the corpus' own; ours must also survive `char:*` splits.
Then the round trip: prompt and sampled ids must be a strict prefix of the next prompt, by re-render and by the bridge.

Writes out/conformance.json. Ends with 1 if anything of ours does not pass; `docs/parsing.md` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from canitoolcall.adapters.base import Adapter
from canitoolcall.adapters.worker import replay
from canitoolcall.chunking import DEFAULT_STRATEGIES, ChunkStrategy
from canitoolcall.results import CaseResult, Status, worst_status
from canitoolcall.runner import evaluate
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prr_plugins.common.parsing.stream_parser import parse
from prr_testing import adapters, round_trip
from prr_testing.corpus import Completion, completions
from prr_testing.vocabularies import vocabulary

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "conformance.json"
OURS = ("prr", "prr_eager", "prr_in_vllm", "prr_in_sglang")
CHARACTERS = tuple(ChunkStrategy("char", seed=seed) for seed in range(4))

# A fixture whose expected value we hold to be wrong, and why. Nothing else of ours may fail.
CONTESTED: Mapping[str, str] = {}

ADAPTERS: Mapping[str, Callable[[], Adapter]] = {
    "prr": adapters.PrrLibrary,
    "prr_eager": adapters.PrrLibraryEager,
    "prr_in_vllm": adapters.PrrInVllm,
    "prr_in_sglang": adapters.PrrInSglang,
    "prr_detectors_in_sglang": adapters.PrrDetectorsInSglang,
    "vllm": adapters.Vllm,
    "sglang": adapters.Sglang,
}
TRIPS = "round trip"


def judge(name: str, adapter: Adapter, completion: Completion) -> CaseResult:
    """One fixture under one parser. For ours every split counts, single characters too."""
    strategies = (*DEFAULT_STRATEGIES, *CHARACTERS) if name in ("prr", "prr_eager") else DEFAULT_STRATEGIES
    try:
        reply = replay(adapter, completion.fixture, completion.family, strategies)
        case = evaluate(completion.fixture, completion.family, reply)
    except Exception as error:  # a harness fault: it shows as an error of this run, never as a pass
        text = f"{type(error).__name__}: {error}"
        return CaseResult(completion.fixture.id, completion.fixture.family, Status.ERROR, harness_error=text)
    if name in OURS and case.status is not Status.UNSUPPORTED:
        status = worst_status(row.status for row in case.checks)
        case = CaseResult(case.fixture_id, case.family, status, case.checks, observed=case.observed)
    return case


def child(name: str, families: list[str]) -> None:
    """One parser over all fixtures (or the round trip), in a process and environment of its own: a JSON line each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print what they like, in the midst of a line of ours too: to the log with it
    adapter = None if name == TRIPS else ADAPTERS[name]()
    for completion in select(families):
        if adapter is None:
            line: Any = [asdict(outcome) for outcome in round_trip.check(completion)]
        else:
            line = judge(name, adapter, completion).to_dict()
        print(json.dumps(line), file=answers, flush=True)


def select(families: list[str]) -> list[Completion]:
    """The fixtures of these families (all if none is named), tokenizer by tokenizer: few are in memory at a time."""
    chosen = [c for c in completions() if not families or c.fixture.family in families]
    return sorted(chosen, key=lambda c: (adapters.twin(c.fixture.reference_model), c.fixture.reference_model))


def start(name: str, families: list[str]) -> subprocess.Popen[str]:
    """The child process of one parser, in a session of its own: the scheduler shares a machine between sessions."""
    python = ROOT / ".venv" / ("sglang" if name.endswith("sglang") else "vllm") / "bin" / "python"
    command: list[str | Path] = [python, __file__, "--child", name, "--family", *families]
    log = (OUT.parent / "conformance").joinpath(f"{name.replace(' ', '_')}.log").open("w")
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
    )


def may_differ(completion: Completion) -> str | None:
    """Why `eager` may have sent something else: the completion ends in an unfinished or repaired call."""
    result = parse(
        completion.format,
        completion.text,
        tools=completion.tools,
        prompt_tail=completion.tail,
        finish_reason=completion.finish_reason,
    )
    if result.incomplete_calls:
        return result.incomplete_calls[-1].status
    return "repaired" if any(call.status == "repaired" for call in result.parsed_tool_calls) else None


def split_failures(cases: Mapping[str, CaseResult]) -> list[str]:
    """Fixtures whose result hangs on how the stream was split."""
    return sorted(
        id
        for id, case in cases.items()
        if any(row.check == "split_invariance" and row.status is not Status.PASS for row in case.checks)
        or any(
            row.check == "stream_equals_nonstream" and row.strategy.startswith("char") and row.status is not Status.PASS
            for row in case.checks
        )
    )


def summary(cases: Mapping[str, CaseResult]) -> dict[str, Any]:
    """The figures of one run."""
    counts = Counter(case.status.value for case in cases.values())
    families: dict[str, Counter[str]] = {}
    for case in cases.values():
        families.setdefault(case.family, Counter())[case.status.value] += 1
    details = {}
    for id, case in cases.items():
        if case.status in (Status.FAIL, Status.ERROR):
            bad = next((row for row in case.checks if row.status is not Status.PASS), None)
            details[id] = case.harness_error or (f"{bad.check} ({bad.strategy}): {bad.detail}" if bad else "")
    return {
        "pass": counts["pass"],
        "soft_pass": counts["soft_pass"],
        "fail": counts["fail"],
        "error": counts["error"],
        "unsupported": counts["unsupported"],
        "by_family": {family: dict(count) for family, count in sorted(families.items())},
        "failed": sorted(id for id, case in cases.items() if case.status in (Status.FAIL, Status.ERROR)),
        "why": details,
    }


def round_trips(chosen: list[Completion], found: list[list[dict[str, str]]]) -> dict[str, Any]:
    """Every fixture's next prompts; counts are of next prompts."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    families: dict[str, Counter[str]] = {}
    broken: list[str] = []
    for completion, outcomes in zip(chosen, found, strict=True):
        for outcome in outcomes:
            family = families.setdefault(completion.fixture.family, Counter())
            for tally in (counts, family):
                tally["checked"] += 1
                tally[f"rerender_{outcome['rerender']}"] += 1
                tally[f"bridge_{outcome['bridge']}"] += 1
            if outcome["bridge"] == "refused":
                reasons[outcome["bridge_reason"]] += 1
            elif outcome["bridge"] == "broken":
                broken.append(f"{completion.fixture.id} ({outcome['follows']})")
    keys = ("checked", "rerender_broken", "rerender_unsupported", "bridge_broken", "bridge_refused")
    return {
        **{key: counts[key] for key in keys},
        "bridge_refused_by_reason": dict(reasons.most_common()),
        "bridge_broken_ids": broken,
        "not_checked_ids": [c.fixture.id for c, outcomes in zip(chosen, found, strict=True) if not outcomes],
        "by_family": {family: {key: tally[key] for key in keys} for family, tally in sorted(families.items())},
    }


def contested(runs: Mapping[str, Mapping[str, CaseResult]]) -> list[dict[str, str]]:
    """Fixtures where the right value is a matter of opinion: listed by us, or both engines agree on another one."""
    found = [{"id": id, "why": why} for id, why in sorted(CONTESTED.items())]
    stock = [runs[name] for name in ("vllm", "sglang") if name in runs]
    if len(stock) == 2:
        for id, case in stock[0].items():
            other = stock[1].get(id)
            if id in CONTESTED or other is None or case.observed is None or other.observed is None:
                continue
            if case.observed.nonstream == other.observed.nonstream and case.observed.nonstream.exception is None:
                why = "vLLM and SGLang give one and the same value, which is not the expected one"
                found.append({"id": id, "why": why})
    return found


def table(runs: Mapping[str, Mapping[str, CaseResult]], trips: Mapping[str, Any]) -> Iterator[Table]:
    """For a person: one row per family, one column per parser; then the round trip."""
    made = Table(title="pass / soft / fail per family", title_justify="left")
    made.add_column("family")
    for name in runs:
        made.add_column(name, justify="right")
    families = sorted({case.family for cases in runs.values() for case in cases.values()})
    for family in (*families, "all"):
        cells = []
        for cases in runs.values():
            count = Counter(c.status.value for c in cases.values() if family in (c.family, "all"))
            cells.append(f"{count['pass']} / {count['soft_pass']} / {count['fail'] + count['error']}")
        made.add_row(family, *cells, style="bold" if family == "all" else None)
    yield made
    made = Table(title="next prompts that keep prompt + sampled ids", title_justify="left")
    for column in ("family", "checked", "re-render breaks", "template refuses", "bridge breaks", "bridge refuses"):
        made.add_column(column, justify="left" if column == "family" else "right")
    for family, row in (*trips["by_family"].items(), ("all", trips)):
        made.add_row(family, *(str(row[key]) for key in list(row)[:5]), style="bold" if family == "all" else None)
    yield made


def main() -> int:
    parser = argparse.ArgumentParser(description="Conformance of all parsers, and the round trip.")
    names = tuple(ADAPTERS)
    usual = [name for name in names if name != "prr_detectors_in_sglang"]
    parser.add_argument(
        "--runs", nargs="*", choices=names, default=usual, help=f"which parsers (default: {', '.join(usual)})"
    )
    parser.add_argument("--family", nargs="*", default=[], help="only these families of the corpus")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", choices=(*names, TRIPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # engines log every call that they cannot read
    if options.child:
        child(options.child, options.family)
        return 0
    chosen = select(options.family)
    (OUT.parent / "conformance").mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[Any]] = {name: [] for name in (*options.runs, TRIPS)}
    children = {name: start(name, options.family) for name in lines}
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(len(children)) as pool:

        def follow(name: str) -> None:
            task = progress.add_task(name, total=len(chosen))
            stream = children[name].stdout
            assert stream is not None
            for line in stream:
                lines[name].append(json.loads(line))
                progress.advance(task)

        list(pool.map(follow, children))
    missing: dict[str, str] = {}
    for name, process in children.items():
        if process.wait() or len(lines[name]) != len(chosen):
            log = (OUT.parent / "conformance" / f"{name.replace(' ', '_')}.log").read_text(errors="replace")
            missing[name] = (log.strip().splitlines() or ["no output"])[-1]
            del lines[name]
    runs = {
        name: {made["fixture_id"]: CaseResult.from_dict(made) for made in found}
        for name, found in lines.items()
        if name != TRIPS
    }
    trips = round_trips(chosen, lines.get(TRIPS, [[] for _ in chosen]))

    eager = {
        c.fixture.id: why
        for c in chosen
        if "prr_eager" in runs and runs["prr_eager"][c.fixture.id].status is not Status.PASS and (why := may_differ(c))
    }
    report = {
        "corpus": {"canitoolcall": metadata.version("canitoolcall"), "fixtures": len(chosen)},
        "runs": {name: summary(cases) for name, cases in runs.items()},
        "not_run": missing,
        "eager_differs": eager,
        "split_invariance_failures": {name: split_failures(cases) for name, cases in runs.items()},
        "round_trip": trips,
        "contested": contested(runs),
        "ids": ids_used(chosen),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    shown = Console()
    for made in table(runs, trips):
        shown.print(made)
    for name, why in missing.items():
        shown.print(f"{name} did not run: {why}")
    wrong = {
        f"{name} {id}"
        for name in OURS
        if name in runs
        for id, case in runs[name].items()
        if case.status is not Status.PASS and id not in CONTESTED and not (name == "prr_eager" and id in eager)
    }
    wrong |= {f"bridge {id}" for id in trips["bridge_broken_ids"]}
    wrong |= {f"{name} did not run" for name in missing if name in OURS or name == TRIPS}
    for name in sorted(wrong):
        shown.print(f"[red]not passed:[/] {name}")
    shown.print(f"{options.out}")
    return 1 if wrong else 0


def ids_used(chosen: list[Completion]) -> dict[str, Any]:
    """Where chunks come from the fixture's own ids, and where from another spelling of its text."""
    own, encoded, stand_in = [], [], []
    for completion in chosen:
        model = completion.fixture.reference_model
        if adapters.has_own_ids(model, completion.text, completion.fixture.output_token_ids):
            own.append(completion.fixture.id)
        elif vocabulary(model).stand_in:
            stand_in.append(completion.fixture.id)
        else:
            encoded.append(completion.fixture.id)
    return {
        "own": len(own),
        "own_vocabulary_text_encoded_anew": encoded,
        "stand_in_vocabulary": dict(Counter(id.partition("/")[0] for id in stand_in)),
    }


if __name__ == "__main__":
    sys.exit(main())
