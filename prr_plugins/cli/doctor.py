"""`prr doctor`: would a server here do what its flags ask for? The same checks as at a server's start."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prr_plugins.cli.common import print_json, read_text, visible
from prr_plugins.common.serving.doctor import Finding

_ENGINES = ("vllm", "sglang")
_EXIT = {"ok": 0, "warning": 1, "error": 2}
_MARK = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


def command(
    model: Annotated[
        str | None, typer.Argument(help="The model to serve: its tokenizer and template are checked.")
    ] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="As for the server.")] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="As for the server.")] = None,
    chat_template: Annotated[Path | None, typer.Option(help="As for the server: a template file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check hooks, settings, flags, tokenizer and template.

    Exit 0: all well; 1: warnings; 2: a server would refuse to start.
    """
    template = None if chat_template is None else read_text(chat_template)
    findings = list(_examine(model, tool_call_parser, reasoning_parser, template))
    worst = max((f.level for f in findings), key=lambda level: _EXIT[level])
    if as_json:
        print_json({"level": worst, "findings": [asdict(f) for f in findings]})
    else:
        width = max(len(f.check) for f in findings)
        for f in findings:
            typer.echo(f"{_MARK[f.level]}  {f.check:<{width}}  {visible(f.detail)}")
    raise typer.Exit(_EXIT[worst])


def _examine(
    model: str | None, tool_parser: str | None, reasoning_parser: str | None, template: str | None
) -> Iterator[Finding]:
    installed = [engine for engine in _ENGINES if importlib.util.find_spec(engine) is not None]
    if not installed:
        yield Finding("engine", "error", "no engine is installed in this environment")
    for engine in installed:
        try:
            doctor = importlib.import_module(f"prr_plugins.{engine}.doctor")
        except Exception as error:  # an engine's import runs much of it, and fails in ways of its own
            yield Finding("engine", "error", f"{engine} cannot be imported ({type(error).__name__}: {error})")
            continue
        yield from doctor.examine(model, tool_parser, reasoning_parser, template)
