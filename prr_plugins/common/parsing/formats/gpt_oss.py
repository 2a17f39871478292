"""`prr_gpt_oss`: gpt-oss in the Harmony response format (messages on channels).

After the prompt's `<|start|>assistant` a completion is a chain of messages, as the Harmony specification and the
model's chat template write them:

    HEADER<|message|>BODY<|end|><|start|>assistant HEADER<|message|>BODY...

`HEADER` is `[ to=RECIPIENT]<|channel|>CHANNEL[ to=RECIPIENT][ <|constrain|>TYPE | TYPE]`; the model writes the
recipient in either place. `analysis` is reasoning; `final`, and `commentary` without a recipient (a preamble), are
content; a message to `functions.NAME` is a call, whichever its channel. `<|call|>` and `<|return|>` stop generation,
so as a rule they are not in the text; where they are, they end a message as `<|end|>` does.

Bodies are not escaped: an end marker ends a body only where a marker or the end of the text follows, and a message
without end marker ends where a whole header begins. Inside a call's JSON strings no marker counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator

from prr_plugins.common.parsing.completion import SegmentKind
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Source

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY = Markers(*_ENDS, "<|start|>", "<|channel|>")

_MARKER = r"<\|(?:start|channel|message|constrain|end|call|return)\|>"
_ROLE = r"<\|start\|>[^\s<]{0,256}+"
# What stands in a header is read loosely (odd ones are many), as long as `<|message|>` closes it.
_LOOSE = r"(?:[^<]|<\|(?:channel|constrain)\|>){0,400}+<\|message\|>"
_PARTS = rf"\s{{0,8}}+(?:<\|message\|>|(?:to=|<\|(?:channel|constrain)\|>){_LOOSE})"
_HEADER = Shape(rf"(?:{_ROLE}|assistant)?+{_PARTS}")
_START = Shape(_ROLE + _PARTS)
_REST_OF_HEADER = Shape(_LOOSE)  # where the prompt holds its beginning
# The same as the specification has it: what may be cut, and what may stand without an end marker before it.
_CHANNEL = r"<\|channel\|>(?:analysis|commentary|final)"
_TO = r"\s{1,8}+to=[^\s<]{1,256}+"
_TYPE = r"(?:\s{0,8}+<\|constrain\|>\s{0,8}+[^\s<]{1,64}+|\s{1,8}+(?:json|code|text))"
_KNOWN = rf"{_CHANNEL}(?:{_TO})?+(?:{_TYPE})?+<\|message\|>"
_KNOWN_HEADER = Shape(_KNOWN)
_WHOLE_HEADER = Shape(rf"(?:{_ROLE})?+(?:{_TO})?+(?:{_KNOWN}|<\|message\|>)")
_CHANNEL_ONLY = Shape(rf"({_CHANNEL})[\s<]")
_AFTER_END = Shape(rf"\s{{0,16}}+(?:assistant)?+{_MARKER}")

_END = re.compile("|".join(map(re.escape, _ENDS)))
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)(?=[\s<])")
_RECIPIENT = re.compile(r"to=([^\s<]+)(?=[\s<])")
_NOBODY = ("assistant", "user", "system", "developer", "all")  # recipients that are no tools


def grammar(s: Source) -> Iterator[None]:
    if not s.reasoning and not s.tool_calls:
        while not s.eof:
            s.take("content", len(s.buf))
            yield
        return
    begun = s.prompt_tail.rpartition("<|start|>")[2]
    if "<|message|>" in begun:  # the prompt ends inside a body: it is to be continued
        yield from _body(s, begun.partition("<|message|>")[0] + "<|message|>", s.here)
        begun = ""
    while True:
        yield from _message(s, begun)
        begun = ""
        if s.eof and s.pos == len(s.buf):
            return


def _message(s: Source, begun: str) -> Iterator[None]:
    """One message, or what stands in its place; `begun` is what the prompt holds of its header."""
    start = s.here
    inside = "<|channel|>" in begun or "to=" in begun
    header = yield from s.decide(_REST_OF_HEADER if inside else _HEADER)
    if header:
        text = begun + header.group()
        s.take("markup" if _kind(s, text) else "content", header.end())
        yield from _body(s, text, start)
    elif header is None and (inside or (yield from s.decide(_WHOLE_HEADER)) is None):
        text = begun + s.buf[s.pos :]
        calls = "to=" in text
        s.take("content" if calls and not s.tool_calls else "markup", len(s.buf))
        if calls and s.tool_calls:
            s.lose_call(start, "incomplete", _recipient(s, text) or None)
    elif end := (yield from s.at(*_ENDS)):
        s.take("markup", s.pos + len(end))
    else:
        yield from _broken(s)


def _broken(s: Source) -> Iterator[None]:
    """No header stands where one should: what can be read of it is markup, the rest is text of its channel."""
    yield from s.literal("<|start|>")
    yield from s.literal("assistant")
    header = ""
    if channel := (yield from s.decide(_CHANNEL_ONLY)):
        header = channel.group()
        s.take("markup", channel.end(1))
        yield from s.literal(" ")
    else:
        for mark in ("<|channel|>", "<|constrain|>"):
            yield from s.literal(mark)
    yield from _body(s, header, s.here)


def _kind(s: Source, header: str) -> SegmentKind | None:
    """What the body of a message is; None if it is to stay as it stands, markers and all."""
    if _recipient(s, header):
        return "arguments" if s.tool_calls else None
    channels = _CHANNEL_NAME.findall(header)
    if channels and channels[-1] == "analysis":
        return "reasoning" if s.reasoning else None
    return "content"


def _recipient(s: Source, header: str) -> str:
    """The tool that a header addresses, as far as its name is whole."""
    for recipient in reversed(_RECIPIENT.findall(header)):
        name: str = recipient.removeprefix("functions.")
        if name and (name != recipient or name in s.tools or name not in _NOBODY):
            return name
    return ""


def _body(s: Source, header: str, start: int) -> Iterator[None]:
    """A message's body with its end marker."""
    kind = _kind(s, header)
    if kind == "arguments":
        yield from _call(s, _recipient(s, header), start)
        return
    s.reasoning_open = kind == "reasoning"
    mark = yield from _text(s, kind or "content")
    s.reasoning_open = False
    if mark in _ENDS:
        s.take("markup" if kind else "content", s.pos + len(mark))


