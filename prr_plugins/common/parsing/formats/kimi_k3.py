"""`prr_kimi_k3`: Kimi K3 (XTML: tags of the control tokens `<|open|>`, `<|close|>`, `<|sep|>`).

The model's own encoder (`encoding_k3.py`) writes an assistant turn as channels of one message,

    <|open|>think<|sep|>REASONING<|close|>think<|sep|>
    <|open|>response<|sep|>CONTENT<|close|>response<|sep|>
    <|open|>tools<|sep|>
    <|open|>call tool="NAME" index="1"<|sep|>
    <|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>
    <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|><|end_of_msg|>

without any of these line breaks; the prompt ends in the opening tag of `think`, or of `response` where thinking is off.
`TYPE` is string, number, boolean, null, array or object: a string's value is its exact text, any other is JSON. In
attributes `&` and `"` are escaped, in bodies nothing is. A call may also hold
`<|open|>json type="object"<|sep|>{...}<|close|>json<|sep|>` instead of arguments.

Bodies may hold the text of a tag, so only the place tells: a value ends at its closer where another argument or the
call's end follows, the response where a channel or the message's end follows, or the text ends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from re import Match

from prr_plugins.common.parsing.arguments import JSON_TEXT, ObjectWriter
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._shared import FROM_REASONING, no_prose, read_value, whole_object
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source


def _open(tag: str) -> str:
    return f"<|open|>{tag}<|sep|>"


def _close(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


_THINK, _THINK_END = _open("think"), _close("think")
_RESPONSE, _RESPONSE_END = _open("response"), _close("response")
_TOOLS, _TOOLS_END = _open("tools"), _close("tools")
_CALL, _CALL_END = "<|open|>call", _close("call")
_ARGUMENT_END = _close("argument")
_MESSAGE_END, _STOP = _close("message"), "<|end_of_msg|>"

_think, _response, _tools, _tools_end = map(_escaped, (_THINK, _RESPONSE, _TOOLS, _TOOLS_END))
_call, _call_end, _argument_end, _json_end = map(_escaped, (_CALL, _CALL_END, _ARGUMENT_END, _close("json")))
_message_end, _stop, _sep = map(_escaped, (_MESSAGE_END, _STOP, "<|sep|>"))
_argument, _json = map(_escaped, ("<|open|>argument", "<|open|>json"))

_ATTRIBUTES = r'(?:\s{1,4}+\w{1,32}+="[^"]{0,256}+"){0,4}+\s{0,4}+'
_HEADER = rf'{_call}\s{{1,4}}+tool="(?P<name>[^"]{{1,512}}+)"{_ATTRIBUTES}{_sep}'
_BODY_TAG = rf"(?:{_argument}\s|{_json}\s|{_call_end})"
_NOISE = "[^<]{0,256}+"  # text inside a section and outside its calls is no content, but only so much of it
_OPENING = Shape(rf"{_tools}{_NOISE}(?:{_HEADER}|{_tools_end})")
_BARE = Shape(rf"{_HEADER}\s{{0,64}}+{_BODY_TAG}")
_NEXT = Shape(rf"{_NOISE}(?P<call>{_tools_end}|{_HEADER})")
_NEXT_BARE = Shape(rf"\s{{0,64}}+(?P<call>{_tools_end}|{_HEADER})")
_ECHO = Shape(rf"\s{{0,16}}+(?:{_tools_end}|{_call_end})")

_TAGS = Markers("<|open|>", "<|close|>")
_TAG = Shape(
    rf'{_argument}\s{{1,4}}+key="(?P<key>[^"]{{0,512}}+)"(?:\s{{1,4}}+type="(?P<type>\w{{1,16}}+)")?+{_ATTRIBUTES}{_sep}'
    rf"|(?P<json>{_json}{_ATTRIBUTES}{_sep})|(?P<json_end>{_json_end})"
    rf"|(?P<end>{_call_end})|(?P<over>{_tools_end}|{_call}\s)"
)
_BROKEN = Shape(rf"{_argument}|{_json}")
_QUOTED = {_CALL: (_BARE, _CALL_END)}  # a whole call inside a value: of a document about calls
_VALUE_ENDS = Markers("<|close|>", _CALL)
_VALUE_ENDS_IN_REASONING = _VALUE_ENDS | Markers(_THINK_END)
_VALUE_END = Shape(
    rf"{_argument_end}(?=\s{{0,256}}+(?:{_argument}\s|{_call_end}|{_call}\s|{_tools_end}))"
    rf"|{_call_end}(?=\s{{0,256}}+(?:{_call}\s|{_tools_end}))"
)
_LAST = Shape(_call_end)

_AFTER_RESPONSE = Shape(rf"(?P<blank>\s{{0,64}}+)(?:{_think}|{_response}|{_tools}|{_message_end}|{_stop})")
_AFTER_MESSAGE = Shape(rf"\s{{0,16}}+{_stop}")
_ANYTHING = Shape(r"[\s\S]")

_CHANNELS = Markers(_RESPONSE, _RESPONSE_END, _MESSAGE_END, _STOP)
_THINKS, _CALLS = Markers(_THINK, _THINK_END), Markers(_TOOLS, _CALL)
_CONTENT = {  # by (reasoning, calls)
    (True, True): _CHANNELS | _THINKS | _CALLS,
    (True, False): _CHANNELS | _THINKS,
    (False, True): _CHANNELS | _CALLS,
}
_REASONING = Markers(_THINK_END, _THINK, _RESPONSE, _MESSAGE_END, _STOP)
_REASONING_WITH_CALLS = _REASONING | Markers(_TOOLS)


class _Message:
    """One assistant message: its channels."""

    def __init__(self, s: Source) -> None:
        self._s = s
        self._in_response = False

    def read(self) -> Iterator[None]:
        s = self._s
        markers = _CONTENT.get((s.reasoning, s.tool_calls))
        if markers is None:
            while not s.eof:
                s.take("content", len(s.buf))
                yield
            return
        tail = s.prompt_tail
        thinks, answers = tail.rfind(_THINK), tail.rfind(_RESPONSE)
        self._in_response = answers > max(thinks, tail.rfind(_RESPONSE_END))
        if s.reasoning and thinks > max(answers, tail.rfind(_THINK_END)):
            yield from self._reasoning()
        while (mark := (yield from s.until("content", markers))) is not None:
            if mark in (_TOOLS, _CALL):
                yield from self._calls(mark)
            elif mark == _RESPONSE_END:
                yield from self._response_end()
            elif (yield from self._is_tag(mark)):
                s.take("markup", s.pos + len(mark))
                self._in_response = mark == _RESPONSE
                if mark == _THINK:
                    yield from self._reasoning()
            else:
                s.take("content", s.pos + len(mark))

    def _is_tag(self, mark: str) -> Generator[None, None, bool]:
        """Is this a tag of the message rather than text about it?"""
        s = self._s
        if mark in (_MESSAGE_END, _STOP):
            if not (yield from s.decide(_ANYTHING, len(mark))):
                return True
            return mark == _MESSAGE_END and bool((yield from s.decide(_AFTER_MESSAGE, len(mark))))
        return not self._in_response or s.behind_markup

    def _response_end(self) -> Iterator[None]:
        """The closer of the response: it counts where something follows that can follow it, or nothing."""
        s, length = self._s, len(_RESPONSE_END)
        after = yield from s.decide(_AFTER_RESPONSE, length)
        if after is False and not (s.behind_markup and not self._in_response):
            s.take("content", s.pos + length)
            return
        self._in_response = False
        s.take("markup", after.end("blank") if after else s.pos + length)

    def _reasoning(self) -> Iterator[None]:
        s = self._s
        s.reasoning_open = True
        while (
            mark := (yield from s.until("reasoning", _REASONING_WITH_CALLS if s.tool_calls else _REASONING))
        ) is not None:
            if mark == _RESPONSE:  # the model skipped or forgot the closer
                s.reasoning_open = False
                return
            if mark == _THINK_END:
                s.reasoning_open = False
                s.take("markup", s.pos + len(mark))
                return
            if mark == _TOOLS:
                if (yield from s.decide(_OPENING)):
                    if (yield from self._calls_in_reasoning()):
                        return
                else:
                    s.take("reasoning", s.pos + len(mark))
            elif mark == _THINK:
                s.take("markup" if s.behind_markup else "reasoning", s.pos + len(mark))
            else:
                tag = yield from self._is_tag(mark)
                s.take("markup" if tag else "reasoning", s.pos + len(mark))

    def _calls_in_reasoning(self) -> Generator[None, None, bool]:
        """Calls inside reasoning are meant if nothing but closers follows them; else they are drafts, and text.

        False if reasoning goes on after them.
        """
        s = self._s
        s.hold()
        if not (yield from _section(s, bare=False, flags=FROM_REASONING)):
            s.relabel(("reasoning", s.here))
            return False
        yield from s.skip(BLANKS)
        closer = s.here
        closed = yield from s.literal(_THINK_END)
        after = s.here
        yield from s.skip(BLANKS)
        yield from s.literal(_MESSAGE_END)
        yield from s.literal(_STOP)
        if s.eof and s.pos == len(s.buf) and not s.was_cut:
            s.release()
            s.reasoning_open = False
            return True
        if not closed:
            s.relabel(("reasoning", s.here))
            return False
        s.reasoning_open = False
        s.relabel(("reasoning", closer), ("markup", after), ("content", s.here))
        return True

    def _calls(self, mark: str) -> Iterator[None]:
        """What the tools channel or a call's opener turns out to be: calls, a call that was cut, or text."""
        s, bare = self._s, mark == _CALL
        header = yield from s.decide(_BARE if bare else _OPENING)
        if header and bare and s.tools and _unescape(header["name"]) not in s.tools:
            header = False
        if header:
            self._in_response = False
            yield from _section(s, bare=bare, flags=("no_section",) if bare else ())
        elif header is None and (s.was_cut or no_prose(s.buf[s.pos + len(mark) :])):
            _lose_rest(s)
        else:
            s.take("content", s.pos + len(mark))


