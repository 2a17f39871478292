"""Calls written as one JSON object, `{"name": NAME, "arguments": {...}}`, alone or between tags.

Promises: arguments are the slice that the model wrote; in a JSON string no marker counts; an object that cannot be read
is lost as one call and hides none behind it, at the cost of one more reading of the text, once per completion.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from re import Match

from prr_plugins.common.parsing.arguments import escape_surrogates, repair
from prr_plugins.common.parsing.completion import IncompleteStatus, SegmentKind
from prr_plugins.common.parsing.formats._shared import END, FROM_REASONING, ReadCall, repeated
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_ABSENT = ("", "null", "None", '""')
_KEY = Shape(r"""\s{0,64}+(?:"([^"\\\n]{1,64}+)"|'([^'\\\n]{1,64}+)')\s{0,64}+:""")
_NAME = Shape(r"""(?:"((?:[^"\\\n]|\\.){1,256}+)"|'((?:[^'\\\n]|\\.){1,256}+)')""")
_NEXT = Shape(r"\s{0,64}+([,}])")
_SCALAR_END = Markers(",", "}", "]", "\n", "<", " ")
_ANOTHER = Shape(r"""\s{0,64}+,?+\s{0,64}+(\{)\s{0,64}+["']""")


def json_opener(mark: str) -> Shape:
    """`mark` followed by a JSON object with a key, or by an array of such, fenced or not; group 1 ends at the brace."""
    return Shape(rf"""{mark}\s{{0,64}}+(?:```(?:json)?+\s{{0,64}}+)?+(?:\[\s{{0,64}}+)?+(\{{)\s{{0,64}}+["']""")


