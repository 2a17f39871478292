"""What several families share: `<think>` around reasoning, tagged calls in content, values without escapes.

Promises: a call in reasoning is promoted only if nothing but closers and blanks follows it to the end of the turn (of a
text cut for length nobody knows that), else it stays reasoning; a marker that opens nothing stays text; what is tried
and fails costs one more reading of the text, at most once per completion. Knows tags, no family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from re import Match

from prr_plugins.common.parsing.completion import SegmentKind
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

THINK, END = "<think>", "</think>"
FROM_REASONING = ("from_reasoning",)
_SENTENCE_ENDS = tuple(".:!?。：！？")
_ANYTHING = Shape(r"[\s\S]")

_END = Markers(END)

ReadCall = Callable[[Source, Match[str], tuple[str, ...]], Generator[None, None, bool]]


def _always(s: Source, header: Match[str]) -> bool:
    return True


def _certainly(rest: str) -> bool:
    return True


def no_prose(rest: str) -> bool:
    """For `Opener.begun`, where only another marker may follow: whoever goes on in words is writing about the mark."""
    return rest.lstrip(BLANKS)[:1] in ("", "<")


@dataclass(frozen=True)
class Opener:
    """What opens a call.

    Attributes:
        mark: the literal to look for.
        shape: stands at the mark if it opens a call.
        read: reads the call from its mark to its closers, with the flags it is to bear; False if it was no whole call.
        accepts: a last word on the shape's match.
        flags: what the call is to bear.
        certain: the mark opens nothing else: where the text ends at it, a call was cut.
        begun: a last word on that, given the rest of a text that was not cut for length.
    """

    mark: str
    shape: Shape
    read: ReadCall
    accepts: Callable[[Source, Match[str]], bool] = _always
    flags: tuple[str, ...] = ()
    certain: bool = True
    begun: Callable[[str], bool] = _certainly


class ThinkFormat:
    """Reasoning between `<think>` and `</think>`, then content with calls in it.

    Args:
        openers: what opens a call; of several with one mark the first that fits counts.
        inside: frame behind `<think>` and before `</think>`.
        behind: frame behind `</think>`.
        before: frames before a call's opener; None: any blanks (up to `markers.GAP`), where the family's template trims
            the content it writes there.
        stops: texts of tokens that end a turn; one at the very end of the text is markup.
        start, end: what opens and closes reasoning.
        reopens: reasoning may also open behind content, at a line's start; else only first and behind a call.
        sentence_gap: one blank between a finished sentence and a call parts the two and is the call's frame.
    """

    def __init__(
        self,
        openers: Sequence[Opener],
        *,
        inside: str = "",
        behind: str = "",
        before: Sequence[str] | None = None,
        stops: Sequence[str] = (),
        start: str = THINK,
        end: str = END,
        reopens: bool = False,
        sentence_gap: bool = False,
    ) -> None:
        if sentence_gap:
            before = (*(before or ("",)), " ")
        self._openers = tuple(openers)
        self._sentence_gap = sentence_gap
        self._in_reasoning = tuple(o for o in openers if o.certain)
        self._inside, self._behind, self._stops = inside, behind, tuple(stops)
        self._start, self._end, self._reopens = start, end, reopens
        self._opening = Shape(rf"\s{{0,64}}+{re.escape(start)}")
        first = "|".join(sorted({re.escape(o.mark) for o in self._in_reasoning}))
        self._echo = Shape(rf"(?:{inside})?+{re.escape(end)}(?:\n|{first})")

        def calls(openers: Sequence[Opener]) -> Markers:
            marks = [o.mark for o in openers]
            if before is None:
                return Markers(spaced=marks)
            return Markers(*(frame + mark for frame in before for mark in marks))

        ends = Markers(end, inside + end, *self._stops)
        self._reasoning_markers = {False: ends, True: ends | calls(self._in_reasoning)}
        thinks, tags = ends | Markers(start), calls(self._openers)
        self._content_markers = {
            (True, True): thinks | tags,
            (True, False): thinks,
            (False, True): tags | Markers(*self._stops) if self._stops else tags,
        }

    def grammar(self, s: Source) -> Iterator[None]:
        if s.reasoning:
            tail = s.prompt_tail
            if tail.rfind(self._start) > tail.rfind(self._end):
                s.reasoning_open = True
                if echo := (yield from s.decide(self._opening)):  # the model repeats what the prompt has
                    s.take("markup", echo.end())
                if echo or tail.endswith(self._start):
                    yield from s.literal(self._inside)
                yield from self._reasoning(s)
            elif tail.endswith(self._end):
                yield from s.literal(self._behind)
            elif opener := (yield from s.decide(self._opening)):
                yield from self._think(s, opener.end() - s.pos)
        yield from self._content(s)

    def _content(self, s: Source) -> Iterator[None]:
        markers = self._content_markers.get((s.reasoning, s.tool_calls))
        if markers is None:
            while not s.eof:
                s.take("content", len(s.buf))
                yield
            return
        begin = s.here
        while (mark := (yield from s.until("content", markers))) is not None:
            length = len(mark)
            if mark in self._stops:
                more = yield from s.decide(_ANYTHING, length)
                s.take("content" if more else "markup", s.pos + length)
            elif mark.endswith(self._end):  # reasoning is closed already: a closer on a line's end is an echo, not text
                first = s.here == begin
                echo = first or (yield from s.decide(self._echo))
                s.take("content" if echo is False else "markup", s.pos + length)
                if first:
                    yield from s.literal(self._behind)
            elif mark == self._start:
                # Reasoning again, after a call.
                if (s.finished or self._reopens) and (s.at_line_start() or s.here == begin):
                    yield from self._think(s, length)
                else:
                    s.take("content", s.pos + length)
            else:
                yield from self._call(s, mark)
                begin = s.here

    def _think(self, s: Source, length: int) -> Iterator[None]:
        s.take("markup", s.pos + length)
        yield from s.literal(self._inside)
        yield from self._reasoning(s)

    def _opener(
        self, s: Source, mark: str, openers: Sequence[Opener]
    ) -> Generator[None, None, tuple[Opener, Match[str]] | bool]:
        """The opener that `mark` is, with its match; True if the text ended before that showed, False if it is none."""
        cut = False
        for opener in openers:
            if mark.endswith(opener.mark):
                header = yield from s.decide(opener.shape, len(mark) - len(opener.mark))
                if header and opener.accepts(s, header):
                    return opener, header
                if header is None and opener.certain:
                    cut = cut or s.was_cut or opener.begun(s.buf[s.pos + len(mark) :])
        return cut

    def _call(self, s: Source, mark: str) -> Iterator[None]:
        """What a call's mark in content turns out to be: a call, a cut call, or text."""
        mark = self._framed(s, "content", mark)
        start = s.here
        found = yield from self._opener(s, mark, self._openers)
        if isinstance(found, tuple):
            yield from found[0].read(s, found[1], found[0].flags)
        elif found:
            s.take("markup", len(s.buf))
            s.lose_call(start, "incomplete")
        else:
            s.take("content", s.pos + len(mark))

    def _framed(self, s: Source, kind: SegmentKind, mark: str) -> str:
        """The mark with its frame; a blank before it that parts no finished sentence from it is text."""
        if not self._sentence_gap or mark[0] != " " or s.raw(s.here - 1, s.here) in _SENTENCE_ENDS:
            return mark
        s.take(kind, s.pos + 1)
        return mark[1:]

    def _reasoning(self, s: Source) -> Iterator[None]:
        s.reasoning_open = True
        while (mark := (yield from s.until("reasoning", self._reasoning_markers[s.tool_calls]))) is not None:
            if mark in self._stops:
                more = yield from s.decide(_ANYTHING, len(mark))
                s.take("reasoning" if more else "markup", s.pos + len(mark))
            elif mark.endswith(self._end):
                s.reasoning_open = False
                s.take("markup", s.pos + len(mark))
                yield from s.literal(self._behind)
                return
            else:
                mark = self._framed(s, "reasoning", mark)
                found = yield from self._opener(s, mark, self._in_reasoning)
                if not isinstance(found, tuple):
                    s.take("reasoning", s.pos + len(mark))
                elif (yield from self._calls_in_reasoning(s, found)):
                    return

    def _calls_in_reasoning(self, s: Source, found: tuple[Opener, Match[str]] | bool) -> Generator[None, None, bool]:
        """Calls inside reasoning are meant if nothing but its closer follows them; else they are drafts, and text.

        False if reasoning goes on after them.
        """
        marks = {o.mark for o in self._in_reasoning}
        s.hold()
        while isinstance(found, tuple):
            if not (yield from found[0].read(s, found[1], (*found[0].flags, *FROM_REASONING))):
                break
            end = s.here
            yield from s.skip(BLANKS)
            if mark := (yield from s.at(*marks)):
                found = yield from self._opener(s, mark, self._in_reasoning)
                continue
            closer = s.here
            closed = yield from s.literal(self._end)
            blank = s.here
            yield from s.skip(BLANKS)
            for stop in self._stops:
                if (yield from s.literal(stop)):
                    yield from s.skip(BLANKS)
            if s.eof and s.pos == len(s.buf) and not s.was_cut:
                s.release()
                s.reasoning_open = False
                return True
            if not closed:
                break
            inside = len(self._inside) if s.raw(max(end, closer - len(self._inside)), closer) == self._inside else 0
            behind = len(self._behind) if s.raw(blank, blank + len(self._behind)) == self._behind else 0
            s.reasoning_open = False
            s.relabel(("reasoning", closer - inside), ("markup", blank + behind), ("content", s.here))
            return True
        at_end = yield from s.at(END)  # the draft broke off where reasoning ends
        frame = len(self._inside) if at_end and s.raw(s.here - len(self._inside), s.here) == self._inside else 0
        s.relabel(("reasoning", s.here - frame), ("markup", s.here))
        return False