def _lose_rest(s: Source) -> None:
    """The text ended where a call was beginning."""
    start = s.here
    s.take("markup", len(s.buf))
    s.lose_call(start, "incomplete")


def _section(s: Source, *, bare: bool, flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """All calls of the tools channel. False if there is no whole one, or the text broke off."""
    if not bare:
        s.take("markup", s.pos + len(_TOOLS))
    whole = False
    while following := (yield from s.decide(_NEXT_BARE if bare else _NEXT)):
        s.take("markup", following.start("call"))
        if following["name"] is None:
            s.take("markup", following.end())
            break
        if not (yield from _one_call(s, following, flags)):
            return False
        whole = True
    if following is None:
        rest = s.buf[s.pos :].lstrip()
        if not rest:
            s.take("markup", len(s.buf))
        elif rest[0] == "<":
            _lose_rest(s)
    while echo := (yield from s.decide(_ECHO)):
        s.take("markup", echo.end())
    return whole


def _one_call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, standing at its header. False if it was cut."""
    start = s.here
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", header.end())
    call = s.open_call(_unescape(header["name"]), start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(call.name))
    in_reasoning = FROM_REASONING[0] in flags
    as_json = yield from whole_object(s, call, _THINK_END)
    unreadable = False
    while True:
        mark = yield from s.between(call, _TAGS)
        tag = None if mark is None else (yield from s.decide(_TAG))
        if tag is None:
            s.take("markup", len(s.buf))
            s.drop_call(call, "incomplete")
            return False
        if not tag:
            if in_reasoning and (yield from s.at(_THINK_END)):
                s.drop_call(call, "incomplete")
                return False
            unreadable |= bool((yield from s.decide(_BROKEN)))
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark or ""))
            continue
        kind = tag.lastgroup
        if kind in ("end", "over"):
            break
        key, type_ = tag["key"], tag["type"]
        s.take("markup", tag.end())
        if key is not None:
            types = None if type_ is None else frozenset({"string"}) if type_ == "string" else JSON_TEXT
            arguments.begin(_unescape(key), types)
            if not (yield from _value(s, call, arguments, in_reasoning)):
                s.drop_call(call, "incomplete")
                return False
            arguments.end()
        elif kind == "json" and not call.pieces:
            as_json = True
            yield from s.skip(BLANKS)
            call.raw_from = s.here
            yield from s.json(lambda text: s.write(call, text), "<", marker=_THINK_END if in_reasoning else "")
            call.raw_to = s.here
    if not as_json:
        call.raw_to = s.here
        arguments.close()
    if kind == "end":
        s.take("markup", tag.end())
    else:
        call.flag("missing_closer")
    if unreadable:
        s.drop_call(call, "malformed")
    else:
        s.close_call(call, repaired=arguments.repaired, made=not as_json)
    return True


def _value(s: Source, call: Call, arguments: ObjectWriter, in_reasoning: bool) -> Generator[None, None, bool]:
    """An argument's value with its closer. False if the text ended in it."""

    def closes(mark: str) -> Generator[None, None, bool]:
        if mark == _THINK_END:
            return True
        end = yield from s.decide(_VALUE_END)
        if end is None and not s.was_cut:
            end = yield from s.decide(_LAST)
        return bool(end)

    ends = _VALUE_ENDS_IN_REASONING if in_reasoning else _VALUE_ENDS
    mark = yield from read_value(s, ends, closes, arguments.feed, _QUOTED)
    if mark is None or mark == _THINK_END:
        return False
    if not (yield from s.literal(_ARGUMENT_END)):
        call.flag("missing_closer")
    return True


def _unescape(attribute: str) -> str:
    return attribute.replace("&quot;", '"').replace("&amp;", "&")


FORMAT = Format(
    name="prr_kimi_k3",
    grammar=lambda s: _Message(s).read(),
    markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    turn_openers=("<|open|>",),  # the last tag of the prompt says which channel is open
    reasoning_start=_THINK,
    reasoning_end=_THINK_END,
)
