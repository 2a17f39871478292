"""`make bench-parsers`: CPU time per token of every parser: ours as a library and inside vLLM, vLLM's, SGLang's.

Completions are written in each family's format around real program text and prose; every one is checked to parse to
its call before it is timed. Measured is the parser alone (`process_time`), fed with the text pieces that the family's
tokenizer makes, one token or eight a delta, and the whole text at once. All parsers run in one run of this script,
round by round; figures are medians. A parser that needs longer than the cap is stopped and its figure is that of the
tokens it got through, marked `capped`: it is a lower bound, nothing is extrapolated.

Writes out/bench_parsers.json and out/bench_parsers.svg.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from canitoolcall.adapters import sglang as sglang_adapter
from canitoolcall.adapters.base import ReplayInput
from canitoolcall.fixtures import load_families

from prr_plugins.common.parsing.completion import Delta
from prr_plugins.common.parsing.formats import FORMATS
from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from prr_testing import adapters
from prr_testing.bench.parser_report import CASES, DELTAS, GROWTH, PARSERS, plot, round_to, show, summarise
from prr_testing.vocabularies import vocabulary
from prr_testing.writers import TOOL, WRITERS, Writer, code, prose

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
IN_ENVIRONMENT: Mapping[str, tuple[str, ...]] = {"vllm": PARSERS[:3], "sglang": PARSERS[3:]}
CAP = 2.0  # seconds of CPU time for one completion
CHECK_EVERY = 64  # deltas between looks at the clock
LEAST = 0.05  # seconds of CPU time; a completion that takes less is parsed again until that much was spent
CHECKED = 1_200  # tokens of a streamed completion up to which it is seen whether the parser finds the call


@dataclass(frozen=True)
class Input:
    """One completion, cut as a stream cuts it; `groups` of ids and their texts."""

    writer: Writer
    text: str
    ids: list[int]
    texts: list[str]
    groups: list[list[int]]


# Feeds (text, ids, last) and so parses; made anew for each completion.
Feed = Callable[[str, list[int], bool], object]


@cache
def made(format: str, case: str) -> tuple[str, list[int]]:
    """The completion of a case, and its ids; it is checked that it reads as one call with that argument."""
    writer = WRITERS[format]
    tok = adapters.tokenizer(writer.model)
    reasoning_tokens, argument_tokens = CASES[case]

    def cut(text: str, tokens: int) -> str:
        ids = tok.encode(text[: tokens * 8], add_special_tokens=False)[:tokens]
        return str(tok.decode(ids)).strip("\ufffd").strip()

    thought, program = prose(), code()
    if case == GROWTH[1]:  # the shorter one's text over and over: growth is to show the length, not another text
        shorter = CASES[GROWTH[0]]
        thought, program = (
            (cut(source, tokens) + "\n") * (1 + longer // tokens)
            for source, tokens, longer in zip((thought, program), shorter, CASES[case], strict=True)
        )
    reasoning, argument = cut(thought, reasoning_tokens), cut(program, argument_tokens)
    text = writer.write(reasoning, argument)
    result = parse(format, text, tools=[TOOL], prompt_tail=writer.tail)
    (call,) = result.parsed_tool_calls
    assert json.loads(call.arguments) == {"content": argument}, f"{format}: the argument does not come back"
    assert (result.reasoning if writer.reasons else result.content or "") == reasoning or writer.reasons
    return text, [int(i) for i in tok.encode(text, add_special_tokens=False)]


@cache
def prepare(format: str, case: str, delta: str) -> Input:
    """A case cut for one way to stream it."""
    text, ids = made(format, case)
    size = DELTAS[delta] or len(ids)
    groups = [ids[i : i + size] for i in range(0, len(ids), size)]
    writer = WRITERS[format]
    texts = [text] if len(groups) == 1 else adapters.text_pieces(writer.model, groups)
    return Input(writer, text, ids, texts, groups)


# ---------------------------------------------------------------------------------------------- the parsers


def prr(format: str, whole: bool, source: Input) -> Feed:
    parser = StreamParser(
        format, tools=[TOOL], prompt_tail=source.writer.tail, stream_arguments="complete" if whole else "eager"
    )

    def feed(text: str, ids: list[int], last: bool) -> object:
        deltas = parser.feed(text, ids)
        if last:
            deltas += parser.finish()
        return deltas

    return feed


@cache
def _vllm(name: str) -> adapters.Vllm:
    adapter = {"vllm": adapters.Vllm, "prr_in_vllm": adapters.PrrInVllm}[name]()
    if isinstance(adapter, adapters.PrrInVllm):
        adapter.policy = "eager"  # type: ignore[misc]  # the default, as a server has it
    return adapter


def in_vllm(name: str, whole: bool, source: Input) -> Feed:
    adapter = _vllm(name)
    raw = _raw(source)
    setup = adapter._setup(raw, [TOOL])
    request, parser = adapter._request_and_parser(setup, stream=not whole)
    prompt_ids = setup.prompt_ids
    if whole:
        parser.set_prompt_token_ids(prompt_ids)
        return lambda text, ids, last: parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
    return lambda text, ids, last: parser.parse_delta(text, ids, request, prompt_token_ids=prompt_ids, finished=last)


def sglang(whole: bool, source: Input) -> Feed:
    """Both of SGLang's parsers one after the other, as its server feeds them."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    rule = sglang_adapter.resolve_parsers(source.writer.family, source.writer.model)
    if rule is None or rule.tool_call_parser is None:
        raise LookupError(f"SGLang has no parser for {source.writer.model}")
    calls = FunctionCallParser([Tool.model_validate(TOOL)], rule.tool_call_parser)
    reasoning = None
    if rule.reasoning_parser:
        # the prompt opened the reasoning, unless the completion does
        reasoning = ReasoningParser(rule.reasoning_parser, stream_reasoning=True, force_reasoning=_open(source))

    def feed(text: str, ids: list[int], last: bool) -> object:
        thought = ""
        if reasoning is not None:
            step = reasoning.parse_non_stream if whole else reasoning.parse_stream_chunk
            thought, text = step(text)
        if whole:
            return thought, calls.parse_non_stream(text) if calls.has_tool_call(text) else text
        return thought, calls.parse_stream_chunk(text) if text else None

    return feed


