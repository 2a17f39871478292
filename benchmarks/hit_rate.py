"""The prefix-cache hit rate of whole agent traces: `make bench [ENGINE=sglang] [TRACE=FILE] [VARIATION=R] [SEEDS=N]`.

Replays traces on a real server, stock in three settings and ours in three, at several rates of variation in how the
model writes. Prints tables, writes out/bench_hit_rate.json (SGLang: out/bench_hit_rate_sglang.json) and a .png beside
it. Exit code 2: the trace or an option is not usable.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import metadata
from pathlib import Path

from rich.console import Console

from prr_testing.bench import report, run, trace
from prr_testing.bench.writing import WRITERS
from prr_testing.models import model_dir
from prr_testing.server import BLOCK_SIZE, PAGE_SIZE
from prr_testing.tokens import Vocabulary

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out"
FILES = {"vllm": "bench_hit_rate.json", "sglang": "bench_hit_rate_sglang.json"}
CURVE = (0.0, 0.25, 1.0)


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate <= 1:
        raise argparse.ArgumentTypeError("a rate from 0 to 1 is needed")
    return rate


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description="Prefix-cache hit rates of replayed agent traces.")
    shipped = HERE / "traces" / "swe_agent.jsonl"
    parser.add_argument(
        "--trace", type=Path, default=shipped, metavar="FILE", help="JSON or JSON Lines of OpenAI messages"
    )
    parser.add_argument(
        "--variation", type=_rate, default=0.25, metavar="R", help="rate of the main table (default 0.25)"
    )
    parser.add_argument("--seeds", type=_count, default=1, metavar="N", help="replays per rate, each with its own seed")
    parser.add_argument("--model", choices=sorted(WRITERS), default="qwen3.6")
    parser.add_argument("--engine", choices=FILES, default="vllm", help="the one of this environment (default: vllm)")
    parser.add_argument("--block-size", type=_count, metavar="N", help="tokens of a cache block; SGLang: a page")
    parser.add_argument("--no-curve", action="store_true", help="only the rate of the main table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: out/bench_hit_rate.json")
    arguments = parser.parse_args()
    engine = arguments.engine
    block_size = arguments.block_size or (BLOCK_SIZE if engine == "vllm" else PAGE_SIZE)
    try:
        conversations = trace.load(arguments.trace)
    except trace.TraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    from transformers import AutoTokenizer

    folder = model_dir(arguments.model)
    vocabulary = Vocabulary(AutoTokenizer.from_pretrained(folder))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    variation = arguments.variation
    variations = [variation] if arguments.no_curve else sorted({*CURVE, variation})
    seeds = range(arguments.seeds)
    turns = sum(len(conversation.steps) for conversation in conversations)
    console.print(
        f"{len(conversations)} conversations with {turns} turns, {len(run.MODES)} modes,"
        f" {len(variations)} variation rates, {len(seeds)} seeds",
        highlight=False,
    )
    started = time.monotonic()

    def on_result(result: run.Result) -> None:
        rates = f"hit rate {result.hit_rate:.1%} of {result.best_hit_rate:.1%} possible" if result.turns else "no turns"
        label = f"{result.mode.name}, variation {result.variation:g}, seed {result.seed}"
        console.print(f"{time.monotonic() - started:5.0f} s  {label}: {rates}", highlight=False)
        for reason in result.dropped:
            console.print(f"         left out: {reason}", highlight=False, markup=False)

    def on_server(name: str) -> None:
        console.print(f"{time.monotonic() - started:5.0f} s  starting the server: {name}", highlight=False)

    out = arguments.out or OUT / FILES[engine]
    try:
        results = run.run(
            conversations,
            arguments.model,
            folder,
            vocabulary,
            variations,
            seeds,
            out.parent,
            on_result,
            on_server,
            engine,
            block_size,
        )
    except trace.TraceError as error:
        print(f"bench: the server cannot run this trace: {error}", file=sys.stderr)
        return 2
    title = f"{arguments.trace.name} on {arguments.model}, variation {variation:g}, blocks of {block_size}"
    report.show(console, results, variation, title)
    about = {
        "engine": f"{engine} {metadata.version(engine)}",
        "model": arguments.model,
        "block_size": block_size,
        "trace": arguments.trace.name,
    }
    report.write_json(out, results, variation, seeds, about)
    plot = out.with_suffix(".png")
    report.plot(plot, results, variation)
    console.print(f"written: {out}, {plot}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
