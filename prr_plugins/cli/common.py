"""What the commands share: reading input without changing it, and saying clearly what was wrong with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer


def fail(message: str) -> NoReturn:
    """The question was wrong: one line to stderr, exit code 2."""
    typer.echo(f"prr: {message}", err=True)
    raise typer.Exit(2)


def read_text(path: Path | None) -> str:
    """A file's text, or standard input's: UTF-8, no newline translated."""
    name = "standard input" if path is None else str(path)
    try:
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        fail(f"{name}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{name}: not UTF-8 at byte {error.start}")


def read_json(path: Path) -> Any:
    """A JSON file's value."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        fail(f"{path}: not JSON: {error}")


def read_tools(path: Path | None) -> list[dict[str, Any]] | None:
    """Tools in OpenAI's shape: a list, or an object with `tools` (a request body will do)."""
    if path is None:
        return None
    value = read_json(path)
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list):
        fail(f"{path}: expected a list of tools, or an object with a list `tools`")
    for i, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            fail(f"{path}: tools[{i}] has no function name")
    return tools


def print_json(value: Any) -> None:
    """`value` for a program."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))
