"""What a prompt says about the turn that begins at its end.

Promise: only the ids behind (and with) the last turn opener are looked at. A spliced prompt holds the reasoning of
earlier turns, so the last `</think>` of the whole prompt says nothing about the turn to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.stream_parser import StreamParser

# A prompt without any turn opener (not made by a chat template): how many of its last tokens are looked at.
_TAIL_WITHOUT_OPENER = 64


def token_id(tokenizer: Any, text: str | None) -> int | None:
    """The id of `text` if the vocabulary has it as one token, else None."""
    if text is None:
        return None
    i = tokenizer.convert_tokens_to_ids(text)
    # Unknown text gives None, or the id of the unknown token.
    return i if isinstance(i, int) and tokenizer.convert_ids_to_tokens([i]) == [text] else None


class ReasoningMarkers:
    """One format's turn and reasoning markers as ids of one tokenizer. All positions and counts are in tokens."""

    def __init__(self, tokenizer: Any, fmt: Format) -> None:
        self._tokenizer = tokenizer
        self._openers = frozenset(i for text in fmt.turn_openers if (i := token_id(tokenizer, text)) is not None)
        self.start = token_id(tokenizer, fmt.reasoning_start)
        self.end = token_id(tokenizer, fmt.reasoning_end)
        self._format = fmt
        self._start = _Marker(tokenizer, fmt.reasoning_start)
        self._end = _Marker(tokenizer, fmt.reasoning_end)

    def tail(self, prompt_ids: Sequence[int]) -> list[int]:
        """The ids from the last turn opener on."""
        for at in range(len(prompt_ids) - 1, -1, -1):
            if prompt_ids[at] in self._openers:
                return list(prompt_ids[at:])
        return list(prompt_ids[-_TAIL_WITHOUT_OPENER:])

    def tail_text(self, prompt_ids: Sequence[int]) -> str:
        """The text of `tail`, special tokens shown."""
        return str(self._tokenizer.decode(self.tail(prompt_ids), skip_special_tokens=False))

    def reasoning_ended(self, ids: Sequence[int]) -> bool:
        """Whether the last turn in `ids` (a prompt, or a prompt and what was sampled) is past its reasoning."""
        if self._format.reasoning_end is None:
            return True
        tail = self.tail(ids)
        # Kimi K3's turns open with a tag for every part, so its last one says nothing of the parts before.
        seen = ids if self._end.reach else tail
        end, start = self._end.last(seen), self._start.last(seen)
        if end is not None or start is not None:
            return start is None or (end is not None and end > start)
        return not self._may_open(tail)

    def opens(self, ids: Sequence[int]) -> bool:
        """Whether the last turn in `ids` is in reasoning."""
        tail = self.tail(ids)
        start = self._start.last(tail)
        return start is not None and start > (self._end.last(tail) or 0)

    def _may_open(self, tail: Sequence[int]) -> bool:
        """Whether the model can still open reasoning behind a tail without its markers (Kimi K3: not in `response`)."""
        text = str(self._tokenizer.decode(list(tail), skip_special_tokens=False))
        stream = StreamParser(self._format, prompt_tail=text, tool_calls=False)
        stream.feed(f"{self._format.reasoning_start}x")
        return stream.reasoning_open

    def reasoning_span(self, completion_ids: Sequence[int], opened: bool) -> tuple[int, int] | None:
        """`[start, end)` of the reasoning in a completion, without its markers; None where there is none.

        opened: the prompt opened it already.
        """
        begin = 0
        if self.start is not None and (at := _index(completion_ids, self.start, 0, 1 if opened else None)) is not None:
            begin = at + 1
        elif not opened:
            return None
        end = _index(completion_ids, self.end, begin) if self.end is not None else None
        return begin, len(completion_ids) if end is None else end

    def parsed_reasoning_span(
        self, completion_ids: Sequence[int], opened: bool, parsed: ParsedCompletion | None, still_open: bool | None
    ) -> tuple[int, int] | None:
        """`reasoning_span` of a finished completion, by its segments where the markers do not tell.

        They do not where they are no single tokens (Kimi K3), where reasoning comes in several parts (Harmony), and
        where a call ended it. still_open: whether the completion ended inside reasoning.
        """
        if self.start is None and self._format.reasoning_start is not None:
            return _segments_of_reasoning(parsed)
        span = self.reasoning_span(completion_ids, opened)
        if span is not None and span[1] == len(completion_ids) and still_open is False:
            return _segments_of_reasoning(parsed)
        return span

    def after_reasoning(self, ids: Sequence[int]) -> list[int]:
        """The ids behind the last reasoning end, none where there is no such end."""
        end = self._end.last(ids)
        return [] if end is None else list(ids[end:])

    def ends_in(self, ids: Sequence[int], new: int) -> bool:
        """Whether the last `new` of `ids` hold, or complete, a reasoning end."""
        window = ids[max(len(ids) - new - self._end.reach, 0) :]
        return any(end > len(window) - new for end in self._end.all(window))


class _Marker:
    """The text of a marker in ids, however its tokens are cut. Positions are those behind it."""

    def __init__(self, tokenizer: Any, text: str | None) -> None:
        self._tokenizer = tokenizer
        self._text = text
        self._id = token_id(tokenizer, text)
        # A marker of several tokens ends in a token of its own (Kimi K3: `<|close|>think<|sep|>`).
        made = tokenizer.encode(text, add_special_tokens=False) if text and self._id is None else []
        self._last = made[-1] if made else self._id
        self.reach = len(text) if made and text else 0  # tokens that it may begin before its last one, at most

    def last(self, ids: Sequence[int]) -> int | None:
        """Behind the last one in `ids`."""
        return next((at + 1 for at in range(len(ids) - 1, -1, -1) if self._ends_at(ids, at)), None)

    def all(self, ids: Sequence[int]) -> Iterator[int]:
        return (at + 1 for at in range(len(ids)) if self._ends_at(ids, at))

    def _ends_at(self, ids: Sequence[int], at: int) -> bool:
        if self._last is None or ids[at] != self._last:
            return False
        if self._id is not None:
            return True
        text = self._tokenizer.decode(list(ids[max(at + 1 - self.reach, 0) : at + 1]), skip_special_tokens=False)
        return bool(text.endswith(self._text))


def _index(ids: Sequence[int], i: int, start: int, stop: int | None = None) -> int | None:
    try:
        return ids.index(i, start, len(ids) if stop is None else stop)
    except ValueError:
        return None


def _segments_of_reasoning(parsed: ParsedCompletion | None) -> tuple[int, int] | None:
    """From the first token of reasoning to the last."""
    if parsed is None or parsed.tokens is None:
        return None
    kinds = [None if s.segment is None else parsed.segments[s.segment].kind for s in parsed.tokens.spans]
    spans = [span for span, kind in zip(parsed.tokens.spans, kinds, strict=True) if kind == "reasoning"]
    return (spans[0].start, spans[-1].end) if spans else None


@lru_cache(maxsize=16)
def reasoning_markers(tokenizer: Any, fmt: Format) -> ReasoningMarkers:
    """The (cached) view of one tokenizer; looking markers up costs more than a short request."""
    return ReasoningMarkers(tokenizer, fmt)
