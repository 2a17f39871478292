"""Calls in a section, delimited by special tokens, their arguments one JSON object: Kimi K2 and DeepSeek V3 share this.

Promises: in a JSON string no marker counts; arguments that never end because of a broken string are cut where a call
visibly ended, a bounded number of times; a call whose arguments are whole counts even if its closer is missing, unless
the text was cut there. Knows no family: the markers and what stands before the arguments are the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import partial
from re import Match

from prr_plugins.common.parsing.formats._shared import END, FROM_REASONING, Opener, no_prose
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

Flags = tuple[str, ...]
# Text inside a section and outside its calls is no content, but only so much of it: a section may also stay unclosed.
NOISE = "[^<]{0,256}+"
_NO_SECTION = ("no_section",)
_REREADS = 4


class Section:
    """A section of calls; a call without a section counts too.

    Args:
        begin, end: the section's markers.
        call, call_end: those of one call.
        header: pattern of a call's beginning up to where its arguments may stand.
        read: reads one call, standing at its header, whose match it is given; False if the text broke off or it was
            no call.
        closing: pattern of what the family writes between the arguments and `call_end`.
    """

    def __init__(
        self,
        begin: str,
        end: str,
        call: str,
        call_end: str,
        *,
        header: str,
        read: Callable[[Source, Match[str], Flags], Generator[None, None, bool]],
        closing: str = "",
        ends: tuple[str, ...] = (),
    ) -> None:
        self._begin, self._end, self._read = begin, end, read
        e_begin, e_end, e_call, e_call_end = map(re.escape, (begin, end, call, call_end))
        self._next = Shape(rf"{NOISE}(?P<call>{e_end}|{header})")
        self._next_bare = Shape(rf"\s{{0,64}}+(?P<call>{e_end}|{header})")
        self._echo = Shape(rf"\s{{0,16}}+(?:{e_end}|{e_call_end})")
        self._closing = Shape(rf"{closing}(?P<junk>{NOISE})(?:(?P<own>{e_call_end})|(?={e_call}|{e_end}|{e_begin}))")
        self._ended = re.compile(rf"{e_call_end}\s*(?:{e_call}|{e_end})").search
        self._ends = Markers(call_end, call, end, begin, END, *ends)
        self.openers = (
            Opener(begin, Shape(rf"{e_begin}{NOISE}(?:{e_end}|{header})"), self._calls, begun=no_prose),
            Opener(call, Shape(header), self._calls, flags=_NO_SECTION, begun=no_prose),
        )

    def _calls(self, s: Source, header: Match[str], flags: Flags) -> Generator[None, None, bool]:
        """All calls from here on; False if there is no whole one, or the text broke off."""
        bare = _NO_SECTION[0] in flags
        if not bare:
            s.take("markup", s.pos + len(self._begin))
        whole = False
        while following := (yield from s.decide(self._next_bare if bare else self._next)):
            s.take("markup", following.start("call"))
            if following["call"] == self._end:
                s.take("markup", following.end())
                break
            if (yield from self._read(s, following, flags)):
                whole = True
            elif FROM_REASONING[0] in flags:
                return False
        if following is None:
            _rest(s)
        while echo := (yield from s.decide(self._echo)):
            s.take("markup", echo.end())
        return whole

    def arguments(self, s: Source, call: Call) -> Generator[None, None, bool]:
        """The arguments and what closes the call; False if the text broke off first. `close` is left to the caller."""
        yield from s.skip(BLANKS)
        call.raw_from = s.here
        if not (yield from self._object(s, call)):
            s.drop_call(call, "incomplete")
            return False
        call.raw_to = s.here
        if call.raw_to == call.raw_from:
            call.flag("no_arguments")
            s.write(call, "{}")
        closing = yield from s.decide(self._closing)
        if closing:
            if closing["junk"].strip():
                call.flag("junk_in_call")
            if closing["own"] is None:
                call.flag("missing_closer")
            s.take("markup", closing.end())
            return True
        if closing is None:
            rest = s.buf[s.pos :].strip()
            if s.was_cut or rest[:1] == "<" or "no_arguments" in call.flags:
                s.take("markup", len(s.buf))
                s.drop_call(call, "incomplete")
                return False
            if not rest:
                s.take("markup", len(s.buf))
        call.flag("missing_closer")  # the arguments are whole, and the model ended its turn or went on with text
        return True

    def close(self, s: Source, call: Call) -> None:
        """The call is whole."""
        s.close_call(call, repaired="no_arguments" in call.flags)

    def _object(self, s: Source, call: Call) -> Generator[None, None, bool]:
        """The arguments up to their last brace, or to a marker if they are broken; False if the text ended first."""
        write = partial(s.write, call)
        if (yield from s.at("{")):
            # A draft in reasoning may break off inside a string: there the end of reasoning ends it too.
            if (yield from s.json(write, "<", marker=END if FROM_REASONING[0] in call.flags else "")):
                return True
            if s.pos == len(s.buf):
                if not self._swallowed(s, call):
                    return False
                s.reread(call.raw_from)
                call.pieces.clear()
        s.sink = write
        mark = yield from s.until("arguments", self._ends)
        s.sink = None
        return mark is not None and mark != END

    def _swallowed(self, s: Source, call: Call) -> bool:
        """Has a string that never ends swallowed this call's closer? In a text that was cut it may well be a string."""
        if s.was_cut or s.rereads >= _REREADS:
            return False
        return self._ended(s.raw(call.raw_from, s.here)) is not None


def _rest(s: Source) -> None:
    """The text ended between calls: blanks are markup, a marker begins a call that was cut, other text is content."""
    rest = s.buf[s.pos :].lstrip()
    if not rest:
        s.take("markup", len(s.buf))
    elif rest[0] == "<":
        start = s.here
        s.take("markup", len(s.buf))
        s.lose_call(start, "incomplete")
