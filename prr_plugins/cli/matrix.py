"""`prr matrix`: what each engine's own parsers and templates keep of a turn, cell by cell. Runs from a checkout.

The engines, models and rows belong to the project's test distribution (`prr_testing.matrix`), not to this package: each
engine runs in an environment of its own, and the command only drives them and writes the report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from prr_plugins.cli.common import fail, print_json, reading


class Engine(StrEnum):
    vllm = "vllm"
    sglang = "sglang"


class EngineFailed(Exception):
    """An engine's run ended early; the message is one line."""


def command(
    engine: Annotated[list[Engine], typer.Option(help="Only these engines. Repeatable.")] = [*Engine],  # noqa: B006
    model: Annotated[list[str] | None, typer.Option(help="Only these models. Repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Where matrix.json, matrix.md and matrix.html go.")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare stock vLLM, stock SGLang and ours, token by token, over five models and twelve kinds of turn."""
    if importlib.util.find_spec("prr_testing") is None:
        fail("the matrix runs real engines from a source checkout of prr-plugins; run `make matrix` there")
    from prr_testing.matrix import page
    from prr_testing.matrix.turns import ROWS, TITLES

    unknown = sorted(set(model or ()) - set(TITLES))
    if unknown:
        fail(f"--model {unknown[0]}: accepted are {', '.join(TITLES)}")
    with reading(f"--out {out}"):  # before the run: it takes minutes
        if out.exists() and not out.is_dir():
            fail(f"--out {out}: a file; expected a directory")
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK | os.X_OK):
            fail(f"--out {out}: not writable")
    models = [name for name in TITLES if not model or name in model]
    engines, cells, missing = _run([*dict.fromkeys(engine)], models, len(ROWS) * len(models) * 2, quiet=as_json)
    if not cells:
        fail("no engine ran: " + "; ".join(f"{name}: {why}" for name, why in missing.items()))
    report = page.report(engines, cells, missing)
    page.write(report, out)
    faults = page.faults(cells)
    if as_json:
        print_json(report)
    else:
        _show(report, missing, faults, out)
    raise typer.Exit(1 if faults else 0)


def _run(
    engines: list[Engine], models: list[str], each: int, *, quiet: bool
) -> tuple[dict[str, str], list[dict[str, Any]], dict[str, str]]:
    """Run the engines side by side: their versions, all cells, and why an engine did not run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    versions: dict[str, str] = {}
    cells: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    missing: dict[str, str] = {}
    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    def run(name: Engine, progress: Progress, task: Any) -> None:
        try:
            for value in _worker(name, models):
                if "version" in value:
                    versions[name.value] = value["version"]
                else:
                    cells[name].append(value)
                    progress.advance(task)
        except EngineFailed as why:
            missing[name.value] = str(why)

    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress, ThreadPoolExecutor() as pool:
        jobs = [pool.submit(run, name, progress, progress.add_task(name.value, total=each)) for name in engines]
        for job in jobs:
            job.result()
    found = [cell for name in engines if name.value not in missing for cell in cells[name]]
    return {name: v for name, v in versions.items() if name not in missing}, found, missing


def _worker(engine: Engine, models: list[str]) -> Iterator[dict[str, Any]]:
    """What an engine's worker says, value by value.

    Raises:
        EngineFailed: its environment is missing, or it ended early.
    """
    from prr_testing.paths import CHECKOUT

    python = CHECKOUT / ".venv" / engine.value / "bin" / "python"
    if not python.is_file():
        raise EngineFailed(f"its environment is not set up; run `make setup ENGINE={engine.value}`")
    command = [str(python), "-m", "prr_testing.matrix.worker", engine.value, *models]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRR_") or k == "PRR_CACHE"}
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=CHECKOUT) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                yield json.loads(line)
        if worker.returncode:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise EngineFailed(f"ended with code {worker.returncode}: {last[0]}")


def _show(report: dict[str, Any], missing: dict[str, str], faults: list[Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    columns = list(report["totals"])
    table = Table("turn", *(report["titles"][by] for by in columns))
    for name, row in report["rows"].items():
        shown = []
        for by in columns:
            mine = [c for c in report["cells"] if (c["row"], c["by"]) == (name, by) and c["possible"]]
            lost = sum(c["reusable"] - c["kept"] for c in mine if not c["exact"])
            exact = sum(c["exact"] for c in mine)
            text = f"{exact}/{len(mine)}" + (f"  −{lost} tokens" if lost else "")
            shown.append(Text(text, "green" if exact == len(mine) else "red"))
        table.add_row(Text(row["title"]), *shown)
    console.print(table)
    for name, why in missing.items():
        console.print(Text(f"{name} did not run: {why}", "yellow"))
    for cell in faults:
        reason = cell["reason"] or "no reason"
        console.print(Text(f"not exact: {cell['model']} {cell['row']} {cell['by']}: {reason}", "red"))
    console.print(Text(f"{out / 'matrix.html'}"))
