"""The result of parsing one completion: data only.

Promises: `raw_text` is the engine's text of the completion with special tokens shown, unchanged; the
segments tile it (L1) and every other view is made of slices of it (L2). Knows no format and no engine.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import partial_json_parser

SegmentKind = Literal["reasoning", "content", "markup", "name", "arguments"]
CallStatus = Literal["ok", "repaired", "unknown_tool"]
IncompleteStatus = Literal["incomplete", "malformed"]
Policy = Literal["eager", "complete"]
"""Whether a call's arguments flow as they come, or the call once it is closed."""


class Tokenizer(Protocol):
    """What token alignment needs of a tokenizer; every Hugging Face tokenizer has it."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]: ...
    def decode(self, token_ids: list[int]) -> str: ...
    def get_added_vocab(self) -> dict[str, int]: ...


class Segment(NamedTuple):
    """One span `raw_text[start:end]` (characters) and what it is.

    `markup` is whatever belongs to the format itself: markers with their frames, parameter names, closers.
    """

    kind: SegmentKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The tokens `[start, end)` of one segment: those whose first character stands in it.

    `segment` indexes `ParsedCompletion.segments`; `None` is a zero-width span of tokens that have no text of
    their own in `raw_text` (the stop token, the tail of a stop string, a cut multi-byte character).
    """

    segment: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenAlignment:
    """How the completion's tokens tile its segments.

    `spans` tile `[0, len(ids))` in order. `straddling` lists the indexes of tokens whose text ends in a later
    segment than it begins in (`>/` in `<parameter=path>/srv` is one token of Qwen3.6).
    """

    spans: tuple[TokenSpan, ...]
    straddling: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A finished call.

    `arguments` is always a JSON object; it is `raw_arguments` itself whenever that is strict JSON already.
    `id` is the id the model wrote (Kimi's `functions.name:0`), or None where the format has none.
    `flags` says what was unusual: `no_section`, `from_reasoning`, `junk_in_call`, `missing_closer`, `name_inferred`...
    """

    id: str | None
    name: str
    arguments: str
    raw_arguments: str
    status: CallStatus = "ok"
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IncompleteCall:
    """A call that was cut (`incomplete`) or cannot be read (`malformed`), with all of its text."""

    name: str | None
    raw_arguments: str
    raw_text: str
    status: IncompleteStatus = "incomplete"

    def so_far(self) -> Any:
        """The arguments as far as they came, closed where they were cut: to be shown, never to be run.

        None where nothing came, or where the format's arguments are no JSON.
        """
        try:
            return partial_json_parser.loads(self.raw_arguments)
        except (ValueError, IndexError, RecursionError):
            return None


@dataclass(frozen=True)
class ParsedCompletion:
    """The tolerant view (`reasoning`, `content`, `parsed_tool_calls`) beside the raw view of one completion."""

    format: str
    raw_text: str
    raw_completion_ids: tuple[int, ...] | None
    segments: tuple[Segment, ...]
    reasoning: str | None
    content: str | None
    parsed_tool_calls: tuple[ToolCall, ...]
    incomplete_calls: tuple[IncompleteCall, ...]
    finish_reason: str
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)

    @cached_property
    def tokens(self) -> TokenAlignment | None:
        """Token ranges of the segments; None without ids or tokenizer.

        Computed from the ids alone, so it does not depend on how the completion was streamed.
        """
        if self.raw_completion_ids is None or self.tokenizer is None:
            return None
        offsets = token_offsets(self.raw_completion_ids, self.raw_text, self.tokenizer)
        return align(offsets, self.segments)

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape that `prr parse --json` prints."""
        return {
            "format": self.format,
            "reasoning": self.reasoning,
            "content": self.content,
            "parsed_tool_calls": [
                {
                    "id": c.id,
                    "name": c.name,
                    "arguments": c.arguments,
                    "raw_arguments": c.raw_arguments,
                    "status": c.status,
                    **({"flags": list(c.flags)} if c.flags else {}),
                }
                for c in self.parsed_tool_calls
            ],
            "incomplete_calls": [
                {"name": c.name, "raw_arguments": c.raw_arguments, "raw_text": c.raw_text, "status": c.status}
                for c in self.incomplete_calls
            ],
            "finish_reason": self.finish_reason,
            "segments": [{"kind": s.kind, "start": s.start, "end": s.end} for s in self.segments],
            "raw_text": self.raw_text,
        }


class Delta(NamedTuple):
    """One step of the tolerant view.

    `reasoning` and `content` carry text. A call comes as `call` (`text` is its name, whole), `arguments` (JSON text to
    be appended) and `call_end` (`text` is its `raw_arguments`); under the `complete` policy a call comes only when it
    is closed. `index` counts calls.
    """

    kind: Literal["reasoning", "content", "call", "arguments", "call_end"]
    text: str
    index: int = -1  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    call_id: str | None = None


def _byte_alphabet() -> dict[str, int]:
    """The byte-level BPE alphabet: each of 256 characters stands for one byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in plain}
    rest = (b for b in range(256) if b not in set(plain))
    table.update({chr(256 + n): b for n, b in enumerate(rest)})
    return table


_BYTES = _byte_alphabet()


def token_bytes(ids: Iterable[int], tokenizer: Tokenizer) -> list[bytes]:
    """The bytes each token stands for. Added tokens are their literal text."""
    ids = list(ids)
    added = {i: t for t, i in tokenizer.get_added_vocab().items()}
    out: list[bytes] = []
    for i, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if i in added or token is None:
            out.append((token or "").encode())
            continue
        try:
            out.append(bytes([_BYTES[c] for c in token]))
        except KeyError:  # not a byte-level vocabulary (SentencePiece): the token's own decoding
            out.append(tokenizer.decode([i]).encode())
    return out


def token_offsets(ids: Sequence[int], raw_text: str, tokenizer: Tokenizer) -> list[tuple[int, int] | None]:
    """Characters `[start, end)` of `raw_text` that each token wrote first; None where it has no text there.

    A character belongs to the token that wrote its first byte; a token that only continues a multi-byte character
    has no first character of its own and is None. Invalid bytes count as the decoder shows them (U+FFFD).
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets: list[tuple[int, int] | None] = []
    at = 0  # characters of raw_text accounted for, the one still being built excluded
    for piece in token_bytes(ids, tokenizer):
        pending = bool(decoder.getstate()[0])
        text = decoder.decode(piece)
        opens = 1 if decoder.getstate()[0] else 0  # begins a character that a later token completes
        start = at + (1 if pending and (text or opens) else 0)
        end = at + len(text) + opens
        if pending and not text:  # still inside the same character
            offsets.append(None)
            continue
        in_text = raw_text.startswith(text, at) and start < end <= len(raw_text)
        offsets.append((start, end) if in_text and piece else None)
        at += len(text)
    return offsets


def align(offsets: Sequence[tuple[int, int] | None], segments: Sequence[Segment]) -> TokenAlignment:
    """Give each token to the segment of its first character; tokens without text form zero-width spans."""
    starts = [s.start for s in segments]
    spans: list[TokenSpan] = []
    straddling: list[int] = []
    for i, span in enumerate(offsets):
        owner: int | None = None
        if span is not None:
            owner = bisect_right(starts, span[0]) - 1
            if span[1] > segments[owner].end:
                straddling.append(i)
        if spans and spans[-1].segment == owner:
            spans[-1] = TokenSpan(owner, spans[-1].start, i + 1)
        else:
            spans.append(TokenSpan(owner, i, i + 1))
    return TokenAlignment(tuple(spans), tuple(straddling))
