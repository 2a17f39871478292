"""`prr_deepseek_v3`: DeepSeek V3, V3-0324, R1, R1-0528 (JSON in a fence) and V3.1 (bare JSON).

The models' own chat templates write an assistant turn as

    <think>REASONING</think>CONTENT<｜tool▁calls▁begin｜>
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\\n```json\\n{...}\\n```<｜tool▁call▁end｜>       (V3, R1)
    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>                            (V3.1)
    <｜tool▁calls▁end｜>

without these line breaks (V3 and R1 put a newline between two calls; the prompt may end in `<think>`, `<think>\\n` or
`</think>`). There are no frames: content is written back as it was, reasoning is not. Which layout a call has shows
behind its separator: a name, or the arguments.
"""

from __future__ import annotations

from collections.abc import Generator
from re import Match

from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._section import Section
from prr_plugins.common.parsing.formats._shared import ThinkFormat
from prr_plugins.common.parsing.markers import Shape
from prr_plugins.common.parsing.source import Source

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

_HEADER = rf"{_CALL}\s{{0,64}}+(?P<first>[^<{{`]{{1,256}}+){_SEPARATOR}"
# Behind the separator: V3's name, a fence, and the arguments or what ends them.
_BODY = Shape(
    r"""\s{0,16}+(?:(?P<name>[^\s<{`"\[]{1,256}+)\s{0,16}+)?+"""
    r"""(?:(?P<fence>```\w{0,16}+\s{0,16}+)(?=[{<`])|(?=[{<]))"""
)


def _call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    start, lead, length = s.here, header.start("first") - s.pos, len(header["call"])
    name = header["first"].rstrip()
    body = yield from s.decide(_BODY, length)
    end = s.pos + length
    if not body:  # arguments that are no object
        s.take("markup", s.pos + lead)
    elif body["name"] and (body["fence"] or name == "function"):
        name, end = body["name"], body.end()
        s.take("markup", body.start("name"))
    else:
        end = end if body["name"] else body.end()
        s.take("markup", s.pos + lead)
    s.take("name", s.pos + len(name))
    s.take("markup", end)
    call = s.open_call(name, start=start, flags=flags)
    if not (yield from _CALLS.arguments(s, call)):
        return False
    _CALLS.close(s, call)
    return True


_CALLS = Section(
    _SECTION,
    _SECTION_END,
    _CALL,
    _CALL_END,
    header=_HEADER,
    read=_call,
    closing=r"(?:\s{0,16}+```)?+",
    ends=("\n```", "```"),
)
_FORMAT = ThinkFormat(_CALLS.openers, before=("",), stops=("<｜end▁of▁sentence｜>",))

FORMAT = Format(
    name="prr_deepseek_v3",
    grammar=_FORMAT.grammar,
    markers=("<｜Assistant｜>", "<｜end▁of▁sentence｜>", _SECTION, _SECTION_END, _CALL, _SEPARATOR, _CALL_END),
    turn_openers=("<｜Assistant｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁end｜>"),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
