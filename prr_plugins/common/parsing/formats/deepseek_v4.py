"""`prr_deepseek_v4`: DeepSeek V3.2, V4 and V4.1 (DSML: calls as tags, each value with its type).

The models' own encoders write an assistant turn as

    <think>REASONING</think>CONTENT\\n\\n<｜DSML｜tool_calls>\\n
    <｜DSML｜invoke name="NAME">\\n
    <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>\\n
    </｜DSML｜invoke>\\n</｜DSML｜tool_calls>

(without the line breaks shown between `\\n`s; V3.2 names the section `function_calls`, V4.1 `calls` and puts a blank
before each tag's name; `toolcalls` and `tool` were seen from models). The prompt ends in `<think>` or `</think>`.
`\\n\\n` before the section is its frame; reasoning and content have none. `string="true"`: the value is that exact
text, not escaped; `string="false"`: it is JSON, whatever the tool's schema says. Only the place tells a closer from
text: `</｜DSML｜parameter>` closes where a parameter or the invoke's end follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from re import Match
from typing import Any

from prr_plugins.common.parsing.arguments import JSON_TEXT, ObjectWriter, accepts, declares
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._shared import END, FROM_REASONING, Opener, ThinkFormat, read_value
from prr_plugins.common.parsing.markers import Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_D = "｜DSML｜"
_OPEN, _CLOSE = f"<{_D}", f"</{_D}"
_NAMES = "(?:tool_calls|function_calls|calls|toolcalls|tool)>"
_SECTION, _SECTION_END = rf"{_OPEN} ?{_NAMES}", rf"{_CLOSE} ?{_NAMES}"
_INVOKE = rf'{_OPEN} ?invoke\s{{1,4}}+name="(?P<name>[^"\n]{{1,256}}+)"\s{{0,4}}+(?P<empty>/?+)>'
_INVOKE_END = rf"{_CLOSE} ?invoke>"
_KEY = rf'{_OPEN} ?parameter\s{{1,4}}+name="(?P<key>[^"\n]{{1,256}}+)"'
_PARAMETER = rf'{_KEY}(?:\s{{1,4}}+string="(?P<string>true|false)")?+\s{{0,4}}+(?P<void>/?+)>'
_PARAMETER_END = rf"{_CLOSE} ?parameter>"
_NOISE = "[^<]{0,256}+"  # text inside a section and outside its calls is no content, but only so much of it

# What follows the first call's tag must show that nobody is just writing about it.
_FIRST = rf"{_INVOKE}(?:(?<=/>)|\s{{0,64}}+(?:{_OPEN} ?parameter\s|{_INVOKE_END}|\{{))"
_OPENING = Shape(rf"(?P<section>{_SECTION}){_NOISE}(?:{_FIRST}|{_SECTION_END})")
_BARE = Shape(_FIRST)
_BEGUN = re.compile(rf' ?(?:{_NAMES}|invoke\s{{1,4}}name="[^"\n]{{1,256}}+"/?>)\s*(?:<|\Z)').match
_NEXT = Shape(rf"{_NOISE}(?P<call>{_SECTION_END}|{_INVOKE})")
_NEXT_BARE = Shape(rf"\s{{0,64}}+(?P<call>{_SECTION_END}|{_INVOKE})")
_ECHO = Shape(rf"\s{{0,16}}+(?:{_SECTION_END}|{_INVOKE_END})")

_BODY = Markers(_OPEN, _CLOSE, END)
_JSON_BODY = Shape(r"\s{0,64}+\{")
_TAG = Shape(rf"{_PARAMETER}|(?P<end>{_INVOKE_END})|(?P<over>{_SECTION_END}|{_OPEN} ?invoke\s)")
_BROKEN_PARAMETER = Shape(rf"{_OPEN} ?parameter")

_BLANKS = ("", " ")  # V4.1 puts one before a tag's name
# A whole call inside a value: of a document about calls.
_QUOTED = {
    f"{_OPEN}{blank}invoke": (
        Shape(
            rf'{_OPEN}{blank}invoke\s{{1,4}}+name="[^"\n]{{1,256}}+">\s{{0,64}}+(?:{_OPEN} ?parameter\s|{_INVOKE_END})'
        ),
        f"{_CLOSE}{blank}invoke>",
    )
    for blank in _BLANKS
}
_ENDS = Markers(
    _CLOSE,
    *_QUOTED,
    *(f"\n{_CLOSE}{blank}invoke>" for blank in _BLANKS),
    *(f"\n{_OPEN}{blank}parameter" for blank in _BLANKS),
)
_ENDS_IN_REASONING = _ENDS | Markers(END)
_END = Shape(
    rf"{_PARAMETER_END}(?=\s{{0,256}}+(?:{_OPEN} ?(?:parameter|invoke)\s|{_INVOKE_END}|{_SECTION_END}))"
    rf"|\n?+{_INVOKE_END}(?=\s{{0,256}}+(?:{_OPEN} ?invoke\s|{_SECTION_END}))"
    rf'|\n{_KEY}\s{{1,4}}+string="(?:true|false)">'
)
_LAST = Shape(rf"\n?+{_INVOKE_END}")
_PARAMETER_CLOSER = Shape(_PARAMETER_END)

_WRAPPERS = ("arguments", "input")
_TYPES = {"true": frozenset({"string"}), "false": JSON_TEXT, None: None}


def _calls(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    bare = "no_section" in flags
    s.take("markup", header.start() if bare else header.end("section"))
    whole = False
    while following := (yield from s.decide(_NEXT_BARE if bare else _NEXT)):
        s.take("markup", following.start("call"))
        if following["name"] is None:
            s.take("markup", following.end())
            break
        if not (yield from _invoke(s, following, flags)):
            return False
        whole = True
    if following is None:
        rest = s.buf[s.pos :].lstrip()
        start = s.here
        if not rest or rest[0] == "<":
            s.take("markup", len(s.buf))
        if rest[:1] == "<":
            s.lose_call(start, "incomplete")
    while echo := (yield from s.decide(_ECHO)):
        s.take("markup", echo.end())
    return whole


def _begun(rest: str) -> bool:
    """Of a text that ended without showing a call: did one begin, or is it about the tag?"""
    return _BEGUN(rest) is not None


def _is_offered(s: Source, header: Match[str]) -> bool:
    """Without a section a name that nobody offered is no call."""
    return not s.tools or header["name"] in s.tools


def _invoke(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, standing at its opening tag. False if it was cut."""
    start = s.here
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", header.end())
    call = s.open_call(header["name"], start=start, flags=flags)
    if header["empty"]:
        s.write(call, "{}")
        s.close_call(call)
        return True
    body = _Body(s, call)
    if (yield from s.decide(_JSON_BODY)):
        ended = yield from body.json()
    else:
        ended = yield from body.parameters()
    if not ended:
        s.drop_call(call, "incomplete")
        return False
    body.close()
    yield from s.literal("\n")
    return True


