"""The demo: one scripted agent session on the real server, with the engine's own parsers and with ours.

`session` reads what the client and the model say, `replay` runs it and measures, `report` shows it; `run` is the whole.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from .. import parsers
from ..models import model_dir
from ..server import BLOCK_SIZE, PAGE_SIZE, Engine, serve_engine
from ..tokens import Vocabulary
from .replay import ReplayError, replay
from .report import Report, write
from .session import DEFAULT_SESSION, SessionError, load

__all__ = ["DEFAULT_SESSION", "ReplayError", "SessionError", "run"]

MAX_MODEL_LEN = 65_536
BLOCK_SIZES: dict[Engine, tuple[int, ...]] = {"vllm": (BLOCK_SIZE,), "sglang": (PAGE_SIZE, 1)}


def run(
    session_file: Path | None,
    seed: int | None,
    out: Path,
    console: Console | None = None,
    *,
    engine: Engine = "vllm",
    block_sizes: Sequence[int] | None = None,
) -> bool:
    """Run the session with both sets of parsers, print the tables and write `out`.

    block_sizes: tokens of a cache block (SGLang: page), one run for each; None: `BLOCK_SIZES` of the engine.
    True if ours kept every token (each prompt begins with all ids of the turn before) and cached the most possible.
    Raises SessionError, ReplayError or ServerFailed.
    """
    from transformers import AutoTokenizer

    console = console or Console()
    if not console.is_terminal:
        console = Console(width=140)
    session = load(session_file or DEFAULT_SESSION)
    for warning in session.warnings:
        console.print(f"[yellow]{session.name}: {warning}[/]", highlight=False)
    if session.model not in parsers.OURS:
        raise SessionError(f"model: {session.model!r} is not known; known: {', '.join(parsers.OURS)}")
    folder = model_dir(session.model)
    vocabulary = Vocabulary(AutoTokenizer.from_pretrained(folder))
    reports = []
    for block_size in block_sizes or BLOCK_SIZES[engine]:
        report = Report(console, session, seed, engine=f"{engine} {metadata.version(engine)}", block_size=block_size)
        for name, chosen in (("stock", parsers.STOCK[engine][session.model]), ("prr", parsers.OURS[session.model])):
            ours = name == "prr"
            started = time.monotonic()
            console.print(f"{name}: starting the server", highlight=False)
            with serve_engine(
                engine,
                folder,
                *parsers.ARGUMENTS.get((engine, session.model), ()),
                tool_parser=chosen.tool,
                reasoning_parser=chosen.reasoning,
                plugins=ours,
                block_size=block_size,
                max_model_len=MAX_MODEL_LEN,
                log=out.with_name(f"{out.stem}-{name}.log"),
            ) as server:
                console.print(f"{name}: server ready after {time.monotonic() - started:.0f} s", highlight=False)
                with report.run(name, chosen) as on_row:
                    replay(server, session, vocabulary, seed=seed, body={"prr": True} if ours else None, on_row=on_row)
        reports.append(report)
        write(out, reports)
        report.verdict()
    return all(report.kept for report in reports)
