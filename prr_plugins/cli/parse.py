"""`prr parse`: what a format makes of a completion, whole or streamed in any split."""

from __future__ import annotations

import os.path
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prr_plugins.cli.common import fail, print_json, read_json, read_text, read_tools, reading, visible
from prr_plugins.common.parsing.completion import Delta
from prr_plugins.common.parsing.formats import FORMATS, UnknownFormat
from prr_plugins.common.parsing.stream_parser import StreamParser

if TYPE_CHECKING:
    from prr_plugins.common.parsing.completion import ParsedCompletion


class FinishReason(StrEnum):
    stop = "stop"
    length = "length"


class StreamArguments(StrEnum):
    eager = "eager"
    complete = "complete"


def command(
    completion: Annotated[
        Path | None, typer.Argument(help="File with the completion, special tokens shown; standard input without it.")
    ] = None,
    format: Annotated[str, typer.Option("--format", "-f", help=f"One of: {', '.join(sorted(FORMATS))}.")] = ...,  # type: ignore[assignment]
    tools: Annotated[Path | None, typer.Option(help="JSON file with the request's tools (a list, or a body).")] = None,
    prompt_tail: Annotated[
        str, typer.Option(help=r"Text of the prompt from its last turn opener on; \n stands for a newline.")
    ] = "",
    finish_reason: Annotated[FinishReason, typer.Option(help="Why the engine stopped.")] = FinishReason.stop,
    split: Annotated[
        str, typer.Option(help="How it is streamed: one, char, N (characters), or a JSON file of chunks or lengths.")
    ] = "one",
    stream_arguments: Annotated[
        StreamArguments, typer.Option(help="eager: arguments as they come; complete: calls once they are closed.")
    ] = StreamArguments.complete,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Parse one completion and show its segments, reasoning, content and calls."""
    text = read_text(completion)
    declared = read_tools(tools)
    try:
        parser = StreamParser(
            format,
            tools=declared,
            prompt_tail=prompt_tail.replace("\\n", "\n"),
            stream_arguments=stream_arguments.value,
        )
    except UnknownFormat as error:
        fail(str(error))
    deltas: list[Delta] = []
    for chunk in _chunks(text, split):
        deltas += parser.feed(chunk)
    deltas += parser.finish(finish_reason.value)
    if as_json:
        print_json({**parser.result.to_dict(), "stream": accumulate(deltas)})
    else:
        _show(parser.result)


def accumulate(deltas: list[Delta]) -> dict[str, Any]:
    """What a streaming client holds in the end."""
    text = {"reasoning": "", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for d in deltas:
        if d.kind == "call":
            calls[d.index] = {"index": d.index, "id": d.call_id, "name": d.text, "arguments": "", "closed": False}
        elif d.kind == "arguments":
            calls[d.index]["arguments"] += d.text
        elif d.kind == "call_end":
            calls[d.index]["closed"] = True
        else:
            text[d.kind] += d.text
    return {
        "reasoning": text["reasoning"] or None,
        "content": text["content"] or None,
        "tool_calls": list(calls.values()),
    }


def _chunks(text: str, split: str) -> list[str]:
    if split == "one":
        return [text]
    if split == "char" or split.isdecimal():
        with reading("--split"):
            size = 1 if split == "char" else int(split)
        if size < 1:
            fail("--split: a chunk has at least 1 character")
        return [text[i : i + size] for i in range(0, len(text), size)]
    if not os.path.isfile(split):  # unlike Path's, it takes a name of any length
        shown = split if len(split) <= 80 else split[:80] + "..."
        fail(f"--split {shown}: accepted are one, char, a number of characters, or a JSON file")
    value = read_json(Path(split))
    if not isinstance(value, list) or not value:
        fail(f"{split}: expected a JSON list of chunks (strings) or of lengths (characters)")
    if all(isinstance(v, str) for v in value):
        if "".join(value) != text:
            fail(f"{split}: the chunks joined are not the completion")
        return value
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value) or sum(value) != len(text):
        fail(f"{split}: expected lengths that sum up to the completion's {len(text)} characters")
    chunks, at = [], 0
    for length in value:
        chunks.append(text[at : at + length])
        at += length
    return chunks


_STYLE = {
    "reasoning": "dim italic",
    "content": "default",
    "markup": "magenta",
    "name": "bold cyan",
    "arguments": "green",
}


def _show(result: ParsedCompletion) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    pieces = [(visible(result.raw_text[s.start : s.end]), s.kind) for s in result.segments]
    if console.color_system is None:  # nothing would tell them apart
        segments = Table("segment", "text")
        for text, kind in pieces:
            segments.add_row(kind, Text(text))
        console.print(segments)
    else:
        console.print(Text.assemble(*((text, _STYLE[kind]) for text, kind in pieces)))
        console.print(Text.assemble(*((f" {kind} ", f"{style} reverse") for kind, style in _STYLE.items())))
    if result.parsed_tool_calls or result.incomplete_calls:
        table = Table("call", "id", "arguments", "status")
        for call in result.parsed_tool_calls:
            status = " ".join((call.status, *call.flags))
            cells = (call.name, call.id or "-", call.arguments)
            table.add_row(*(Text(visible(cell)) for cell in cells), status)
        for cut in result.incomplete_calls:
            cells = (cut.name or "-", "-", cut.raw_arguments)
            table.add_row(*(Text(visible(cell)) for cell in cells), cut.status, style="red")
        console.print(table)