def _open(source: Input) -> bool:
    return source.writer.tail.rstrip().endswith(("<think>", "think<|sep|>"))


def _raw(source: Input) -> ReplayInput:
    family = load_families()[source.writer.family]
    reference = family.reference_for(source.writer.model)
    return ReplayInput(
        fixture_id="bench",
        family=source.writer.family,
        model=source.writer.model,
        text=source.text,
        generation_prompt=source.writer.tail,
        stop_tokens=reference.stop_tokens if reference else (),
    )


def feed_of(parser: str, format: str, whole: bool, source: Input) -> Feed:
    if parser == "prr":
        return prr(format, whole, source)
    if parser == "sglang":
        return sglang(whole, source)
    return in_vllm(parser, whole, source)


# ---------------------------------------------------------------------------------------------- measuring


def measure(parser: str, format: str, case: str, delta: str) -> dict[str, Any]:
    """One parser on one completion: microseconds per token, how far it got, and whether it found the call."""
    source = prepare(format, case, delta)
    whole = DELTAS[delta] == 0
    final = len(source.texts) - 1
    spent, runs, done = 0.0, 0, 0
    found = True
    gc.collect()
    gc.freeze()  # no parser pays for looking through the inputs and what is imported
    if whole or len(source.ids) <= CHECKED:
        feed = feed_of(parser, format, whole, source)
        pieces = enumerate(zip(source.texts, source.groups, strict=True))
        found = _called([feed(text, ids, i == final) for i, (text, ids) in pieces])
    while spent < LEAST:
        feed = feed_of(parser, format, whole, source)
        done = 0
        begin = time.process_time()
        for i, (text, ids) in enumerate(zip(source.texts, source.groups, strict=True)):
            feed(text, ids, i == final)
            done += len(ids)
            if i % CHECK_EVERY == 0 and time.process_time() - begin > CAP:
                break
        spent += time.process_time() - begin
        runs += 1
    return {
        "us_per_token": 1e6 * spent / runs / done,
        "tokens": done,
        "capped": done < len(source.ids),
        "found": found,
    }


