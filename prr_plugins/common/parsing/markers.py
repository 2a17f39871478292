"""How a grammar reads: literals found in a growing text, each character looked at once.

Promises: a `Markers` search never misses a marker that a chunk border cuts, and never holds back more text than the
longest marker has; a `Shape` decides a bounded look-ahead as soon as the text allows. Knows no format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Literal

import regex


class Markers:
    """A set of literals to look for.

    `find(text, pos)` gives the leftmost match: a whole marker, or at the end of the text the beginning of one that may
    still come (`is_partial`). Where one marker begins another the longer wins. The last `GAP` blanks before a literal
    of `spaced` belong to its match.
    """

    __slots__ = ("_longer", "_pivots", "_reach", "find", "find_final", "literals", "spaced")

    def __init__(self, *literals: str, spaced: Iterable[str] = ()) -> None:
        self.spaced = frozenset(spaced)
        self.literals = frozenset(literals) | self.spaced
        if not self.literals or not all(self.literals):
            raise ValueError("markers must be non-empty literals")
        # Beginnings stand before whole markers, so that at the end of the text `<a` waits for `<ab`. Every alternative
        # begins with a literal: that lets `re` skip ahead by character set.
        whole, begun = _alternatives(self.literals)
        if self.spaced:
            inner, inner_begun = _alternatives(self.spaced)
            inner_begun.append(r"\Z")
            gap = f"[{BLANKS}]{{0,{GAP - 1}}}+"
            whole += [f"{blank}{gap}(?:{'|'.join(inner)})" for blank in BLANKS]
            begun += [rf"{blank}{gap}(?:{'|'.join(inner_begun)})" for blank in BLANKS]
        self._longer = frozenset(a for a in self.literals if any(b != a and b.startswith(a) for b in self.literals))
        self.find = re.compile("|".join(begun + whole)).search
        self.find_final = re.compile("|".join(whole)).search
        # Each pivot with what is to stand around it, and how many characters of a match may stand before one.
        pivots = _pivots(self.literals)
        self._pivots = [(pivot, _around(pivot, literals)) for pivot, literals in pivots.items()]
        before = max((text.index(pivot) for pivot, literals in pivots.items() for text in literals), default=0)
        self._reach = before + (GAP if self.spaced else 0)

    def find_far(self, text: str, pos: int) -> re.Match[str] | None:
        """`find`, quicker where much plain text comes first: a character is searched many times as fast as a set."""
        if not self._pivots:
            return self.find(text, pos)
        # Window by window: of several pivots none is searched far behind the place where another one is found.
        window = _WINDOW if len(self._pivots) > 1 else len(text)
        first, start = -1, pos
        while first < 0 and start < len(text):
            end = min(start + window, len(text))
            for pivot, around in self._pivots:
                found = _find_pivot(text, start, end, pivot, around)
                if found >= 0:
                    first = end = found
            start, window = end, 2 * window
        return self.find(text, max(pos, (first if first >= 0 else len(text)) - self._reach))

    def is_partial(self, m: re.Match[str]) -> bool:
        """True if `m` may still grow into a marker: it is cut by the end of the text."""
        text = m.group()
        if text in self.literals:
            return text in self._longer and m.end() == len(m.string)
        return text.lstrip(BLANKS) not in self.spaced

    def __or__(self, other: Markers) -> Markers:
        return Markers(*self.literals, *other.literals, spaced=self.spaced | other.spaced)


BLANKS = " \t\r\n"
GAP = 16  # blanks before a spaced marker that count as its frame


_WINDOW = 64  # characters; they double from one window to the next
_MOST_PIVOTS = 3  # more are no quicker than a set


def _pivots(literals: Iterable[str]) -> dict[str, list[str]]:
    """Few characters of which each literal has one, with the literals each stands for; none where that takes many."""
    left = sorted(literals)
    made: dict[str, list[str]] = {}
    while left and len(made) < _MOST_PIVOTS:
        # Rare in text are characters that are no letters; the nearer to the beginning, the less is looked at twice.
        marks = {c for text in left for c in text if not (c.isalnum() or c.isspace())}
        held = {c: [text for text in left if c in text] for c in marks}
        if not held:
            return {}
        pivot = min(held, key=lambda c: (-len(held[c]), max(text.index(c) for text in held[c]), c))
        made[pivot] = held[pivot]
        left = [text for text in left if pivot not in text]
    return {} if left else made


def _around(pivot: str, literals: Iterable[str]) -> Callable[[str, int], re.Match[str] | None]:
    """Matches at the `pivot` of one of `literals`, or of what may become one."""
    rests: dict[str, set[str]] = {}
    for text in literals:
        at = text.index(pivot)
        rests.setdefault(text[:at], set()).add(text[at:])
    patterns = []
    for before, behind in rests.items():
        whole, begun = _alternatives(behind)
        patterns.append(f"(?<={re.escape(before)})(?:{'|'.join(begun + whole)})" if before else "|".join(begun + whole))
    return re.compile("|".join(patterns)).match


def _find_pivot(text: str, start: int, end: int, pivot: str, around: Callable[[str, int], re.Match[str] | None]) -> int:
    """The first `pivot` in `text[start:end]` with what is to stand around it, which may go beyond `end`; or -1."""
    at = text.find(pivot, start, end)
    while at >= 0 and not around(text, at):
        at = text.find(pivot, at + 1, end)
    return at


def _alternatives(literals: Iterable[str]) -> tuple[list[str], list[str]]:
    """Patterns of the whole literals, the longest first, and of their beginnings at the end of the text."""
    ordered = sorted(literals, key=lambda text: (-len(text), text))
    return [re.escape(text) for text in ordered], _beginnings(ordered)


def _beginnings(literals: Iterable[str]) -> list[str]:
    """For each first character a pattern of the proper beginnings of the literals, at the end of the text."""
    tree: dict[str, Any] = {}
    for literal in literals:
        node = tree
        for c in literal[:-1]:
            node = node.setdefault(c, {})

    def rest(node: dict[str, Any]) -> str:
        if not node:
            return ""
        return "(?:" + "|".join(re.escape(c) + rest(n) for c, n in node.items()) + ")?+"

    return [re.escape(c) + rest(node) + r"\Z" for c, node in tree.items()]


class Shape:
    """A bounded pattern to be decided at one position.

    `decide(text, pos)` gives the match, `False` if no further text can make it match, or None: more text is needed.
    The pattern must be bounded and free of backtracking (possessive quantifiers); a whole match is preferred to a
    longer one that may still come, so it must not end in anything optional. `\\s` and `\\w` are ASCII's.
    """

    __slots__ = ("_match", "_whole")

    def __init__(self, pattern: str) -> None:
        # `re` cannot say "not yet" but is several times as fast; ASCII's classes are the same to both.
        self._whole = re.compile(pattern, re.ASCII).match
        self._match = regex.compile(pattern, regex.VERSION1 | regex.ASCII).match

    def decide(self, text: str, pos: int) -> re.Match[str] | Literal[False] | None:
        return self._whole(text, pos) or (None if self._match(text, pos, partial=True) else False)


@cache
def json_stop(stop: str) -> Callable[[str, int], re.Match[str] | None]:
    """Searches JSON outside strings for what opens, closes or quotes, and for the characters of `stop`."""
    return re.compile(rf"""["'{{}}\[\]{re.escape(stop)}]""").search


@cache
def string_special(quote: str, mark: str) -> Callable[[str], re.Match[str] | None]:
    """Matches a text that does not simply go on with a string: one with a quote, a `mark`, or half an escape."""
    plain = rf"[^\\{quote}{re.escape(mark)}]*+"
    return re.compile(rf"(?!{plain}(?:\\.{plain})*+\Z)", re.DOTALL).match


@cache
def in_string(quote: str, mark: str) -> Callable[[str, int], re.Match[str] | None]:
    """Matches the rest of a string, up to its quote, a `mark`, or a backslash at the text's end."""
    plain = rf"[^\\{quote}{re.escape(mark)}]*+"
    return re.compile(rf"{plain}(?:\\.{plain})*+", re.DOTALL).match
