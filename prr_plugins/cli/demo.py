"""`prr demo`: one scripted agent session on a real server, the engine's own parsers against ours.

Needs what tests need (`prr_testing`: the scripted sampler, real tokenizers), which the wheel does not contain: it
runs in a checkout of the project, where `make demo` sets all of it up.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from prr_plugins.cli.common import fail


def command(
    session: Annotated[
        Path | None, typer.Option(help="A session file, see docs/session-format.md (default: the shipped one).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Spell every completion with random tokens.")] = None,
    engine: Annotated[str, typer.Option(help="The engine of this environment: vllm or sglang.")] = "vllm",
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("out/demo.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run one agent session on a real server, stock parsers against ours.

    Exit 0: ours kept every token and cached all it could; 1: it did not; 2: the session cannot be run.
    """
    try:
        from prr_testing import demo
        from prr_testing.server import ServerFailed
    except ModuleNotFoundError as missing:
        fail(f"{missing.name} is not installed; in a checkout of the project run: make demo")
    if engine not in ("vllm", "sglang"):
        fail(f"--engine {engine}: accepted are vllm, sglang")
    try:
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            kept = demo.run(session, seed, out, engine=engine)  # type: ignore[arg-type]
    except demo.SessionError as error:
        fail(str(error))
    except (demo.ReplayError, ServerFailed) as error:
        typer.echo(f"prr: {error}", err=True)
        kept = False
    else:
        if as_json:
            typer.echo(out.read_text(), nl=False)
    raise typer.Exit(0 if kept else 1)
