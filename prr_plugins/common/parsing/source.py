"""What a grammar reads from and reports to: text in, deltas out.

Promises: the segments tile the text (L1); any split of the text gives the same result (L3); no text raises, time and
memory are linear (L4).

A format's grammar is a generator over a `Source`. It reads like the format's own description: it takes what stands
there, names what it is, and where the next characters are not there yet the driver (`stream_parser`) suspends it. A
grammar never sees a chunk border.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from prr_plugins.common.parsing.arguments import is_json_object, json_end, repair, tool_parameters
from prr_plugins.common.parsing.completion import (
    Delta,
    IncompleteCall,
    IncompleteStatus,
    Policy,
    Segment,
    SegmentKind,
    ToolCall,
)
from prr_plugins.common.parsing.markers import Markers, Shape, in_string, json_stop, string_special

_TRIES = 8  # whole JSON that turned out to be none: behind that the text is read bit by bit
_PACKED = 64  # strings that wait to be joined


class Call:
    """A call being read."""

    __slots__ = ("flags", "held", "id", "index", "name", "pieces", "raw_from", "raw_to", "start")

    def __init__(self, name: str, call_id: str | None, start: int, flags: Sequence[str]) -> None:
        self.name = name
        self.id = call_id
        self.index = -1
        self.start = start  # characters of raw_text, as are the next two
        self.raw_from = start
        self.raw_to: int | None = None
        self.pieces: list[str] = []
        self.flags = list(flags)

    def flag(self, flag: str) -> None:
        """Note once that something was unusual."""
        if flag not in self.flags:
            self.flags.append(flag)


class Source:
    """What a grammar reads from and reports to.

    `buf[pos:]` is what is not consumed yet; offsets given to a grammar's calls are relative to `buf`. Methods that may
    have to wait for text are generators, to be used with `yield from`.
    """

    far = 256  # characters of `buf` from which on other ways to search pay; the result is the same

    def __init__(
        self,
        prompt_tail: str,
        tools: Sequence[Mapping[str, Any]] | None,
        reasoning: bool,
        tool_calls: bool,
        policy: Policy,
    ) -> None:
        self.prompt_tail = prompt_tail
        self.tools = tool_parameters(tools)
        self.reasoning = reasoning
        self.tool_calls = tool_calls
        self.was_cut = False  # the completion ended where the model did not end it
        self.reasoning_open = False
        self.rereads = 0  # a grammar that rereads tries what failed once only: that keeps it linear
        self.buf = ""
        self.pos = 0
        self.eof = False
        self.out: list[Delta] = []
        self.finished: list[ToolCall] = []
        self.unfinished: list[IncompleteCall] = []
        self.sink: Callable[[str], object] | None = None
        self._eager = policy == "eager"
        self._base = 0  # characters of raw_text before buf
        self._parts: list[str] = []  # what was fed
        self._recent: list[str] = []  # and what was not packed into a part yet: a string a token is ten times the text
        self._part_ends: list[int] = []  # as far as `raw` needed them
        self._marks: list[tuple[SegmentKind, int]] = []  # where each segment begins
        self._kind: SegmentKind | None = None
        # The strict JSON object that was just read in one go: where it begins, and its text.
        self._object: tuple[int, str | None] = -1, None
        self._broken = 0  # how often that was tried in vain
        self._plain: Callable[[str], object] | None = None  # searches for what would end the text that is flowing
        self._calls = 0
        self._held: tuple[list[Delta], int, SegmentKind | None, int, int, int, int] | None = None

    # ------------------------------------------------------------------------------------ reading

    @property
    def here(self) -> int:
        """The position in raw_text (characters)."""
        return self._base + self.pos

    def until(self, kind: SegmentKind, markers: Markers) -> Generator[None, None, str | None]:
        """Consume text as `kind` up to the next marker; the marker itself is not consumed.

        Text that may be the beginning of a marker is held back until that is known. Returns the marker, or None at the
        end of the text.
        """
        while True:
            far = len(self.buf) - self.pos > self.far
            m = (markers.find_far if far else markers.find)(self.buf, self.pos)
            if m is not None and markers.is_partial(m):
                if not self.eof:
                    self.take(kind, m.start())
                    yield
                    continue
                m = markers.find_final(self.buf, self.pos)  # no more comes: only a whole marker is one
            if m is not None:
                self.take(kind, m.start())
                return m.group()
            self.take(kind, len(self.buf))
            if self.eof:
                return None
            if kind is self._kind:
                self._plain = markers.find  # until it finds something, `flow` does what this loop would do
            yield

    def decide(self, shape: Shape, ahead: int = 0) -> Generator[None, None, re.Match[str] | Literal[False] | None]:
        """Does `shape` stand `ahead` characters from here? The match, False, or None: the text ended before it showed.

        Nothing is consumed. The match's offsets are into `buf`.
        """
        while True:
            m = shape.decide(self.buf, self.pos + ahead)
            if m is not None or self.eof:
                return m
            yield

    def literal(self, text: str, kind: SegmentKind = "markup") -> Generator[None, None, bool]:
        """Consume `text` as `kind` if it stands here."""
        while True:
            have = self.buf[self.pos : self.pos + len(text)]
            if have == text:
                self.take(kind, self.pos + len(text))
                return True
            if self.eof or not text.startswith(have):
                return False
            yield

    def at(self, *texts: str) -> Generator[None, None, str]:
        """Which of `texts` stands here? The empty string if none does. Nothing is consumed."""
        while True:
            have = self.buf[self.pos : self.pos + max(map(len, texts))]
            for text in texts:
                if have.startswith(text):
                    return text
            if self.eof or not any(text.startswith(have) for text in texts):
                return ""
            yield

    def between(self, call: Call, markers: Markers) -> Generator[None, None, str | None]:
        """Inside a call, up to the next marker: blanks belong to the markup, anything else is flagged as junk."""

        def junk(text: str) -> None:
            if not text.isspace():
                call.flag("junk_in_call")

        self.sink = junk
        mark = yield from self.until("markup", markers)
        self.sink = None
        return mark

    @property
    def behind_markup(self) -> bool:
        """True at the beginning of the text and right behind markup: no text of the model stands before."""
        return self._kind is None or self._kind == "markup"

    def at_line_start(self) -> bool:
        """True at the beginning of the text and behind a newline."""
        return self.here == 0 or self.raw(self.here - 1, self.here) == "\n"

    def skip(self, characters: str, kind: SegmentKind = "markup") -> Generator[None, None, None]:
        """Consume any run of `characters` as `kind`."""
        while True:
            end = self.pos
            while end < len(self.buf) and self.buf[end] in characters:
                end += 1
            self.take(kind, end)
            if end < len(self.buf) or self.eof:
                return
            yield

    def json(
        self,
        sink: Callable[[str], object] | None = None,
        stop: str = "",
        *,
        marker: str = "",
        kind: SegmentKind = "arguments",
    ) -> Generator[None, None, bool]:
        """Consume one JSON object, array or string as `kind`; brackets inside strings do not count.

        The text must stand at its first character, or be over. False if it does not end: the text is over, or a
        character of `stop` stands outside a string (such as the `<` of a marker, which no JSON has there), or `marker`
        stands in a string; what stops it is not consumed. Python's quotes count too: `repair` mends them.
        """
        self.sink = sink
        if not marker and kind == "arguments" and self._in_one_go():
            return True
        outside = json_stop(stop)
        depth = 0
        quote = ""  # of the string we are in
        while True:
            buf, i, n = self.buf, self.pos, len(self.buf)
            ended: bool | None = None
            plain = None
            while i < n and ended is None:
                if not quote:
                    m = outside(buf, i)
                    if m is None:
                        i = n
                        break
                    c, i = m.group(), m.end()
                    if c == '"' or c == "'":
                        quote = c
                    elif c in "{[":
                        depth += 1
                    elif c in stop:
                        i -= 1
                        ended = False
                    else:
                        depth -= 1
                        ended = True if depth <= 0 else None
                    continue
                i = in_string(quote, marker[:1])(buf, i).end()  # type: ignore[union-attr]  # it matches anywhere
                if i == n:
                    plain = string_special(quote, marker[:1])
                    break
                if buf[i] == quote:
                    quote = ""
                    i += 1
                    ended = None if depth else True
                elif buf[i] == "\\":
                    break  # the escaped character has not come yet
                elif buf.startswith(marker, i):
                    ended = False
                elif n - i < len(marker) and marker.startswith(buf[i:]) and not self.eof:
                    break
                else:
                    i += 1
            if ended is None and self.eof:
                i, ended = n, False
            self.take(kind, i)
            if ended is not None:
                self.sink = None
                return ended
            self._plain = plain
            yield

    def _in_one_go(self) -> bool:
        """`json` where all of it is there already and strict. Each failure reads on in vain, so only some are tried."""
        if self._broken >= _TRIES or not self.buf.startswith(("{", "[", '"'), self.pos):
            return False
        if len(self.buf) - self.pos <= self.far and self.buf.find("}", self.pos) < 0:
            return False  # the beginning of a stream
        end = json_end(self.buf, self.pos)
        if end is None:
            self._broken += 1
            return False
        whole = self.buf[self.pos : end]
        if whole[0] == "{":
            self._object = self.here, whole
        sink, self.sink = self.sink, None
        self.take("arguments", end)
        if sink is not None:
            sink(whole)
        return True

    def take(self, kind: SegmentKind, end: int) -> None:
        """Consume `buf[pos:end]` as `kind`. Reasoning and content flow out, the rest goes to `sink` if there is one."""
        if end <= self.pos:
            return
        if kind is not self._kind:
            self._marks.append((kind, self._base + self.pos))
            self._kind = kind
        if kind == "content" or kind == "reasoning":
            self.out.append(Delta(kind, self.buf[self.pos : end]))
        elif self.sink is not None and kind != "name":
            self.sink(self.buf[self.pos : end])
        self.pos = end

    def raw(self, start: int, end: int) -> str:
        """`raw_text[start:end]` of what was fed so far."""
        if start >= end:
            return ""
        self._pack()
        ends = self._part_ends
        ends += accumulate(map(len, self._parts[len(ends) :]), initial=ends.pop() if ends else None)
        i = bisect_right(ends, start)
        j = bisect_left(ends, end, i)
        first = ends[i - 1] if i else 0
        return "".join(self._parts[i : j + 1])[start - first : end - first]

    # ------------------------------------------------------------------------------------ calls

    def open_call(
        self, name: str, call_id: str | None = None, *, start: int | None = None, flags: Sequence[str] = ()
    ) -> Call:
        """A call begins. `start` is where its raw text begins (characters of raw_text).

        Where only the arguments tell which tool is meant, `name` is empty and `call.name` set before `close_call`;
        such a call is sent once it is closed.
        """
        call = Call(name, call_id, self.here if start is None else start, flags)
        call.raw_from = self.here
        if self._eager and name:
            self._announce(call)
        return call

    def write(self, call: Call, json_text: str) -> None:
        """Append to the call's arguments."""
        call.pieces.append(json_text)
        if call.index >= 0:
            self.out.append(Delta("arguments", json_text, call.index))

    def close_call(self, call: Call, *, repaired: bool = False, made: bool = False) -> None:
        """The call is whole. Arguments that are not a strict JSON object are repaired, or the call is malformed.

        `repaired`: something else about the call was; it also counts as that where junk was passed over.
        `made`: its arguments are what a writer of `arguments` made, and so are one.
        """
        raw_to = self.here if call.raw_to is None else call.raw_to
        arguments = "".join(call.pieces)
        start, known = self._object
        self._object = -1, None
        same = arguments == known
        if same and (start, start + len(arguments)) == (call.raw_from, raw_to):
            raw = arguments
        else:
            raw = self.raw(call.raw_from, raw_to)
        if not (made or same or is_json_object(arguments)):
            mended = repair(arguments)
            if mended is None or not is_json_object(mended):
                self.drop_call(call, "malformed")
                return
            arguments, repaired = mended, True
        if call.index < 0:
            self._announce(call)
            self.out.append(Delta("arguments", arguments, call.index))
        self.out.append(Delta("call_end", raw, call.index))
        repaired = repaired or "junk_in_call" in call.flags
        unknown = bool(self.tools) and call.name not in self.tools
        status: Literal["ok", "repaired", "unknown_tool"] = (
            "unknown_tool" if unknown else "repaired" if repaired else "ok"
        )
        self.finished.append(ToolCall(call.id, call.name, arguments, raw, status, tuple(call.flags)))

    def drop_call(self, call: Call, status: IncompleteStatus, *, end: int | None = None) -> None:
        """The call was cut, or cannot be read: it stays visible as such, with all its text (to `end`, or to here)."""
        raw = self.raw(call.raw_from, self.here if call.raw_to is None else call.raw_to)
        self.lose_call(call.start, status, call.name or None, raw, end=end)

    def lose_call(
        self,
        start: int,
        status: IncompleteStatus,
        name: str | None = None,
        raw_arguments: str = "",
        *,
        end: int | None = None,
    ) -> None:
        """A call that did not get as far as its name; all text from `start` to `end`, or to here, is its raw text."""
        raw_text = self.raw(start, self.here if end is None else end)
        self.unfinished.append(IncompleteCall(name, raw_arguments, raw_text, status))

    def _announce(self, call: Call) -> None:
        call.index = self._calls
        self._calls += 1
        self.out.append(Delta("call", call.name, call.index, call.id))

    # ------------------------------------------------------------------------------------ trying

    def hold(self) -> None:
        """From here on nothing flows out until `release` or `relabel`: what is read may turn out otherwise."""
        assert self._held is None
        self._held = (
            self.out, len(self._marks), self._kind, len(self.finished), len(self.unfinished), self._calls, self.here
        )  # fmt: skip
        self.out = []

    def release(self) -> None:
        """It was what it seemed: let it flow."""
        assert self._held is not None
        held, self.out = self.out, self._held[0]
        self.out.extend(held)
        self._held = None

    def relabel(self, *pieces: tuple[SegmentKind, int]) -> None:
        """It was something else: what was read since `hold` is these `(kind, end)` pieces (characters of raw_text)."""
        assert self._held is not None
        self.out, marks, self._kind, finished, unfinished, self._calls, start = self._held
        self._held = None
        del self._marks[marks:], self.finished[finished:], self.unfinished[unfinished:]
        for kind, end in pieces:
            if end <= start:
                continue
            if kind is not self._kind:
                self._marks.append((kind, start))
                self._kind = kind
            if kind == "content" or kind == "reasoning":
                self.out.append(Delta(kind, self.raw(start, end)))
            start = end
        assert start == self.here

    def reread(self, start: int) -> None:
        """At the end of the text: read once more from `start` on (characters of raw_text), where something never ended.

        Nothing but markup and arguments may have been read since; what has flowed out stays out.
        """
        assert self.eof
        self.rereads += 1
        self.buf = self.raw(start, self._base + len(self.buf))
        self._base = start
        self.pos = 0
        while self._marks and self._marks[-1][1] >= start:
            self._marks.pop()
        self._kind = self._marks[-1][0] if self._marks else None

    # ------------------------------------------------------------------------------------ driving

    def add(self, text: str) -> None:
        """The next characters of the completion."""
        self._plain = None
        self._recent.append(text)
        if len(self._recent) > _PACKED:
            self._pack()
        if self.pos == len(self.buf):
            self._base += self.pos
            self.buf = text
        else:
            self._base += self.pos
            self.buf = self.buf[self.pos :] + text
        self.pos = 0

    def flow(self, text: str) -> list[Delta] | None:
        """`add` and `deltas` for text in which nothing stands that a grammar looks for: the common path.

        None where that is not so; nothing is done then.
        """
        if self._plain is None or self._plain(text) is not None:
            return None
        recent = self._recent
        recent.append(text)
        if len(recent) > _PACKED:
            self._pack()
        self._base += self.pos
        self.buf = text
        self.pos = len(text)
        kind = self._kind
        if kind == "content" or kind == "reasoning":
            self.out.append(Delta(kind, text))
        elif self.sink is not None:
            self.sink(text)
        return self.deltas()

    def _pack(self) -> None:
        if self._recent:
            self._parts.append("".join(self._recent))
            self._recent.clear()

    def whole(self) -> str:
        """All that was fed."""
        self._pack()
        return "".join(self._parts)

    def deltas(self) -> list[Delta]:
        """What may flow out now."""
        if self._held is not None:
            out = list(self._held[0])
            self._held[0].clear()
            return out
        out, self.out = self.out, []
        return out

    def segments(self, length: int) -> tuple[Segment, ...]:
        if not self._marks:
            return ()
        ends = [start for _, start in self._marks[1:]] + [length]
        return tuple(Segment(kind, start, end) for (kind, start), end in zip(self._marks, ends, strict=True))
