"""All cells of one engine: `python -m prr_testing.matrix.worker vllm|sglang [MODEL...]`, in that engine's environment.

Writes one JSON object a line to standard output: first `{"engine", "version"}`, then a cell each.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def main() -> int:
    engine, *wanted = sys.argv[1:]
    out = sys.stdout
    sys.stdout = sys.stderr  # engines print as they like
    os.environ["VLLM_PLUGINS"] = ""  # stock: no plugin is loaded, ours included
    if engine == "sglang":
        from .. import sglang_cpu  # noqa: F401  # stand-ins for GPU packages, to be there before sglang is
        from .sglang_chat import SglangChat as Chat
    else:
        from .vllm_chat import VllmChat as Chat  # type: ignore[assignment]
    from importlib.metadata import version

    from .cells import Cell, Measure
    from .turns import ROWS, WRITERS

    logging.disable(logging.ERROR)
    spec = importlib.util.find_spec(engine)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent

    def say(value: dict[str, Any]) -> None:
        print(json.dumps(value, ensure_ascii=False), file=out, flush=True)

    say({"engine": engine, "version": version(engine)})
    for ours in (False, True):  # the plugin is loaded behind the last stock cell
        for model in wanted or WRITERS:
            try:
                measure = Measure(Chat(model, ours=ours), root)
            except Exception as error:  # this installation of the engine cannot serve the model: its own words
                why = f"{engine} does not start: {str(error).splitlines()[0]}"
                for row in ROWS:
                    by = f"ours_{engine}" if ours else engine
                    say(Cell(model, row.name, by, reason=why, possible=False).to_dict())
                continue
            for row in ROWS:
                say(measure.cell(row).to_dict())
    out.flush()
    os._exit(0)  # the engines' thread pools would keep the process


if __name__ == "__main__":
    main()
