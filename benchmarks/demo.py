"""The whole thread on a real server, stock parsers against ours: `make demo [ENGINE=sglang] [SESSION=FILE] [SEED=N]`.

Starts the server twice and runs the same scripted agent session with the stock `openai` client. Exit code 0: ours kept
every sampled token in every turn and the cache held all it could; 1: it did not; 2: the session cannot be run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prr_testing import demo
from prr_testing.server import ServerFailed

OUT = Path(__file__).resolve().parent.parent / "out"
FILES = {"vllm": "demo.json", "sglang": "demo_sglang.json"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Stock parsers against ours on a real server, one scripted session.")
    parser.add_argument(
        "--session", type=Path, metavar="FILE", help="see docs/session-format.md (default: the shipped one)"
    )
    parser.add_argument("--engine", choices=FILES, default="vllm", help="the one of this environment (default: vllm)")
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="N",
        help="tokens of a cache block, SGLang: of a page (default: 32; SGLang: 16, then 1)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="spell every completion with random tokens")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the figures go (default: out/demo.json or out/demo_sglang.json)"
    )
    arguments = parser.parse_args()
    engine, block_sizes = arguments.engine, arguments.block_size and [arguments.block_size]
    out = arguments.out or OUT / FILES[engine]
    try:
        return 0 if demo.run(arguments.session, arguments.seed, out, engine=engine, block_sizes=block_sizes) else 1
    except demo.SessionError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (demo.ReplayError, ServerFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
