"""`prr_minicpm5`: MiniCPM5 (reasoning in `<think>`, calls in XML without a section around them).

The model's own chat template writes an assistant turn as

    <think>\\nREASONING\\n</think>\\n\\nCONTENT\\n<function name="NAME"><param name="KEY">VALUE</param>...</function>\\n
    <function name=...

and the prompt ends in `assistant\\n`, `<think>\\n` or `<think>\\n\\n</think>\\n\\n`. The newlines around `<think>` and
the one before a call are frames when they stand exactly so; a value has none. A string with `<`, `&` or a newline in it
stands in `<![CDATA[...]]>`, any other as it is, and nothing is escaped in either. What is no string is written as
Python writes it (`True`, `{'a': 1}`). Only the place tells a closer from text: `</param>` closes where another `<param`
or `</function>` follows, `]]>` where such a `</param>` does.

XML is also what people ask a model to write: a call is one where its tag goes on as the template's do, and the tool is
one that was offered.
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

_FUNCTION, _FUNCTION_END = "<function name=", "</function>"
_PARAM, _PARAM_END = "<param name=", "</param>"
_CDATA_END = "]]>"
_HEADER = rf"""{_FUNCTION}(?P<q>["']?)(?P<name>[^"'<>\n]{{1,256}}+)(?P=q)>"""
_KEY = rf"""{_PARAM}(?P<q>["']?)(?P<key>[^"'<>\n]{{1,256}}+)(?P=q)>"""

_CALL = Shape(rf"{_HEADER}\s{{0,64}}+(?:{_PARAM}|{_FUNCTION_END}|\{{)")
_PARAMETER = Shape(_KEY)
_CDATA = Shape(r"\s{0,16}+<!\[CDATA\[")
_CDATA_CLOSER = Shape(rf"{_CDATA_END}\s{{0,16}}+{_PARAM_END}")

_BODY = Markers(_PARAM, _FUNCTION_END, _FUNCTION, END)
_ENDS = Markers(_PARAM_END, _FUNCTION_END, _FUNCTION, _PARAM, "\n" + _PARAM)
_CDATA_ENDS = Markers(_CDATA_END, _FUNCTION)
# a draft may break off, and reasoning end, within what looked like a value
_ENDS_IN_REASONING = _ENDS | Markers(END, "\n" + END)
_CDATA_ENDS_IN_REASONING = _CDATA_ENDS | Markers(END, "\n" + END)
_MORE = f"(?:{_PARAM}|{_FUNCTION_END}|{_FUNCTION})"
_AFTER_PARAM = Shape(rf"\s{{0,256}}+{_MORE}")
_AFTER_CDATA = Shape(rf"\s{{0,16}}+(?:{_PARAM_END}\s{{0,256}}+)?+{_MORE}")
_AFTER_FUNCTION = Shape(rf"\s{{0,256}}+{_FUNCTION}")
_UNCLOSED = Shape(rf"\n?+{_KEY}")
_QUOTED = {_FUNCTION: (_CALL, _FUNCTION_END)}


def _declared(s: Source, header: Match[str]) -> bool:
    return not s.tools or header["name"] in s.tools


def _no_call(rest: str) -> bool:
    """Of a text that was not cut: a tag that does not go on is no call that was begun."""
    return False


def _call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, from its opening tag to its closing one. False if it was cut."""
    start, name = s.here, header["name"]
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", s.pos + len(header["q"]) + 1)
    call = s.open_call(name, start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(name))
    whole = yield from whole_object(s, call)
    while (mark := (yield from s.between(call, _BODY))) == _PARAM and not whole:
        parameter = yield from s.decide(_PARAMETER)
        if parameter is None:
            s.take("markup", len(s.buf))
        elif not parameter:
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark))
        else:
            s.take("markup", parameter.end())
            arguments.begin(parameter["key"])
            if not (yield from _value(s, call, arguments)):
                mark = None
                break
            arguments.end()
    if mark is None or mark == END or (mark == _PARAM and not whole):
        s.drop_call(call, "incomplete")
        return False
    if not whole:
        call.raw_to = s.here
    if mark == _FUNCTION_END:
        s.take("markup", s.pos + len(mark))
    else:
        call.flag("missing_closer")
    if not whole:
        arguments.close()
    s.close_call(call, repaired=arguments.repaired, made=not whole)
    return True


def _value(s: Source, call: Call, arguments: ObjectWriter) -> Generator[None, None, bool]:
    """One value with its closers. False if it was cut."""
    thinking = FROM_REASONING[0] in call.flags
    cdata = yield from s.decide(_CDATA)
    if cdata:
        s.take("markup", cdata.end())
        ends = _CDATA_ENDS_IN_REASONING if thinking else _CDATA_ENDS
    else:
        ends = _ENDS_IN_REASONING if thinking else _ENDS
    end = yield from read_value(s, ends, partial(_ends_value, s, call), arguments.feed, _QUOTED)
    if end is None:
        return False
    if end == _CDATA_END:
        closer = yield from s.decide(_CDATA_CLOSER)
        if closer:
            s.take("markup", closer.end())
            return True
        s.take("markup", len(s.buf) if closer is None else s.pos + len(end))
    elif end == _PARAM_END:
        s.take("markup", s.pos + len(end))
        return True
    else:
        s.take("markup", s.pos + end.startswith("\n"))
    call.flag("missing_closer")
    return True


def _ends_value(s: Source, call: Call, mark: str) -> Generator[None, None, bool]:
    """Does `mark` end a value? Its own closer does where more of a call follows; another, if its own is missing."""
    if mark == _CDATA_END:
        return (yield from s.decide(_AFTER_CDATA, len(mark))) is not False
    if mark == _PARAM_END:
        return (yield from s.decide(_AFTER_PARAM, len(mark))) is not False
    if mark.endswith(_PARAM):
        parameter = yield from s.decide(_UNCLOSED)
        return bool(parameter and declares(s.tools.get(call.name), parameter["key"]))
    if mark == _FUNCTION_END:
        after = yield from s.decide(_AFTER_FUNCTION, len(mark))
        return bool(after) or (after is None and not s.was_cut)
    return False


_FORMAT = ThinkFormat(
    [Opener(_FUNCTION, _CALL, _call, _declared, begun=_no_call)],
    inside="\n",
    behind="\n\n",
    before=("", "\n"),
    stops=("<|im_end|>",),
)

FORMAT = Format(
    name="prr_minicpm5",
    grammar=_FORMAT.grammar,
    markers=("<|im_start|>", "<|im_end|>"),
    turn_openers=("<|im_start|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
