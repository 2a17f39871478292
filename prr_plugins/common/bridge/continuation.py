"""What the bridge answers: the next prompt and where each of its tokens comes from, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from prr_plugins.common.bridge.token_boundary import BoundaryEncoder
from prr_plugins.common.prefix import common_prefix


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer. `reason` is one of docs/refusals.md; `detail` is for a log, without content."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `[start, end)` of an extended prompt and where they come from.

    `message` is the index in the new messages of a "message" span, else None. "close" is what ends the
    sampled turn and was not sampled; "generation" is the generation prompt.
    """

    start: int
    end: int
    source: Literal["prompt", "sampled", "close", "message", "generation"]
    message: int | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """The next prompt.

    ids: all of it; the first `kept` are the previous prompt and completion (less a respelled stop).
    shows_reasoning: given the new messages, the template itself would still show the reasoning of the turn.
    spans: computes where each token comes from (a loss mask needs it, a server does not).
    """

    ids: list[int]
    kept: int
    respelled_stop: bool
    shows_reasoning: bool
    spans: Callable[[], tuple[Span, ...]]


@dataclass(frozen=True, slots=True)
class Continuation:
    """What stands behind a turn, once its last `dropped` (0 or 1) ids, a respelled stop, are taken off.

    ids: to be appended; text: their text.
    pieces: `text` as it was encoded, piece by piece, and how many of `ids` each piece has.
    shows_reasoning: given the new messages, the template itself would still show the reasoning of the turn.
    bounds: computes at which character of `text` each new message, and then the generation prompt, begins.
    """

    ids: list[int]
    dropped: int
    shows_reasoning: bool
    text: str
    pieces: Sequence[tuple[str, int]]
    bounds: Callable[[], list[int]]


def spans_of(
    encoder: BoundaryEncoder, front: Sequence[int], added: Continuation, prompt: int, kept: int
) -> tuple[Span, ...]:
    cuts = [kept + cut for cut in _cuts(encoder, front, added)]
    spans = [Span(0, prompt, "prompt"), Span(prompt, kept, "sampled"), Span(kept, cuts[0], "close")]
    spans += [Span(start, end, "message", index) for index, (start, end) in enumerate(pairwise(cuts))]
    spans.append(Span(cuts[-1], kept + len(added.ids), "generation"))
    return tuple(span for span in spans if span.start < span.end)


def _cuts(encoder: BoundaryEncoder, front: Sequence[int], added: Continuation) -> list[int]:
    """How many of the ids stand in front of each bound; never fewer than in front of the one before."""

    def cut(bound: int) -> int:
        ids = at = 0
        for text, size in added.pieces:
            if bound < at + len(text):
                # By the piece alone, as it was encoded: in one text with the others it would have other ids.
                return ids + _tokens_until(encoder, () if at else front, added.ids[ids : ids + size], text, bound - at)
            ids, at = ids + size, at + len(text)
        return ids

    return list(accumulate(map(cut, added.bounds()), max))


def _tokens_until(encoder: BoundaryEncoder, front: Sequence[int], added: list[int], text: str, bound: int) -> int:
    """How many of `added`, the ids of `text`, stand for its first `bound` characters."""
    rest = text[bound:]
    if len(rest) < bound and encoder.starts(rest):  # the shorter side, where no token crosses the bound
        ids = encoder.encode(rest)
        if added[-len(ids) :] == ids:
            return len(added) - len(ids)
    part = encoder.encode_after(front, text[:bound])
    return common_prefix(part if part is not None else encoder.encode(text[:bound]), added)
