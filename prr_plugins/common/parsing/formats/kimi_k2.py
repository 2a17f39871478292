"""`prr_kimi_k2`: Kimi K2 Instruct, K2 Thinking, K2.5, K2.6 and K2.7 (calls in sections of special tokens, ids kept).

The models' own chat templates write an assistant turn as

    <think>REASONING</think>CONTENT<|tool_calls_section_begin|>
    <|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>
    <|tool_calls_section_end|>

without any of these line breaks (K2 Instruct without the reasoning; the prompt may end in `<think>` or in
`<think></think>`). There are no frames: reasoning and content are written back as they were. From K2 Thinking on the
call's id is written back as the client returns it and carries the name; `INDEX` counts the calls of the conversation.
Models copy ids they find in their history, so an id that says no name plainly is resolved against the declared tools.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from re import Match
from typing import Any

from prr_plugins.common.parsing.arguments import accepts
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._section import Section
from prr_plugins.common.parsing.formats._shared import FROM_REASONING, ThinkFormat
from prr_plugins.common.parsing.source import Source

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

# The separator may be missing where the arguments' brace shows that the id is over.
_HEADER = rf"{re.escape(_CALL)}\s{{0,64}}+(?P<id>[^<{{]{{0,512}}+)(?:(?P<separator>{re.escape(_ARGUMENTS)})|(?=\{{))"


def _call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    start, call_id = s.here, header["id"].rstrip()
    name = tool_name(call_id, s.tools)
    trying = name is None and FROM_REASONING[0] not in flags
    if trying:
        s.hold()
    s.take("markup", header.start("id"))
    s.take("name", s.pos + len(call_id))
    s.take("markup", header.end())
    call = s.open_call(name or "", call_id or None, start=start, flags=flags)
    if header["separator"] is None:
        call.flag("missing_separator")
    whole = yield from _CALLS.arguments(s, call)
    if whole and name is None and (name := _tool_that_takes("".join(call.pieces), s.tools)):
        call.name = name
        call.flag("name_inferred")
    if whole and name:
        _CALLS.close(s, call)
    if trying:
        if name or not whole:
            s.release()
        else:  # no tool can be meant; an empty message would end an agent's loop in silence: the client gets the text
            s.relabel(("content", s.here))
    if whole and not name:
        s.lose_call(start, "malformed", None, s.raw(call.raw_from, call.raw_to or s.here))
    return whole and bool(name)


# ------------------------------------------------------------------------------------------------- ids

_INDEX = re.compile(r":\d+\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")  # what clients with a strict id pattern replace
_PREFIXES = ("functions.", "functions_", "functions:", "functions", "")
_SUFFIX = re.compile(r"[._:-]?\d*")


def tool_name(call_id: str, tools: Mapping[str, Any]) -> str | None:
    """The tool's name that `call_id` says; None if it says none.

    `functions.NAME:INDEX` says it plainly. Of an id in another spelling (`functions_NAME_3`, `functionsNAME5`) the
    longest declared name counts that explains the whole id.
    """
    without_index = _INDEX.sub("", call_id)
    plain = without_index.removeprefix("functions.")
    for name in (without_index, plain):
        if name in tools:
            return name
    if fitting := [name for name in tools if _spells(call_id, name)]:
        return max(fitting, key=len)
    return plain if plain != call_id and plain else None


def _spells(call_id: str, name: str) -> bool:
    return any(
        call_id.startswith(prefix + spelling) and _SUFFIX.fullmatch(call_id, len(prefix + spelling)) is not None
        for spelling in {name, _UNSAFE.sub("_", name)}
        for prefix in _PREFIXES
    )


def _tool_that_takes(arguments: str, tools: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The one tool that accepts these arguments; None if there are several or none."""
    takers = [name for name, parameters in tools.items() if accepts(parameters, arguments)]
    return takers[0] if len(takers) == 1 else None


_CALLS = Section(_SECTION, _SECTION_END, _CALL, _CALL_END, header=_HEADER, read=_call)
_FORMAT = ThinkFormat(_CALLS.openers, before=("",), stops=("<|im_end|>",))

FORMAT = Format(
    name="prr_kimi_k2",
    grammar=_FORMAT.grammar,
    markers=("<|im_assistant|>", "<|im_middle|>", "<|im_end|>", _SECTION, _SECTION_END, _CALL, _ARGUMENTS, _CALL_END),
    turn_openers=("<|im_assistant|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
