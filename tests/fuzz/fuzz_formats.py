"""`make fuzz`: the laws of parsing under a coverage-guided fuzzer (Atheris), over every format.

An input is a format, the options of a parse, a seed for the split, and a text. It is parsed whole, and in pieces under
one of the policies, and held against L1 (tiling), L2 (slices) and L3 (any split); L4: nothing raises, and the CPU time
stays within a bound linear in the length. Real completions are the seeds, the formats' literals the dictionary.

A failure does not end the run: its input is kept in out/fuzz/failures, one for each place where it failed. Writes
out/fuzz.json; ends with 1 if anything failed. `--replay FILE` runs one input again, with its traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

if "--worker" in sys.argv:  # only what is imported inside is instrumented, so it must be imported here first
    import atheris

    with atheris.instrument_imports(include=["prr_plugins.common"]):
        from prr_plugins.common.parsing import formats

        for _name in formats.FORMATS:
            formats.get_format(_name)

from prr_plugins.common.parsing.completion import Policy
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_testing.corpus import completions_of
from prr_testing.laws import assert_all, literals

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "out" / "fuzz"
NAMES = sorted(FORMATS)
LONGEST = 400  # bytes of one input: what goes wrong does so in few markers, and short inputs run fast
REPORT_EVERY = 500  # executions
# CPU time of one input: a constant, and this much for each character, for two parses of instrumented code.
SECONDS, SECONDS_PER_CHARACTER = 0.2, 0.001
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
    for name in ("get_weather", "x")
]


def tails(format: str) -> list[str]:
    """Prompt tails that the corpus has for a format."""
    opened = get_format(format).reasoning_start
    return sorted({"", *(c.tail for c in completions_of(format)), *([opened] if opened else [])})


TAILS = {name: tails(name) for name in NAMES}


def encode(format: str, text: str, tail: str = "", finish_reason: str = "stop") -> bytes:
    """The input that stands for a completion."""
    options = TAILS[format].index(tail) << 2 | (finish_reason == "length") << 1 | 1
    return (bytes([NAMES.index(format), options & 0xFF, 0]) + text.encode(errors="replace"))[:LONGEST]


def check(data: bytes) -> str:
    """Hold one input against the laws; the format it was for."""
    if len(data) < 3:
        return ""
    format = NAMES[data[0] % len(NAMES)]
    text = data[3:].decode(errors="replace")
    options: dict[str, Any] = {
        "tools": TOOLS if data[1] & 1 else None,
        "finish_reason": "length" if data[1] & 2 else "stop",
        "prompt_tail": TAILS[format][(data[1] >> 2) % len(TAILS[format])],
    }
    policy: Policy = "eager" if data[2] & 1 else "complete"
    longest = 1 + (data[2] >> 1) % 24
    rng = random.Random(data[2])
    pieces, at = [], 0
    while at < len(text):
        end = at + rng.randint(1, longest)
        pieces.append(text[at:end])
        at = end
    begin = time.process_time()
    assert_all(format, text, [pieces], policies=(policy,), **options)
    spent = time.process_time() - begin
    if spent > SECONDS + SECONDS_PER_CHARACTER * len(text):
        begin = time.process_time()  # once more: the first may have paid for garbage collection
        assert_all(format, text, [pieces], policies=(policy,), **options)
        assert time.process_time() - begin <= SECONDS + SECONDS_PER_CHARACTER * len(text), "not linear"
    return format


def work(runs: int, seed: int) -> None:
    """One fuzzing process: reports its executions on stdout, one JSON object a line."""
    counts: Counter[str] = Counter()
    seen: set[str] = set()

    def report() -> None:
        print(json.dumps(counts), flush=True)

    def one(data: bytes) -> None:
        counts["all"] += 1
        try:
            counts[check(data)] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {NAMES[data[0] % len(NAMES)]}"
            if place not in seen:
                seen.add(place)
                path = HOME / "failures" / hashlib.sha256(data).hexdigest()[:16]
                path.write_bytes(data)
                print(json.dumps({"failure": place, "message": str(error)[:200], "input": str(path)}), flush=True)
        if counts["all"] % REPORT_EVERY == 0 or counts["all"] == runs:
            report()

    literal = HOME / "literals.dict"
    found = HOME / f"corpus-{seed}"
    found.mkdir(exist_ok=True)
    options = [
        f"-runs={runs}",
        f"-seed={seed}",
        f"-max_len={LONGEST}",
        f"-dict={literal}",
        "-timeout=60",
        "-rss_limit_mb=4000",
        f"-artifact_prefix={HOME / 'artifacts'}/",  # crash-*, slow-unit-*, timeout-*: else where make was called
    ]
    atheris.Setup([sys.argv[0], *options, str(found), str(HOME / "seeds")], one)
    atheris.Fuzz()


def prepare() -> int:
    """Write seeds and dictionary; how many seeds."""
    for folder in ("seeds", "failures", "artifacts"):
        (HOME / folder).mkdir(parents=True, exist_ok=True)
    inputs = [encode(name, c.text, c.tail, c.finish_reason) for name in NAMES for c in completions_of(name)]
    for data in inputs:
        (HOME / "seeds" / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = {literal for name in NAMES for literal in literals(name)}
    quoted = ("".join(chr(b) if 32 < b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in w.encode()) for w in words)
    (HOME / "literals.dict").write_text("".join(f'"{word}"\n' for word in sorted(quoted)))
    return len(inputs)


def launch(runs: int, jobs: int) -> int:
    """Run the workers, show their progress, write the report."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    seeds = prepare()
    share = [runs // jobs + (i < runs % jobs) for i in range(jobs)]
    logs = [HOME / f"worker-{i}.log" for i in range(jobs)]
    started = time.monotonic()
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", str(n), "--seed", str(i + 1)],
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        for i, (n, log) in enumerate(zip(share, logs, strict=True))
    ]
    counts: list[Counter[str]] = [Counter() for _ in workers]
    failures: dict[str, dict[str, str]] = {}
    columns = (TextColumn("fuzz"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("fuzz", total=runs)
        for i, line in _lines(workers):
            said = json.loads(line)
            if "failure" in said:
                failures.setdefault(said["failure"], said)
                progress.console.print(f"[red]{said['failure']}[/]: {said['input']}")
            else:
                counts[i] = Counter(said)
                progress.update(task, completed=sum(c["all"] for c in counts))
    codes = [worker.wait() for worker in workers]
    done = sum(counts, Counter())
    coverage = [int(m[-1]) for log in logs if (m := re.findall(r"cov: (\d+)", log.read_text(errors="replace")))]
    report = {
        "inputs": done["all"],
        "inputs_wanted": runs,
        "seeds": seeds,
        "seconds": round(time.monotonic() - started, 1),
        "by_format": {name: done[name] for name in NAMES},
        "edges_covered": max(coverage, default=None),
        "failures": list(failures.values()),
        "exit_codes": codes,
    }
    (ROOT / "out" / "fuzz.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("inputs", "seconds", "edges_covered", "failures", "exit_codes")}))
    return 1 if failures or any(codes) or done["all"] < runs else 0


def _lines(workers: list[subprocess.Popen[str]]) -> Any:
    """(worker, line) as they come."""
    import selectors

    with selectors.DefaultSelector() as selector:
        for i, worker in enumerate(workers):
            selector.register(worker.stdout, selectors.EVENT_READ, i)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if not line:
                    selector.unregister(key.fileobj)
                elif line.startswith("{"):
                    yield key.data, line


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every format against the laws of parsing.")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", type=Path, help="one kept input")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        print(check(options.replay.read_bytes()))
        return 0
    if options.worker is not None:
        work(options.worker, options.seed)
        return 0
    return launch(options.runs, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
