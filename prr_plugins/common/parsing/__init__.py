"""A completion in, reasoning, content and tool calls out.

Promise: what the client gets is sliced out of the model's own text, whole or in any pieces; no text raises. Imports
nothing of ours but itself, and no engine.

- `stream_parser`: the driver; `completion`: its result; `source`, `markers`: what a grammar reads with.
- `formats/`: one file a model family; `format`: what such a file gives.
- `arguments`: a call's raw argument text as JSON.
- `reasoning_tokens`: where reasoning begins and ends in token ids.
"""

from prr_plugins.common.parsing.completion import Delta, IncompleteCall, ParsedCompletion, Policy, Segment, ToolCall
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats import FORMATS, UnknownFormat, get_format
from prr_plugins.common.parsing.stream_parser import StreamParser, parse

__all__ = [
    "FORMATS",
    "Delta",
    "Format",
    "IncompleteCall",
    "ParsedCompletion",
    "Policy",
    "Segment",
    "StreamParser",
    "ToolCall",
    "UnknownFormat",
    "get_format",
    "parse",
]
