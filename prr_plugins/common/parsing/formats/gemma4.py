"""`prr_gemma4`: Gemma 4 (reasoning on a channel, calls in an object notation of its own).

The model's own chat template writes an assistant turn as

    <|channel>thought\\nREASONING\\n<channel|><|tool_call>call:NAME{KEY:VALUE,...}<tool_call|><|tool_call>...CONTENT

where a value is `<|"|>TEXT<|"|>`, a number, `true`, `false`, `null`, `[VALUE,...]` or `{KEY:VALUE,...}`. Keys are not
quoted and may hold blanks; texts are not escaped. The prompt ends in `<|channel>thought\\n<channel|>` where thinking is
off. The newlines written here are frames; content has none. The template writes it behind the calls; models also write
it before them, and then one blank may part a finished sentence from the call. Only the place tells a closing `<|"|>`
from text: it closes where `,`, a bracket or a marker follows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from re import Match

from prr_plugins.common.parsing.arguments import JSON_TEXT, JsonWriter, json_string, value_json
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._shared import FROM_REASONING, Opener, ThinkFormat, read_value
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_CALL, _CALL_END, _STRING, _THOUGHT_END = "<|tool_call>", "<tool_call|>", '<|"|>', "<channel|>"
_BRACKETS = {"{": "}", "(": ")", "[": "]"}

# Some checkpoints leave out the word `call`, or write `(` for the outer brace.
_OPENING = Shape(r"<\|tool_call>\s{0,8}+(?:call)?+:\s{0,8}+(?P<name>[^\s{}()<>:]{1,256}+)\s{0,8}+(?P<brace>[{(])")
_CLOSING = Shape(r"(?P<junk>[\s}\])]{0,16}+)<tool_call\|>")
_STRING_END = Shape(r'<\|"\|>\s{0,64}+(?:[,:}\])]|<\|?tool_call)')
_KEY = Markers(":", ",", "{", "}", "[", "]", _CALL_END, _STRING)
_BARE = Markers(",", "}", "]", ")", _CALL_END, _STRING)
_STRINGS = Markers(_STRING, _CALL)
_THOUGHT_ENDS = Markers(_THOUGHT_END, f"\n{_THOUGHT_END}")
_STRINGS_IN_REASONING = _STRINGS | _THOUGHT_ENDS
_BOUNDS = Markers(_CALL_END, _CALL)
_BOUNDS_IN_REASONING = _BOUNDS | _THOUGHT_ENDS


def _call(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """One call, from its opener to its closer. False if it was cut or cannot be read."""
    start = s.here
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", header.start("brace"))
    call = s.open_call(header["name"], start=start, flags=flags)
    arguments = _Object(s, call)
    if not (yield from arguments.read(header["brace"])):
        cut = s.eof and s.pos == len(s.buf)
        bounds = _BOUNDS_IN_REASONING if FROM_REASONING[0] in flags else _BOUNDS
        missing_closer = bool((yield from s.at(_CALL_END)))
        mark = yield from s.until("arguments", bounds)
        s.drop_call(call, "incomplete" if cut or missing_closer else "malformed")
        if mark == _CALL_END:
            s.take("markup", s.pos + len(mark))
        return False
    call.raw_to = s.here
    closing = yield from s.decide(_CLOSING)
    if not closing:
        call.flag("missing_closer")
    elif closing["junk"].strip(BLANKS):
        call.flag("junk_in_call")
    repaired = arguments.repaired or "unquoted" in call.flags
    s.close_call(call, repaired=repaired, made=not arguments.too_deep)
    if closing is not False:
        s.take("markup", closing.end() if closing else len(s.buf))
    return True


class _Object:
    """The arguments of a call being read, and written as JSON."""

    def __init__(self, s: Source, call: Call) -> None:
        self.s, self.call = s, call
        self._out = JsonWriter(lambda text: s.write(call, text))
        self._in_reasoning = FROM_REASONING[0] in call.flags

    @property
    def repaired(self) -> bool:
        return self._out.repaired

    @property
    def too_deep(self) -> bool:
        return self._out.too_deep

    def read(self, brace: str) -> Generator[None, None, bool]:
        """From the opening brace to its closer; False before anything that cannot stand there."""
        s, out = self.s, self._out
        closers = [_BRACKETS[brace]]
        out.begin("{")
        s.take("arguments", s.pos + 1)
        while closers:
            yield from s.skip(BLANKS + ",", "arguments")
            found = yield from s.at(closers[-1], "{", "[", _STRING, '"')
            if found == closers[-1] and (out.wants_key or found == "]"):
                s.take("arguments", s.pos + 1)
                closers.pop()
                out.end()
            elif out.wants_key:
                if not (yield from self._key(found)):
                    return False
            elif found == "{" or found == "[":
                s.take("arguments", s.pos + 1)
                closers.append(_BRACKETS[found])
                out.begin(found)
            elif not (yield from self._value(found)):
                return False
        return True

    def _key(self, found: str) -> Generator[None, None, bool]:
        s = self.s
        pieces: list[str] = []
        if found == _STRING:
            if not (yield from self._string(pieces.append)):
                return False
            key = json_string("".join(pieces))
            yield from s.skip(BLANKS, "arguments")
        elif found == '"':
            if not (yield from s.json(pieces.append)):
                return False
            key, repaired = value_json("".join(pieces), JSON_TEXT)
            if repaired:
                self.call.flag("unquoted")
            yield from s.skip(BLANKS, "arguments")
        else:
            s.sink = pieces.append
            yield from s.until("arguments", _KEY)
            s.sink = None
            key = json_string("".join(pieces).strip(BLANKS))
        if not (yield from s.literal(":", "arguments")):
            return False
        self._out.key(key)
        return True

    def _value(self, found: str) -> Generator[None, None, bool]:
        s, out = self.s, self._out
        if found == _STRING:
            out.begin_string()
            if not (yield from self._string(lambda text: out.string(json_string(text)[1:-1]))):
                return False
            out.end_string()
            return True
        pieces: list[str] = []
        if found == '"':
            if not (yield from s.json(pieces.append)):
                return False
        else:
            s.sink = pieces.append
            yield from s.until("arguments", _BARE)
            s.sink = None
        bare = "".join(pieces).strip(BLANKS)
        if not bare:
            return False
        text, repaired = value_json(bare, JSON_TEXT)
        if repaired:
            self.call.flag("unquoted")
        out.value(text)
        return True

    def _string(self, feed: Callable[[str], object]) -> Generator[None, None, bool]:
        """A text with its marks; False if it is cut."""
        s = self.s
        s.take("arguments", s.pos + len(_STRING))

        def closes(mark: str) -> Generator[None, None, bool]:
            return mark.endswith(_THOUGHT_END) or (yield from s.decide(_STRING_END)) is not False

        ends = _STRINGS_IN_REASONING if self._in_reasoning else _STRINGS
        mark = yield from read_value(s, ends, closes, feed, {_CALL: (_OPENING, _CALL_END)})
        if mark != _STRING:
            return False
        s.take("arguments", s.pos + len(_STRING))
        return True


_FORMAT = ThinkFormat(
    [Opener(_CALL, _OPENING, _call)],
    inside="\n",
    before=("",),
    stops=("<turn|>", "<|tool_response>", "<eos>"),
    start="<|channel>thought",
    end=_THOUGHT_END,
    reopens=True,
    sentence_gap=True,
)

FORMAT = Format(
    name="prr_gemma4",
    grammar=_FORMAT.grammar,
    markers=("<|turn>", "<turn|>", "<|channel>", _THOUGHT_END, _CALL, _CALL_END, "<|tool_response>", _STRING),
    turn_openers=("<|turn>", "<tool_response|>"),
    reasoning_start="<|channel>thought\n",
    reasoning_end=_THOUGHT_END,
)
