"""What a prompt says about the turn that begins at its end.

Promise: only the ids behind (and with) the last turn opener are looked at. A spliced prompt holds the reasoning of
earlier turns, so the last `</think>` of the whole prompt says nothing about the turn to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from prr_plugins.common.formats import Format

# A prompt without any turn opener (not made by a chat template): how many of its last tokens are looked at.
_TAIL_WITHOUT_OPENER = 64


def token_id(tokenizer: Any, text: str | None) -> int | None:
    """The id of `text` if the vocabulary has it as one token, else None."""
    if text is None:
        return None
    i = tokenizer.convert_tokens_to_ids(text)
    # Unknown text gives None, or the id of the unknown token.
    return i if isinstance(i, int) and tokenizer.convert_ids_to_tokens([i]) == [text] else None


class TurnView:
    """One format's turn and reasoning markers as ids of one tokenizer. All positions and counts are in tokens."""

    def __init__(self, tokenizer: Any, fmt: Format) -> None:
        self._tokenizer = tokenizer
        self._openers = frozenset(i for text in fmt.turn_openers if (i := token_id(tokenizer, text)) is not None)
        self.start = token_id(tokenizer, fmt.reasoning_start)
        self.end = token_id(tokenizer, fmt.reasoning_end)
        self._reasons = fmt.reasoning_end is not None

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
        if not self._reasons:
            return True
        for i in reversed(self.tail(ids)):
            if i == self.end:
                return True
            if i == self.start:
                return False
        return False  # the model has yet to open it

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

    def after_reasoning(self, ids: Sequence[int]) -> list[int]:
        """The ids behind the last reasoning end, none where there is no such end."""
        for at in range(len(ids) - 1, -1, -1):
            if ids[at] == self.end:
                return list(ids[at + 1 :])
        return []

    def ends_in(self, ids: Iterable[int]) -> bool:
        """Whether the reasoning end is among `ids`."""
        return self.end is not None and self.end in ids


def _index(ids: Sequence[int], i: int, start: int, stop: int | None = None) -> int | None:
    try:
        return ids.index(i, start, len(ids) if stop is None else stop)
    except ValueError:
        return None


@lru_cache(maxsize=16)
def turn_view(tokenizer: Any, fmt: Format) -> TurnView:
    """The (cached) view of one tokenizer; looking markers up costs more than a short request."""
    return TurnView(tokenizer, fmt)
