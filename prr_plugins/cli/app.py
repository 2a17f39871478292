"""Gathers the commands of `prr`. What a command needs beside typer is imported when it runs: `prr --help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from prr_plugins import __version__
from prr_plugins.cli import check, demo, doctor, matrix, parse, store

app = typer.Typer(
    help="Parse-Render Roundtrip: lossless parsers and prompt splicing for vLLM and SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of `prr` itself."""


app.command("parse")(parse.command)
app.command("check")(check.command)
app.command("doctor")(doctor.command)
app.command("matrix")(matrix.command)
app.command("demo")(demo.command)
app.add_typer(store.app, name="store")
