"""Many clients on a real server whose shared store fails in every way: `make soak [REQUESTS=N] [FAULT=NAME]`.

Exit code 0: no wrong splice, no failed request, every break named, the store within its bound, every fault survived.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prr_testing import soak
from prr_testing.server import ServerFailed
from prr_testing.soak.faults import FAULTS

OUT = Path(__file__).resolve().parent.parent / "out" / "soak.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Many clients on a real server whose shared store fails in every way.")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--fault", choices=sorted(FAULTS), action="append", help="only this one (may be repeated)")
    parser.add_argument("--no-overhead", action="store_true", help="leave the overhead by length of history out")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE")
    arguments = parser.parse_args()
    histories = () if arguments.no_overhead else (1_000, 100_000)
    faults = tuple(arguments.fault or FAULTS)
    try:
        return 0 if soak.run(arguments.requests, arguments.out, faults=faults, histories=histories) else 1
    except ServerFailed as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