def json_calls(closer: str) -> ReadCall:
    """Reads `{"name": NAME, "arguments": {...}}` up to and with `closer`: keys in any order, several calls in one pair
    of tags too. Arguments that were encoded once more as a string are decoded, absent ones are `{}`."""
    opener = closer.replace("/", "", 1)
    closing = Shape(rf"[\s\]}}`]{{0,64}}+{closer}")
    echo = Shape(rf"\s{{0,64}}+{closer}")
    bounds = Markers(closer, opener)
    bounds_in_reasoning = bounds | Markers(END)

    def read(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
        in_reasoning = FROM_REASONING[0] in flags
        # A draft may break off, and reasoning end, within what looked like a string.
        marker = END if in_reasoning else closer if s.rereads else ""
        whole = False
        brace: Match[str] | bool | None = header
        while isinstance(brace, Match):
            start = s.here
            s.take("markup", brace.end(1))
            reader = JsonCall(s, start, flags, marker)
            yield from reader.read()
            end = yield from s.decide(closing)
            brace = False if end else (yield from s.decide(_ANOTHER))
            if end and reader.arguments_ended:
                if not reader.whole:
                    reader.flag("missing_closer")
                elif end.group().removesuffix(closer).strip(BLANKS + "]`"):
                    reader.flag("junk_in_call")
                whole = reader.close()
                s.take("markup", end.end())
                yield from repeated(s, echo)
            elif reader.whole and not (end is None and s.was_cut):
                if not brace:
                    reader.flag("missing_closer")
                whole = reader.close()
            else:
                yield from _broken(s, reader, closer, bounds_in_reasoning if in_reasoning else bounds)
                return False
        return whole

    return read


def _broken(s: Source, reader: JsonCall, closer: str, bounds: Markers) -> Iterator[None]:
    """The call is no JSON object: it goes as far as its closer, or to the end of the text."""
    if s.eof and s.pos == len(s.buf) and not s.was_cut and not s.rereads:
        at = s.raw(reader.start, s.here).find(closer)
        if at >= 0:  # a string that never ended has swallowed the rest
            s.reread(reader.start + at)
    mark = yield from s.until("arguments", bounds)
    reader.lose("malformed" if mark else "incomplete")
    if mark == closer:
        s.take("markup", s.pos + len(closer))


class JsonCall:
    """One call's JSON object being read: `{"name": NAME, "arguments": {...}}`, the keys in any order.

    Args:
        start: where the call's raw text begins (characters of raw_text).
        marker: what ends even a string; the empty string if nothing does.
    """

    def __init__(self, s: Source, start: int, flags: tuple[str, ...] = (), marker: str = "") -> None:
        self.s = s
        self.start = start
        self.whole = False  # its closing brace was there
        self.arguments_ended = False
        self._flags = list(flags)
        self._marker = marker
        self.name: str | None = None
        self._call: Call | None = None
        self._span: tuple[int, int] | None = None  # of the arguments, characters of raw_text
        self._pieces: list[str] = []

    @property
    def has_arguments(self) -> bool:
        return self._span is not None

    def flag(self, flag: str) -> None:
        self._flags.append(flag)
        if self._call is not None:
            self._call.flag(flag)

    def read(self) -> Iterator[None]:
        """From behind the opening brace to the closing one, or to what no such object has there."""
        s = self.s
        depth = 0
        while key := (yield from s.decide(_KEY)):
            s.take("markup", key.end())
            yield from s.skip(BLANKS)
            word = key.group(1) or key.group(2)
            if word == "function" and self.name is None and (yield from s.literal("{")):
                depth += 1  # OpenAI's shape of a call: name and arguments stand inside
                continue
            if word in _NAMES and self.name is None and (name := (yield from s.decide(_NAME))):
                group = 1 if name.group(1) is not None else 2
                s.take("markup", name.start(group))
                s.take("name", name.end(group))
                s.take("markup", name.end())
                self.name = _text(name.group())
            elif word in _ARGUMENTS and self._span is None:
                if not (yield from self._arguments()):
                    return
            elif not (yield from self._value(None)):
                return
            self.arguments_ended = self._span is not None
            while (after := (yield from s.decide(_NEXT))) and after.group(1) == "}" and depth:
                s.take("markup", after.end())
                depth -= 1
            if not after:
                return
            s.take("markup", after.end())
            if after.group(1) == "}":
                self.whole = self.arguments_ended = self.name is not None
                return

    def _arguments(self) -> Generator[None, None, bool]:
        s = self.s
        start = s.here
        if self.name is not None and (yield from s.at("{")):
            call = self._call = s.open_call(self.name, start=self.start, flags=self._flags)
            ended = yield from s.json(lambda text: s.write(call, text), "<", marker=self._marker)
            call.raw_to = s.here
        else:
            ended = yield from self._value(self._pieces.append)
        self._span = (start, s.here)
        return ended

    def _value(self, sink: Callable[[str], object] | None) -> Generator[None, None, bool]:
        s = self.s
        kind: SegmentKind = "markup" if sink is None else "arguments"
        if (yield from s.at("{", "[", '"', "'")):
            return (yield from s.json(sink, "<", marker=self._marker, kind=kind))
        s.sink = sink
        yield from s.until(kind, _SCALAR_END)
        s.sink = None
        return True

    def close(self) -> bool:
        """The call is whole; False if it cannot be read all the same."""
        s, call = self.s, self._call
        repaired = False
        if self.name is None:
            self.lose("malformed")
            return False
        if call is None:
            call = s.open_call(self.name, start=self.start, flags=self._flags)
            call.raw_from, call.raw_to = self._span or (s.here, s.here)
            given = "".join(self._pieces)
            arguments = "{}" if given in _ABSENT else _text(given)
            repaired = arguments != given
            s.write(call, arguments)
        before = len(s.finished)
        s.close_call(call, repaired=repaired)
        return len(s.finished) > before

    def lose(self, status: IncompleteStatus) -> None:
        """The call was cut, or cannot be read; all up to here belongs to it."""
        s = self.s
        raw_from = s.here if self._span is None else self._span[0]
        s.lose_call(self.start, status, self.name, s.raw(raw_from, s.here))


def _text(literal: str) -> str:
    """What a quoted string says; anything else as it is."""
    if literal[:1] not in ("'", '"'):
        return literal
    try:
        said = json.loads(literal)
    except ValueError:
        mended = repair(literal)
        if mended is None:
            return literal
        said = json.loads(mended)
    return escape_surrogates(said)
