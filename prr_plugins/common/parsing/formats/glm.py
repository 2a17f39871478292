"""`prr_glm`: GLM-4.5, 4.6, 4.7 and 5.x (reasoning in `<think>`, calls as keys and values in `<tool_call>`).

The models' own chat templates write an assistant turn in one of two layouts. GLM-4.5 and 4.6:

    \\n<think>REASONING</think>\\nCONTENT\\n<tool_call>NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>

GLM-4.7 and 5.x, whose prompt ends in `<think>` or in `</think>`:

    REASONING</think>CONTENT<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

The newline behind `</think>` is a frame in the first layout only; which one it is shows at the turn's first newline.
Content is trimmed by the templates, so blanks before a call are its frame. A value has no frame and no escapes:
`</arg_value>` closes it where `<arg_key>` or `</tool_call>` follows. A string stands as it is, anything else as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import partial
from re import Match

from prr_plugins.common.parsing.arguments import ObjectWriter, declares
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._json_call import json_calls, json_opener
from prr_plugins.common.parsing.formats._shared import END, FROM_REASONING, Opener, ThinkFormat, read_value, repeated
from prr_plugins.common.parsing.markers import Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_CALL = Shape(r"<tool_call>\s{0,64}+([^\s<>]{1,256}+)\s{0,64}+(?:<arg_key>|</tool_call>)")
_NAME = re.compile(r"[\w.:/-]+").fullmatch
_QUOTED = {"<tool_call>": (Shape(r"<tool_call>\s{0,64}+[^\s<>]{1,256}+\s{0,64}+<arg_key>"), "</tool_call>")}

_BODY = Markers("<arg_key>", "</tool_call>", "<tool_call>", END)
_KEY = Shape(r"<arg_key>([^<>]{1,256}+)(?:</arg_(?:key|value)>)?+\s{0,64}+<arg_value>")
_ENDS = Markers("</arg_value>", "</tool_call>", "<tool_call>", "<arg_key>")
_ENDS_IN_REASONING = _ENDS | Markers(END)  # a draft may break off in what looked like a value
_AFTER_VALUE = Shape(r"\s{0,256}+(?:<arg_key>|</?+tool_call>)")
_CLOSER = Shape(r"\s{0,64}+</tool_call>")
_AFTER_CALL = Shape(r"\s{0,256}+<tool_call>[^\s<>]")


def _is_name(s: Source, header: Match[str]) -> bool:
    """Prose puts anything between the tags: a name that no tool has must look like one, right behind its tag."""
    name = header.group(1)
    return name in s.tools or (header.group().startswith("<tool_call>" + name) and _NAME(name) is not None)


def _call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, from its opener to its closer. False if it was cut."""
    start, name = s.here, header.group(1)
    s.take("markup", header.start(1))
    s.take("name", header.end(1))
    call = s.open_call(name, start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(name))
    ends = _ENDS_IN_REASONING if FROM_REASONING[0] in flags else _ENDS
    while (mark := (yield from s.between(call, _BODY))) == "<arg_key>":
        key = yield from s.decide(_KEY)
        if key is None:
            s.take("markup", len(s.buf))
        elif not key:
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark))
        else:
            s.take("markup", key.end())
            arguments.begin(key.group(1).strip())
            end = yield from read_value(s, ends, partial(_ends_value, s, call), arguments.feed, _QUOTED)
            if end is None:
                break
            if end == "</arg_value>":
                s.take("markup", s.pos + len(end))
            else:
                call.flag("missing_closer")
            arguments.end()
    if mark != "</tool_call>" and mark != "<tool_call>":
        s.drop_call(call, "incomplete")
        return False
    call.raw_to = s.here
    if mark == "<tool_call>":
        call.flag("missing_closer")
    else:
        s.take("markup", s.pos + len(mark))
    arguments.close()
    s.close_call(call, repaired=arguments.repaired, made=True)
    yield from repeated(s, _CLOSER)
    return True


def _ends_value(s: Source, call: Call, mark: str) -> Generator[None, None, bool]:
    """Does `mark` end a value? Its own closer does where more of a call follows; another, if its own is missing."""
    if mark == "</arg_value>":
        return (yield from s.decide(_AFTER_VALUE, len(mark))) is not False
    if mark == "<arg_key>":
        key = yield from s.decide(_KEY)
        return bool(key and declares(s.tools.get(call.name), key.group(1)))
    after = yield from s.decide(_AFTER_CALL, len(mark))
    return bool(after) or (after is None and not s.was_cut)


_OPENERS = (
    Opener("<tool_call>", json_opener("<tool_call>"), json_calls("</tool_call>")),
    Opener("<tool_call>", _CALL, _call, _is_name),
)
_STOPS = ("<|observation|>", "<|user|>")
_COMPACT = ThinkFormat(_OPENERS, stops=_STOPS)
_LINES = ThinkFormat(_OPENERS, behind="\n", stops=_STOPS)


def grammar(s: Source) -> Iterator[None]:
    lines = "\n" in s.prompt_tail if "think>" in s.prompt_tail else (yield from s.at("\n")) != ""
    yield from (_LINES if lines else _COMPACT).grammar(s)


FORMAT = Format(
    name="prr_glm",
    grammar=grammar,
    markers=("<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>"),
    turn_openers=("<|assistant|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
