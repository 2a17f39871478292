"""`Markers`: both ways to search find the same, whatever the literals and the text, and a search comes to its end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.parsing import markers as reader
from prr_plugins.common.parsing.markers import Markers
from prr_plugins.common.parsing.source import Source

# Few characters, blanks among them: markers begin one another, overlap, and share a character or share none.
_TEXT = st.text("<>a|\n ", max_size=40)
_LITERALS = st.lists(st.text("<a|\n>", min_size=1, max_size=5), max_size=4)
_SPACED = st.lists(st.text("<a|", min_size=1, max_size=4), max_size=3)


@given(literals=_LITERALS, spaced=_SPACED, text=_TEXT, pos=st.integers(0, 40), window=st.sampled_from([1, 3, 1024]))
def test_a_far_search_finds_what_a_near_one_finds(
    literals: list[str], spaced: list[str], text: str, pos: int, window: int
) -> None:
    if not literals and not spaced:
        literals = ["<a"]
    markers = Markers(*literals, spaced=spaced)
    with patch.object(reader, "_WINDOW", window):
        near, far = markers.find(text, min(pos, len(text))), markers.find_far(text, min(pos, len(text)))
    assert (near and near.span()) == (far and far.span())
    assert near is None or far is None or markers.is_partial(near) == markers.is_partial(far)


def test_a_far_search_holds_back_what_may_begin_a_marker() -> None:
    markers = Markers("\n\n</think>", "</think>", spaced=["<tool_call>"])
    for text, held in [("plain " * 90 + "\n", 2), ("plain " * 90 + "x\n\n</thi", 7), ("a < b " * 90 + "x", 0)]:
        found = markers.find_far(text, 0)
        assert len(found.group() if found else "") == held


@given(literals=_LITERALS, spaced=_SPACED, text=_TEXT, far=st.sampled_from([0, 1_000]))
def test_a_search_ends_with_the_text(literals: list[str], spaced: list[str], text: str, far: int) -> None:
    """Also where the text ends in a marker that begins another one."""
    markers = Markers(*(literals or ["<a", "<ab"]), spaced=spaced)
    source = Source("", None, True, True, "eager")
    source.far = far
    source.add(text)
    source.eof = True
    passed = 0
    while (mark := _run_out(source.until("content", markers))) is not None:
        assert text.startswith(mark, source.pos)
        source.take("content", source.pos + len(mark))
        passed += 1
    assert source.pos == len(text)
    assert passed <= len(text)


@given(literals=_LITERALS, text=_TEXT, data=st.data())
def test_a_far_search_looks_little_further_than_it_finds(literals: list[str], text: str, data: st.DataObject) -> None:
    """However often one of the characters that it looks for stands there."""
    markers = Markers(*(literals or ["<a"]))
    text += "".join(data.draw(st.lists(st.sampled_from(["<", "|", ">"]), max_size=1))) * 5_000
    searched: list[int] = []

    def counting(text: str, start: int, end: int, pivot: str, around: Any) -> int:
        found = find_pivot(text, start, end, pivot, around)
        searched.append((found if found >= 0 else end) - start)
        return found

    find_pivot = reader._find_pivot
    with patch.object(reader, "_find_pivot", counting):
        found = markers.find_far(text, 0)
    distance = found.start() if found else len(text)
    assert sum(searched) <= len(markers._pivots) * (2 * distance + markers._reach + reader._WINDOW)


def _run_out(waiting: Generator[None, None, str | None]) -> str | None:
    """What a generator returns that has nothing to wait for."""
    try:
        next(waiting)
    except StopIteration as stop:
        value: str | None = stop.value
        return value
    raise AssertionError("nothing more comes, and it waits")