class _Body:
    """What stands between an invoke's tags."""

    def __init__(self, s: Source, call: Call) -> None:
        self.s, self.call = s, call
        self._in_reasoning = FROM_REASONING[0] in call.flags
        self._parameters = s.tools.get(call.name)
        self._writer: ObjectWriter | None = None
        self._wrapper: tuple[str, str | None, list[str]] | None = None
        self._unreadable = False

    def json(self) -> Generator[None, None, bool]:
        """The arguments as one JSON object, as V3.2 also writes them."""
        s, call = self.s, self.call
        yield from s.skip(" \t\r\n")
        call.raw_from = s.here
        marker = END if self._in_reasoning else ""
        if (yield from s.json(lambda text: s.write(call, text), "<", marker=marker)):
            call.raw_to = s.here
        return (yield from self._tag()) is not None

    def parameters(self) -> Generator[None, None, bool]:
        """The arguments as parameters. False if the text broke off."""
        s, call = self.s, self.call
        self._writer = ObjectWriter(lambda text: s.write(call, text), self._parameters)
        first = True
        while tag := (yield from self._tag()):
            if tag.group("key") is None:
                return True
            self._unwrap_not()
            key, string = tag["key"], tag["string"]
            feed: Callable[[str], Any] = self._writer.feed
            if first and key in _WRAPPERS and self._parameters and not declares(self._parameters, key):
                self._wrapper = (key, string, [])
                feed = self._wrapper[2].append
            else:
                self._writer.begin(key, _TYPES[string])
            first = False
            if not tag["void"] and not (yield from self._value(feed)):
                return False
            if self._wrapper is None:
                self._writer.end()
        return False

    def _tag(self) -> Generator[None, None, Match[str] | None]:
        """Up to and with the next parameter's opening tag, or what ends the invoke. None if the text broke off."""
        s, call = self.s, self.call
        while (mark := (yield from s.between(call, _BODY))) is not None and mark != END:
            here = s.here
            tag = yield from s.decide(_TAG)
            if tag is None:
                s.take("markup", len(s.buf))
                return None
            if tag and tag["over"]:
                call.raw_to = here if call.raw_to is None else call.raw_to
                call.flag("missing_closer")
                return tag
            if tag:
                if tag["end"]:
                    call.raw_to = here if call.raw_to is None else call.raw_to
                s.take("markup", tag.end())
                return tag
            self._unreadable |= bool((yield from s.decide(_BROKEN_PARAMETER)))
            call.flag("junk_in_call")
            s.take("markup", s.pos + len(mark))
        return None

    def _value(self, feed: Callable[[str], Any]) -> Generator[None, None, bool]:
        """A parameter's value with its closer. False if the text ended in it."""
        s = self.s
        ends = _ENDS_IN_REASONING if self._in_reasoning else _ENDS
        mark = yield from read_value(s, ends, self._closes, feed, _QUOTED)
        if mark is None:
            return False
        if closer := (yield from s.decide(_PARAMETER_CLOSER)):
            s.take("markup", closer.end())
        else:
            self.call.flag("missing_closer")
            yield from s.literal("\n")
        return True

    def _closes(self, mark: str) -> Generator[None, None, bool]:
        """Does the value end at this mark?"""
        s = self.s
        end = yield from s.decide(_END)
        if end is None and not s.was_cut:
            end = yield from s.decide(_LAST)
            return bool(end)
        return bool(end and (end["key"] is None or declares(self._parameters, end["key"])))

    def _unwrap_not(self) -> None:
        """Another parameter follows: what looked like a wrapper is a parameter like any other."""
        if self._wrapper is not None and self._writer is not None:
            key, string, raw = self._wrapper
            self._wrapper = None
            self._writer.begin(key, _TYPES[string])
            self._writer.feed("".join(raw))
            self._writer.end()

    def close(self) -> None:
        """The call is whole."""
        s, call = self.s, self.call
        if self._unreadable:
            s.drop_call(call, "malformed")
            return
        repaired = made = False
        if self._writer is not None:
            if self._wrapper is not None and accepts(
                self._parameters or {}, inner := "".join(self._wrapper[2]).strip()
            ):
                # All arguments in one undeclared parameter, as the encoder writes those that are no object
                call.flag("unwrapped")
                s.write(call, inner)
                repaired = True
            else:
                self._unwrap_not()
                self._writer.close()
                repaired, made = self._writer.repaired, True
        s.close_call(call, repaired=repaired, made=made)


_FORMAT = ThinkFormat(
    [
        Opener(_OPEN, _OPENING, _calls, begun=_begun),
        Opener(_OPEN, _BARE, _calls, _is_offered, ("no_section",), begun=_begun),
    ],
    before=("", "\n\n"),
    stops=("<｜end▁of▁sentence｜>",),
)

FORMAT = Format(
    name="prr_deepseek_v4",
    grammar=_FORMAT.grammar,
    markers=("<｜Assistant｜>", "<｜end▁of▁sentence｜>", "｜DSML｜", "<think>", END),
    turn_openers=("<｜Assistant｜>",),
    reasoning_start="<think>",
    reasoning_end=END,
)