def _called(given: Any) -> bool:
    """Does what a parser gave, ours or an engine's, hold the call?"""
    if isinstance(given, Delta):
        return given.kind == "call"
    if isinstance(given, list | tuple):
        return any(map(_called, given))
    name = getattr(getattr(given, "function", given), "name", None)
    return name == TOOL["function"]["name"] or _called(getattr(given, "tool_calls", None) or [])


def run(
    formats: Sequence[str], environments: Sequence[str], repeats: int, jobs: int
) -> tuple[list[Any], dict[str, str]]:
    """Every format in every environment, in processes of their own; rows, and what did not run with its reason."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    rows: list[Any] = []
    missing: dict[str, str] = {}
    columns = (TextColumn("parsers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    def one(work: tuple[str, str]) -> None:
        format, name = work
        python = ROOT / ".venv" / name / "bin" / "python"
        command: list[str | Path] = [python, __file__, "--child", name, "--repeats", str(repeats), "--family", format]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, start_new_session=True)
        if done.returncode:
            missing[f"{format} in {name}"] = (done.stderr.strip().splitlines() or ["?"])[-1]
        else:
            rows.extend(json.loads(done.stdout.strip().splitlines()[-1]))
        progress.advance(task)

    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        work = [(format, name) for format in formats for name in environments]
        task = progress.add_task("parsers", total=len(work))
        list(pool.map(one, work))
    return rows, missing


def rounds(parsers: Sequence[str], formats: Sequence[str], repeats: int) -> list[Any]:
    """Rows of medians. What was capped, or cannot run, is not tried again."""
    rows: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for round in range(repeats):
        for format in formats:
            for case in CASES:
                for delta in DELTAS:
                    for parser in parsers:
                        key = (format, case, delta, parser)
                        before = rows.setdefault(key, [])
                        if round and (before[-1].get("error") or before[-1].get("capped") or _slow(before[-1])):
                            continue
                        try:
                            before.append(measure(*_order(key)))
                        except Exception as error:  # of the parser measured: it is the row's value
                            before.append({"error": f"{type(error).__name__}: {error}"[:200]})
    made = []
    for (format, case, delta, parser), found in rows.items():
        row = {"format": format, "case": case, "delta": delta, "parser": parser, **found[0]}
        if "us_per_token" in row:
            row["us_per_token"] = round_to(statistics.median(f["us_per_token"] for f in found))
            row["rounds"] = len(found)
        made.append(row)
    return made


def _order(key: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    format, case, delta, parser = key
    return parser, format, case, delta


def _slow(row: Mapping[str, Any]) -> bool:
    return bool(row["us_per_token"] * row["tokens"] > 2e6)


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time per token of every parser.")
    parser.add_argument("--family", nargs="*", default=[], help="formats, with or without prr_ (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--no-sglang", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT / "bench_parsers.json")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; more than one disturb each other")
    parser.add_argument("--child", choices=IN_ENVIRONMENT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    wanted = {f"prr_{name.removeprefix('prr_')}" for name in options.family}
    formats = [name for name in WRITERS if name in FORMATS and (not wanted or name in wanted)]
    if options.child:
        if options.child == "sglang":
            from prr_testing import sglang_cpu  # noqa: F401  # stand-ins for GPU packages
        measured = rounds(IN_ENVIRONMENT[options.child], formats, options.repeats)
        print("\n" + json.dumps(measured))
        return 0
    environments = [name for name in IN_ENVIRONMENT if name != "sglang" or not options.no_sglang]
    rows, missing = run(formats, environments, options.repeats, options.jobs)
    report = {
        "python": platform.python_version(),
        "cpu_seconds_cap": CAP,
        "repeats": options.repeats,
        "stand_in_tokenizers": [f for f in formats if vocabulary(WRITERS[f].model).stand_in],
        "not_run": missing,
        "summary": summarise(rows),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    plot(report, options.out.with_suffix(".svg"))
    show(report)
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
