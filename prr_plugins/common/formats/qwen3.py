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

from collections.abc import Generator, Iterator

from regex import Match

from prr_plugins.common.arguments import ObjectWriter
from prr_plugins.common.formats import Format
from prr_plugins.common.machine import Call, Source
from prr_plugins.common.reader import Markers, Shape

_BLANK = " \t\r\n"
_NAME = r"([^<>\n]{1,256}+)"
_OPENERS = ("<tool_call>", "\n<tool_call>", "\n\n<tool_call>")
_BARE_OPENERS = ("<function=", "\n<function=", "\n\n<function=")

_CONTENT = Markers(*_OPENERS, *_BARE_OPENERS)
_CONTENT_WITH_THINK = _CONTENT | Markers("</think>", "\n</think>", "<think>")
_THINK_ONLY = Markers("</think>", "\n</think>", "<think>")
_REASONING = Markers("</think>", "\n</think>")
_REASONING_WITH_CALLS = _REASONING | Markers(*_OPENERS)

_CALL = Shape(rf"\n{{0,2}}+<tool_call>\s{{0,64}}+<function={_NAME}>")
_BARE_CALL = Shape(rf"\n{{0,2}}+<function={_NAME}>\s{{0,64}}+(?:<parameter=|</function>)")
_THINK = Shape(r"\s{0,64}+<think>")
_STRAY_END = Shape(r"\n?+</think>(?:\n|<tool_call>)")

_BODY = Markers("<parameter=", "</function>", "</tool_call>", "<tool_call>", "<function=", "</think>")
_PARAMETER = Shape(rf"<parameter={_NAME}>")
_FRAMED_END = Markers("\n</parameter>", "</parameter>", "\n</function>", "\n<parameter=")
_BARE_END = Markers("</parameter>", "\n</function>", "\n<parameter=")
_ENDS_IN_REASONING = {ends is _FRAMED_END: ends | _REASONING for ends in (_FRAMED_END, _BARE_END)}
_AFTER_PARAMETER = Shape(r"\s{0,256}+(?:<parameter=|</function>|</tool_call>)")
_AFTER_FUNCTION = Shape(r"\s{0,256}+</tool_call>")
_UNCLOSED = Shape(rf"\n<parameter={_NAME}>\n")


def grammar(s: Source) -> Iterator[None]:
    if s.reasoning:
        if s.prompt_tail.rfind("<think>") > s.prompt_tail.rfind("</think>"):
            yield from _reasoning(s)
        elif opener := (yield from s.decide(_THINK)):
            yield from _think(s, opener.end() - s.pos)
    while (yield from _content(s)):
        pass


def _content(s: Source) -> Generator[None, None, bool]:
    """Content up to and with the next call or stray marker; False at the end of the text."""
    markers = _CONTENT_WITH_THINK if s.reasoning and s.tool_calls else _CONTENT if s.tool_calls else _THINK_ONLY
    if not s.reasoning and not s.tool_calls:
        s.take("content", len(s.buf))
        yield
        return not s.eof
    mark = yield from s.until("content", markers)
    if mark is None:
        return False
    if mark.endswith("</think>"):  # the reasoning is closed already: a closer on a line's end is an echo, not text
        echo = yield from s.decide(_STRAY_END)
        s.take("content" if echo is False else "markup", s.pos + len(mark))
        if echo is not False:
            yield from s.literal("\n\n")
    elif mark == "<think>":
        if s.finished and s.at_line_start():  # reasoning again after a call
            yield from _think(s, len(mark))
        else:
            s.take("content", s.pos + len(mark))
    else:
        yield from _calls(s, mark)
    return True


def _think(s: Source, length: int) -> Iterator[None]:
    s.take("markup", s.pos + length)
    yield from s.literal("\n")
    yield from _reasoning(s)


def _reasoning(s: Source) -> Iterator[None]:
    s.reasoning_open = True
    while True:
        mark = yield from s.until("reasoning", _REASONING_WITH_CALLS if s.tool_calls else _REASONING)
        if mark is None:
            return
        if mark.endswith("</think>"):
            s.reasoning_open = False
            s.take("markup", s.pos + len(mark))
            yield from s.literal("\n\n")
            return
        call = yield from s.decide(_CALL)
        if not call:
            s.take("reasoning", s.pos + len(mark))
        elif (yield from _calls_in_reasoning(s)):
            return


