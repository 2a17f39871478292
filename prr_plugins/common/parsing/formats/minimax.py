"""`prr_minimax_m2`: MiniMax-M2 and M2.x (reasoning in `<think>`, calls in XML).

The model's own chat template writes an assistant turn as

    <think>\\nREASONING\\n</think>\\n\\nCONTENT\\n<minimax:tool_call>\\n
    <invoke name="NAME">\\n<parameter name="KEY">VALUE</parameter>\\n</invoke>\\n<invoke name=...
    </minimax:tool_call>

and the prompt ends in `<think>\\n`. The newlines around `<think>` and the one before `<minimax:tool_call>` are frames
when they stand exactly so; a value has none. A string stands as it is, not escaped, anything else as JSON: only the
place tells a closer from text, `</parameter>` closes where `<parameter`, `</invoke>` or the section's end follows.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from re import Match

from prr_plugins.common.parsing.arguments import ObjectWriter, declares
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._shared import (
    END,
    FROM_REASONING,
    Opener,
    ThinkFormat,
    read_value,
    whole_object,
)
from prr_plugins.common.parsing.markers import Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_SECTION, _SECTION_END = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = r"""<invoke name=(?P<q>["']?)(?P<name>[^"'<>\n]{1,256}+)(?P=q)>"""
_KEY = r"""<parameter name=(?P<q>["']?)(?P<key>[^"'<>\n]{1,256}+)(?P=q)>"""

_CALLS = Shape(rf"{_SECTION}\s{{0,64}}+{_INVOKE}")
_BARE_CALL = Shape(rf"{_INVOKE}\s{{0,64}}+(?:<parameter name=|</invoke>)")
_NEXT = Shape(rf"\s{{0,64}}+(?:{_INVOKE}|{_SECTION_END})")
_PARAMETER = Shape(_KEY)

_BODY = Markers("<parameter name=", "</invoke>", _SECTION_END, "<invoke name=", END)
_ENDS = Markers("</parameter>", "</invoke>", "\n</invoke>", "\n<parameter name=", _SECTION, "<invoke name=")
_ENDS_IN_REASONING = _ENDS | Markers(END, "\n" + END)  # a draft may break off in what looked like a value
_AFTER_PARAMETER = Shape(rf"\s{{0,256}}+(?:<parameter name=|</invoke>|{_SECTION_END})")
_AFTER_INVOKE = Shape(rf"\s{{0,256}}+(?:<invoke name=|{_SECTION_END})")
_UNCLOSED = Shape(rf"\n{_KEY}")
_QUOTED = {_SECTION: (_CALLS, _SECTION_END), "<invoke name=": (_BARE_CALL, "</invoke>")}


def _declared(s: Source, header: Match[str]) -> bool:
    """Without a section the tag may be prose: only a tool that was offered is called so."""
    return not s.tools or header["name"] in s.tools


def _calls(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """The calls of one section. False if one was cut."""
    start = s.here
    following: Match[str] | bool | None = header
    while isinstance(following, Match) and following["name"]:
        if not (yield from _invoke(s, following, flags, start)):
            return False
        following = yield from s.decide(_NEXT)
        start = s.here
    if isinstance(following, Match):
        s.take("markup", following.end())
    elif following is None:
        rest = s.buf[s.pos :].strip()
        s.take("markup", len(s.buf))
        if not _SECTION_END.startswith(rest):
            s.lose_call(start, "incomplete")
    return True


def _invoke(s: Source, header: Match[str], flags: tuple[str, ...], start: int) -> Generator[None, None, bool]:
    """One call, from its opening tag to its closing one. False if it was cut."""
    name = header["name"]
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", s.pos + len(header["q"]) + 1)
    call = s.open_call(name, start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(name))
    ends = _ENDS_IN_REASONING if FROM_REASONING[0] in flags else _ENDS
    whole = yield from whole_object(s, call)
    while (mark := (yield from s.between(call, _BODY))) == "<parameter name=" and not whole:
        parameter = yield from s.decide(_PARAMETER)
        if parameter is None:
            s.take("markup", len(s.buf))
        elif not parameter:
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark))
        else:
            s.take("markup", parameter.end())
            arguments.begin(parameter["key"])
            end = yield from read_value(s, ends, partial(_ends_value, s, call), arguments.feed, _QUOTED)
            if end is None:
                break
            if end == "</parameter>":
                s.take("markup", s.pos + len(end))
            else:
                call.flag("missing_closer")
                s.take("markup", s.pos + end.startswith("\n"))
            arguments.end()
    if mark is None or mark == END or (mark == "<parameter name=" and not whole):
        s.drop_call(call, "incomplete")
        return False
    if not whole:
        call.raw_to = s.here
    if mark == "</invoke>":
        s.take("markup", s.pos + len(mark))
    else:
        call.flag("missing_closer")
    if not whole:
        arguments.close()
    s.close_call(call, repaired=arguments.repaired, made=not whole)
    return True


def _ends_value(s: Source, call: Call, mark: str) -> Generator[None, None, bool]:
    """Does `mark` end a value? Its own closer does where more of a call follows; another, if its own is missing."""
    if mark == "</parameter>":
        return (yield from s.decide(_AFTER_PARAMETER, len(mark))) is not False
    if mark.endswith("<parameter name="):
        parameter = yield from s.decide(_UNCLOSED)
        return bool(parameter and declares(s.tools.get(call.name), parameter["key"]))
    if mark.endswith("</invoke>"):
        after = yield from s.decide(_AFTER_INVOKE, len(mark))
        return bool(after) or (after is None and not s.was_cut)
    return False


_FORMAT = ThinkFormat(
    [
        Opener(_SECTION, _CALLS, _calls),
        Opener("<invoke name=", _BARE_CALL, _calls, _declared, ("no_section",), certain=False),
    ],
    inside="\n",
    behind="\n\n",
    before=("", "\n"),
    stops=("[e~[",),
)

FORMAT = Format(
    name="prr_minimax_m2",
    grammar=_FORMAT.grammar,
    markers=("]~b]", "[e~[", "<think>", "</think>", _SECTION, _SECTION_END),
    turn_openers=("]~b]",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
