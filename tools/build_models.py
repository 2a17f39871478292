"""Build the models' tokenizers and tiny configs into the cache: `python tools/build_models.py [NAME ...]`.

Prints one line per model that had to be built; says nothing and takes no time when all are there.
"""

from __future__ import annotations

import argparse
import time

from prr_testing.models import MODELS, is_built, model_dir


def main() -> None:
    parser = argparse.ArgumentParser(description="Build real tokenizers with tiny dummy networks from pinned packages.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)} (default: all)")
    names = parser.parse_args().names or list(MODELS)
    for name in names:
        if name not in MODELS:
            parser.error(f"unknown model {name!r}; known: {', '.join(MODELS)}")
        if not is_built(name):
            started = time.monotonic()
            folder = model_dir(name)
            print(f"built {name} in {folder} ({time.monotonic() - started:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