def repeated(s: Source, closer: Shape) -> Iterator[None]:
    """A closer that stands there once more, behind the call that it has closed already, is an echo and no text."""
    while echo := (yield from s.decide(closer)):
        s.take("markup", echo.end())


_OBJECT = Shape(r"""\s{0,64}+\{\s{0,64}+["'}]""")


def whole_object(s: Source, call: Call, end: str = END) -> Generator[None, None, bool]:
    """Consume arguments that stand as one JSON object where the format has parameters. False if none stands here.

    `end`: what closes the reasoning, should the call stand in it.
    """
    if not (yield from s.decide(_OBJECT)):
        return False
    yield from s.skip(BLANKS)
    call.raw_from = s.here
    marker = end if FROM_REASONING[0] in call.flags else ""
    yield from s.json(lambda text: s.write(call, text), "<", marker=marker)
    call.raw_to = s.here
    return True


# ---------------------------------------------------------------------------------------- calls quoted in values


def read_value(
    s: Source,
    ends: Markers,
    closes: Callable[[str], Generator[None, None, bool]],
    feed: Callable[[str], object],
    quoted: Mapping[str, tuple[Shape, str]],
) -> Generator[None, None, str | None]:
    """Consume a value without escapes, up to the marker of `ends` that `closes` it; that marker, not consumed.

    A value may quote whole calls (a document about the format): `quoted` maps an opener's mark to its shape and its
    closer, and nothing in between closes the value. Should the value then never close, they were no quotations, and it
    is read once more without them; what comes behind the first one is fed only when that is settled.
    None if the text ended in the value, or the reasoning that it stands in.
    """
    held: list[str] | None = None
    first = 0
    thinking = _END if END in ends.literals else None
    while True:
        s.sink = feed if held is None else held.append
        mark = yield from s.until("arguments", ends)
        if mark is None and held is not None and not s.was_cut:
            s.reread(first)
            held = None
        elif mark is None or mark.endswith(END):
            s.sink = None
            return None
        elif mark in quoted:
            if not s.rereads and (yield from s.decide(quoted[mark][0])):
                if held is None:
                    held, first = [], s.here
                yield from quoted_call(s, quoted[mark][0], mark, quoted[mark][1], held.append, thinking)
            else:
                s.take("arguments", s.pos + len(mark))
        elif (yield from closes(mark)):
            s.sink = None
            for piece in held or ():
                feed(piece)
            return mark
        else:
            s.take("arguments", s.pos + len(mark))


@cache
def _bounds(mark: str, closer: str, ends: Markers | None) -> Markers:
    return Markers(mark, closer) | ends if ends else Markers(mark, closer)


def quoted_call(
    s: Source, opener: Shape, mark: str, closer: str, sink: Callable[[str], object], ends: Markers | None = None
) -> Generator[None, None, bool]:
    """Consume a whole call that a value quotes, with those that it quotes itself; or all there is, where it was cut.

    The text must stand at its `mark`. False if it never closes (nothing is consumed) or one of `ends` comes first.
    """
    markers = _bounds(mark, closer, ends)
    start = s.here
    pieces: list[str] = []
    s.sink = pieces.append
    depth = 0
    found: str | None = mark
    while found is not None and found in (closer, mark):
        if found == closer:
            depth -= 1
        elif (yield from s.decide(opener)):
            depth += 1
        s.take("arguments", s.pos + len(found))
        if depth == 0:
            break
        found = yield from s.until("arguments", markers)
    s.sink = None
    if found is None and not s.was_cut:
        s.reread(start)
        return False
    for piece in pieces:
        sink(piece)
    return found is None or found == closer
