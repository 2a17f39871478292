"""`prr_qwen3`: Qwen3.5, Qwen3.6, Qwen3.8 and Qwen3-Coder (reasoning in `<think>`, calls in XML).

The models' own chat templates write an assistant turn as

    <think>\\nREASONING\\n</think>\\n\\nCONTENT\\n\\n<tool_call>\\n<function=NAME>\\n
    <parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>\\n<tool_call>...

(Qwen3-Coder without the reasoning; the prompt may end in `<think>\\n` or in `<think>\\n\\n</think>\\n\\n`). The frames
are the newlines written here; they belong to the marker only when they stand exactly so. Values are not escaped, so
only the place tells a closer from text: `</parameter>` closes where `<parameter=`, `</function>` or `</tool_call>`
follows.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from re import Match

from prr_plugins.common.parsing.arguments import ObjectWriter, declares
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._json_call import json_calls, json_opener
from prr_plugins.common.parsing.formats._shared import (
    END,
    FROM_REASONING,
    Opener,
    ThinkFormat,
    read_value,
    repeated,
    whole_object,
)
from prr_plugins.common.parsing.markers import Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_NAME = r"([^<>\n]{1,256}+)"
_CALL = Shape(rf"<tool_call>\s{{0,64}}+<function={_NAME}>")
_BARE_CALL = Shape(rf"<function={_NAME}>\s{{0,64}}+(?:<parameter=|</function>)")

_BODY = Markers("<parameter=", "</function>", "</tool_call>", "<tool_call>", "<function=", END)
_PARAMETER = Shape(rf"<parameter={_NAME}>")
_BARE_END = Markers(
    "</parameter>", "\n</function>", "</tool_call>", "\n</tool_call>", "\n<parameter=", "<tool_call>", "<function="
)
_FRAMED_END = _BARE_END | Markers("\n</parameter>")
# by (framed, in reasoning): a draft may break off, and reasoning end, within what looked like a value
_ENDS = {
    (framed, thinking): ends | Markers(END, "\n" + END) if thinking else ends
    for framed, ends in ((True, _FRAMED_END), (False, _BARE_END))
    for thinking in (True, False)
}
_AFTER_PARAMETER = Shape(r"\s{0,256}+(?:<parameter=|</function>|</tool_call>)")
_AFTER_FUNCTION = Shape(r"\s{0,256}+</tool_call>")
_AFTER_CALL = Shape(r"\s{0,256}+<tool_call>\s{0,64}+(?:<function=|\{)")
_UNCLOSED = Shape(rf"\n<parameter={_NAME}>\n")
_QUOTED = {"<tool_call>": (_CALL, "</tool_call>"), "<function=": (_BARE_CALL, "</function>")}


def _declared(s: Source, header: Match[str]) -> bool:
    """Without `<tool_call>` a function's tag may be prose: only a tool that was offered is called so."""
    return not s.tools or header.group(1) in s.tools


def _function(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, from its opener to its closers. False if it was cut."""
    start, name = s.here, header.group(1)
    in_reasoning = FROM_REASONING[0] in flags
    s.take("markup", header.start(1))
    s.take("name", header.end(1))
    s.take("markup", s.pos + 1)
    call = s.open_call(name, start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(name))
    whole = yield from whole_object(s, call)
    while True:
        mark = yield from s.between(call, _BODY)
        if mark is None or mark == END:
            s.drop_call(call, "incomplete")
            return False
        if whole or mark != "<parameter=":
            break
        parameter = yield from s.decide(_PARAMETER)
        if parameter is None:
            s.take("markup", len(s.buf))
            s.drop_call(call, "incomplete")
            return False
        if not parameter:
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark))
            continue
        s.take("markup", parameter.end())
        arguments.begin(parameter.group(1))
        framed = yield from s.literal("\n")
        end = yield from read_value(
            s, _ENDS[framed, in_reasoning], partial(_ends_value, s, call), arguments.feed, _QUOTED
        )
        if end is None:
            s.drop_call(call, "incomplete")
            return False
        if end.endswith("</parameter>"):
            s.take("markup", s.pos + len(end))
        else:
            call.flag("missing_closer")
            s.take("markup", s.pos + (framed and end.startswith("\n")))
        arguments.end()
    if not whole:
        call.raw_to = s.here
    if mark == "</function>":
        s.take("markup", s.pos + len(mark))
    else:
        call.flag("missing_closer")
    if not whole:
        arguments.close()
    s.close_call(call, repaired=arguments.repaired, made=not whole)
    closer = yield from s.decide(_AFTER_FUNCTION)
    if closer is None:
        s.take("markup", len(s.buf))
    yield from repeated(s, _AFTER_FUNCTION)
    return True


def _ends_value(s: Source, call: Call, mark: str) -> Generator[None, None, bool]:
    """Does `mark` end a value? Its own closer does where more of a call follows; another, if its own is missing."""
    if mark.endswith("</parameter>"):
        return (yield from s.decide(_AFTER_PARAMETER, len(mark))) is not False
    if mark.endswith("<parameter="):
        header = yield from s.decide(_UNCLOSED)
        return bool(header and declares(s.tools.get(call.name), header.group(1)))
    after = yield from s.decide(_AFTER_FUNCTION if mark.endswith("</function>") else _AFTER_CALL, len(mark))
    return bool(after) or (after is None and not s.was_cut)


_FORMAT = ThinkFormat(
    [
        Opener("<tool_call>", _CALL, _function),
        Opener("<tool_call>", json_opener("<tool_call>"), json_calls("</tool_call>")),
        Opener("<function=", _BARE_CALL, _function, _declared, ("no_section",), certain=False),
    ],
    inside="\n",
    behind="\n\n",
    before=("", "\n", "\n\n"),
    stops=("<|im_end|>",),
)

FORMAT = Format(
    name="prr_qwen3",
    grammar=_FORMAT.grammar,
    markers=("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    turn_openers=("<|im_start|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