def _calls_in_reasoning(s: Source) -> Generator[None, None, bool]:
    """Calls inside reasoning are meant if nothing but its closer follows them; else they are drafts, and text.

    False if reasoning goes on after them.
    """
    s.hold()
    while header := (yield from s.decide(_CALL)):
        if not (yield from _function(s, header, ("from_reasoning",))):
            s.relabel(("reasoning", s.here))
            return False
        end = s.here
        yield from s.skip(_BLANK)
        if (yield from s.at("<tool_call>")):
            continue
        closer = s.here
        closed = yield from s.literal("</think>")
        blank = s.here
        yield from s.skip(_BLANK)
        if s.eof and s.pos == len(s.buf):
            s.release()
            s.reasoning_open = False
        elif not closed:
            s.relabel(("reasoning", s.here))
            return False
        else:
            newline = closer > end and s.raw(closer - 1, closer) == "\n"
            frame = 2 if s.raw(blank, blank + 2) == "\n\n" else 0
            s.reasoning_open = False
            s.relabel(("reasoning", closer - newline), ("markup", blank + frame), ("content", s.here))
        return True
    s.relabel(("reasoning", s.here))
    return False


def _calls(s: Source, mark: str) -> Iterator[None]:
    """What a call's opener in content turns out to be: a call, a cut call, or text."""
    bare = mark.endswith("<function=")
    start = s.here
    header = yield from s.decide(_BARE_CALL if bare else _CALL)
    if bare and header and s.tools and header.group(1) not in s.tools:
        header = False
    if header:
        yield from _function(s, header, ("no_section",) if bare else ())
    elif header is None and not bare:
        s.take("markup", len(s.buf))
        s.lose_call(start, "incomplete")
    else:
        s.take("content", s.pos + len(mark))


def _function(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, from its opener to its closers. False if it was cut."""
    start, name = s.here, header.group(1)
    in_reasoning = "from_reasoning" in flags
    s.take("markup", header.start(1))
    s.take("name", header.end(1))
    s.take("markup", s.pos + 1)
    call = s.open_call(name, start=start, flags=flags)
    arguments = ObjectWriter(lambda text: s.write(call, text), s.tools.get(name))
    while True:
        mark = yield from s.between(call, _BODY)
        if mark is None or mark == "</think>":
            s.drop_call(call, "incomplete")
            return False
        if mark != "<parameter=":
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
        if not (yield from _value(s, call, arguments, in_reasoning)):
            s.drop_call(call, "incomplete")
            return False
        arguments.end()
    call.raw_to = s.here
    if mark == "</function>":
        s.take("markup", s.pos + len(mark))
    else:
        call.flag("missing_closer")
    arguments.close()
    s.close_call(call, repaired=arguments.repaired or "junk_in_call" in call.flags)
    closer = yield from s.decide(_AFTER_FUNCTION)
    if closer is not False:
        s.take("markup", closer.end() if closer else len(s.buf))
    return True


def _value(s: Source, call: Call, arguments: ObjectWriter, in_reasoning: bool) -> Generator[None, None, bool]:
    """A parameter's value with its closer; False if the text ended in it."""
    framed = yield from s.literal("\n")
    ends = _FRAMED_END if framed else _BARE_END
    if in_reasoning:  # a draft may break off and reasoning end within what looked like a value
        ends = _ENDS_IN_REASONING[framed]
    while True:
        s.sink = arguments.feed
        mark = yield from s.until("arguments", ends)
        s.sink = None
        if mark is None or mark.endswith("</think>"):
            return False
        if mark.endswith("</parameter>"):
            closes = yield from s.decide(_AFTER_PARAMETER, len(mark))
            if closes is not False:
                s.take("markup", s.pos + len(mark))
                return True
        elif mark.endswith("</function>"):
            closes = yield from s.decide(_AFTER_FUNCTION, len(mark))
            if closes or (closes is None and s.finish_reason != "length"):
                call.flag("missing_closer")
                if framed:
                    s.take("markup", s.pos + 1)
                return True
        else:
            closes = yield from s.decide(_UNCLOSED)
            if closes and closes.group(1) in s.tools.get(call.name, {}).get("properties", {}):
                call.flag("missing_closer")
                s.take("markup", s.pos + 1)
                return True
        s.sink = arguments.feed
        s.take("arguments", s.pos + len(mark))


FORMAT = Format(
    name="prr_qwen3",
    grammar=grammar,
    markers=("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    turn_openers=("<|im_start|>",),
    reasoning_start="<think>",
    reasoning_end="</think>",
)
