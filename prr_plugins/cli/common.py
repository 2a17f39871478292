"""What the commands share: reading input without changing it, and saying clearly what was wrong with it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer


def fail(message: str) -> NoReturn:
    """The question was wrong: one line to stderr, exit code 2."""
    typer.echo(f"prr: {visible(' '.join(message.split()))}", err=True)
    raise typer.Exit(2)


# A terminal obeys C0 and C1 alike. C0 has pictures of its own in Unicode.
_VISIBLE: dict[int, int | str] = {
    **{c: 0x2400 + c for c in range(32) if c not in b"\t\n"},
    0x7F: 0x2421,
    **{c: f"\\x{c:02x}" for c in range(0x80, 0xA0)},
}


def visible(text: str) -> str:
    """Foreign text for a terminal: control characters are shown, not obeyed."""
    return text.translate(_VISIBLE)


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Around whatever reads what the user named: nothing that may be wrong with it comes out as a traceback."""
    try:
        yield
    except UnicodeDecodeError as error:
        fail(f"{name}: not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        fail(f"{name}: not JSON: {error}")
    except OSError as error:
        fail(f"{name}: {error.strerror or error}")
    except RecursionError:
        fail(f"{name}: nested too deeply")
    except ValueError as error:
        fail(f"{name}: {error}")


def read_text(path: Path | None) -> str:
    """A file's text, or standard input's: UTF-8, no newline translated."""
    with reading("standard input" if path is None else str(path)):
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return data.decode("utf-8")


def read_json(path: Path) -> Any:
    """A JSON file's value."""
    text = read_text(path)
    with reading(str(path)):
        return json.loads(text)


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
