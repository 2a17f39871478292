"""What a model family writes: its markers and the grammar that reads them. Data only; `formats` lists the families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prr_plugins.common.parsing.source import Source


@dataclass(frozen=True)
class Format:
    """What a model family writes.

    Attributes:
        name: the `prr_*` name that both engine flags take.
        grammar: reads a completion; see `source.Source`.
        markers: texts that the tokenizer must have as one token each (a model without them does not write this format).
        turn_openers: texts of the tokens that open a turn: the prompt's tail begins at the last one.
        reasoning_start, reasoning_end: the markers around reasoning, None where the family has none.
    """

    name: str
    grammar: Callable[[Source], Iterator[None]]
    markers: tuple[str, ...]
    turn_openers: tuple[str, ...]
    reasoning_start: str | None = None
    reasoning_end: str | None = None
