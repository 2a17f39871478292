"""The one driver: a completion in, deltas out, a `ParsedCompletion` at the end.

Promise: streaming is the only implementation; whole text is one `feed` and a `finish`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from prr_plugins.common.parsing.completion import Delta, ParsedCompletion, Policy, Segment, SegmentKind, Tokenizer
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats import get_format
from prr_plugins.common.parsing.source import Source

_ENDED_BY_MODEL = frozenset({"stop", "tool_calls", "function_call"})
_MANY = 256  # ids; copying more costs as much as reading their text


class StreamParser:
    """Parses one completion as it arrives.

    Args:
        format: a `prr_*` name or a `Format`.
        tools: the request's tools (OpenAI shape); they type the values of formats that write no types.
        prompt_tail: text of the prompt from its last turn opener on: it says whether reasoning is already open.
        reasoning, tool_calls: switch one half off; its markup then stays verbatim in the content.
        stream_arguments: `eager` sends argument text as it comes, `complete` a call only once it is closed.
        tokenizer: needed only for `ParsedCompletion.tokens`.

    Raises:
        UnknownFormat: `format` names no format.
        ValueError: `stream_arguments` is neither.
    """

    def __init__(
        self,
        format: str | Format,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt_tail: str = "",
        reasoning: bool = True,
        tool_calls: bool = True,
        stream_arguments: Policy = "eager",
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if stream_arguments not in ("eager", "complete"):
            raise ValueError(f"stream_arguments is {stream_arguments!r}; accepted are 'eager' and 'complete'")
        self.format = get_format(format) if isinstance(format, str) else format
        self._tokenizer = tokenizer
        self._source = Source(prompt_tail, tools, reasoning, tool_calls, stream_arguments)
        self._ids: list[int] = []
        self._long: list[Sequence[int]] = []  # the ids before those, in long pieces that nobody copied
        self._finished = False
        self._finish_reason = ""
        self._result: ParsedCompletion | None = None
        self._grammar = self.format.grammar(self._source)
        next(self._grammar, None)  # to its first wait: the prompt's tail is read, `reasoning_open` is true

    @property
    def reasoning_open(self) -> bool:
        """True while the text that comes next is reasoning."""
        return self._source.reasoning_open

    @property
    def shown(self) -> int:
        """Characters of raw_text that have been read for good; what is behind is still held back."""
        held = self._source._held
        return self._source.here if held is None else held[-1]

    def text_from(self, start: int) -> str:
        """All text fed so far from character `start` of raw_text on."""
        source = self._source
        return source.raw(start, source._base + len(source.buf))

    @property
    def result(self) -> ParsedCompletion:
        """The parsed completion; there after `finish`."""
        if not self._finished:
            raise RuntimeError("the completion is not finished: call finish() first")
        if self._result is None:
            self._result = self._made()
        return self._result

    def feed(self, text: str, ids: Sequence[int] = ()) -> list[Delta]:
        """The next text (special tokens shown, stop token left out) and the ids that came with it.

        Many `ids` at once are kept as they are until `result`: they must not change until then.
        """
        if len(ids) > _MANY:
            self._long += self._ids, ids
            self._ids = []
        else:
            self._ids.extend(ids)
        if not text:
            return []
        source = self._source
        deltas = source.flow(text)
        if deltas is None:
            source.add(text)
            next(self._grammar, None)
            deltas = source.deltas()
        return deltas

    def finish(self, finish_reason: str = "stop") -> list[Delta]:
        """The completion is over. Flushes what was held back; nothing may be fed behind it.

        finish_reason: `stop`, `tool_calls` and `function_call` say that the model ended it. Any other (`length`,
        `abort`, vLLM's `repetition`, ...) says that it was cut: a call without its end is then no whole call.
        """
        source = self._source
        if self._finished:
            return []
        self._finish_reason = finish_reason
        source.was_cut = finish_reason not in _ENDED_BY_MODEL
        source.eof = True
        for _ in self._grammar:
            pass
        source.take("content", len(source.buf))
        self._finished = True
        return source.deltas()

    def _made(self) -> ParsedCompletion:
        source = self._source
        raw_text = source.whole()
        ids = tuple(chain(*self._long, self._ids))
        segments = source.segments(len(raw_text))
        return ParsedCompletion(
            format=self.format.name,
            raw_text=raw_text,
            raw_completion_ids=ids or None,
            segments=segments,
            reasoning=_joined(raw_text, segments, "reasoning"),
            content=_joined(raw_text, segments, "content"),
            parsed_tool_calls=tuple(source.finished),
            incomplete_calls=tuple(source.unfinished),
            finish_reason=self._finish_reason,
            tokenizer=self._tokenizer,
        )


def _joined(text: str, segments: Sequence[Segment], kind: SegmentKind) -> str | None:
    return "".join(text[s.start : s.end] for s in segments if s.kind == kind) or None


def parse(
    format: str | Format,
    text: str,
    *,
    token_ids: Sequence[int] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    prompt_tail: str = "",
    finish_reason: str = "stop",
    tokenizer: Tokenizer | None = None,
    reasoning: bool = True,
    tool_calls: bool = True,
) -> ParsedCompletion:
    """Parse a whole completion: one `feed` and a `finish`. Arguments as for `StreamParser`."""
    parser = StreamParser(
        format, tools=tools, prompt_tail=prompt_tail, tokenizer=tokenizer, reasoning=reasoning, tool_calls=tool_calls,
        stream_arguments="complete",
    )  # fmt: skip
    parser.feed(text, token_ids or ())
    parser.finish(finish_reason)
    return parser.result