def _text(s: Source, kind: SegmentKind, sink: Callable[[str], object] | None = None) -> Generator[None, None, str]:
    """Consume a body as `kind`; the marker that ends it is not consumed. The empty string at the end of the text."""
    while True:
        s.sink = sink
        mark = yield from s.until(kind, _BODY)
        s.sink = None
        if mark is None:
            return ""
        if mark in _ENDS:
            ends = yield from s.decide(_AFTER_END, len(mark))
        else:
            ends = yield from s.decide(_START if mark == "<|start|>" else _KNOWN_HEADER)
        if ends is not False:
            return mark
        s.sink = sink
        s.take(kind, s.pos + len(mark))
        s.sink = None


def _call(s: Source, name: str, start: int) -> Iterator[None]:
    """The body of a call: a JSON object, or something that is none."""
    yield from s.skip(BLANKS)
    if not (yield from s.at("{")):
        yield from _no_object(s, name, start)
        return
    call = s.open_call(name, start=start)
    if (yield from s.json(lambda text: s.write(call, text), "<", marker="<|call|>" if s.rereads else "")):
        call.raw_to = s.here
        mark = yield from _text(s, "markup", lambda text: None if text.isspace() else call.flag("junk_in_call"))
        s.close_call(call, repaired=bool(call.flags))
    else:
        swallowed = s.eof and s.pos == len(s.buf) and not s.was_cut and not s.rereads
        if swallowed and (end := _END.search(s.raw(call.raw_from, s.here))):  # by a string that never ended
            s.reread(call.raw_from + end.start())
        mark = yield from _text(s, "arguments")
        s.drop_call(call, "incomplete")
    if mark in _ENDS:
        s.take("markup", s.pos + len(mark))


def _no_object(s: Source, name: str, start: int) -> Iterator[None]:
    """A body that is no object is never shown as a call, unless it is empty: then there are no arguments."""
    raw_from = s.here
    mark = yield from _text(s, "arguments")
    if not mark and s.was_cut:
        s.lose_call(start, "incomplete", name, s.raw(raw_from, s.here))
    elif raw_from < s.here:
        s.lose_call(start, "malformed", name, s.raw(raw_from, s.here))
    else:
        call = s.open_call(name, start=start, flags=("no_arguments",))
        s.write(call, "{}")
        s.close_call(call, repaired=True)
    if mark in _ENDS:
        s.take("markup", s.pos + len(mark))


FORMAT = Format(
    name="prr_gpt_oss",
    grammar=grammar,
    markers=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    turn_openers=("<|start|>",),
    reasoning_start="<|channel|>analysis<|message|>",
    reasoning_end="<|end|>",
)
