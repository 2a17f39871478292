"""The laws of parsing, executable: L1 tiling, L2 slices, L3 any split. Hold any completion against them.

`assert_all` is what a property test or a fuzzer needs: it parses one text whole and in pieces under both streaming
policies. That nothing raises (L4) shows by its coming back; growth is measured by `growth`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from prr_plugins.common.parsing.arguments import is_json_object
from prr_plugins.common.parsing.completion import Delta, ParsedCompletion, Policy, Tokenizer, token_bytes
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.markers import Markers
from prr_plugins.common.parsing.stream_parser import StreamParser

# Their own syntax only happens to be JSON now and then; blanks come out as everywhere else in it.
_NOT_JSON = frozenset({"prr_gemma4"})


def literals(format: str) -> list[str]:
    """Every literal that a format looks for: what marker soup is made of."""
    described = get_format(format)
    found = {*described.markers, *described.turn_openers, described.reasoning_start, described.reasoning_end}
    module = import_module(f"prr_plugins.common.parsing.formats.{FORMATS[format]}")
    for value in vars(module).values():
        for markers in value.values() if isinstance(value, dict) else (value,):
            if isinstance(markers, Markers):
                found |= markers.literals
    return sorted(literal for literal in found if literal)


def run(
    format: str,
    pieces: Iterable[str],
    policy: Policy = "complete",
    finish_reason: str = "stop",
    far: int | None = None,
    **options: Any,
) -> tuple[ParsedCompletion, list[Delta]]:
    """Parse `pieces`, fed in turn; the result and all deltas. `far`: from how many characters a text counts as long."""
    parser = StreamParser(format, stream_arguments=policy, **options)
    if far is not None:
        parser._source.far = far
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    deltas += parser.finish(finish_reason)
    return parser.result, deltas


def assert_all(
    format: str,
    text: str,
    splits: Iterable[Sequence[str]],
    finish_reason: str = "stop",
    policies: Sequence[Policy] = ("complete", "eager"),
    **options: Any,
) -> ParsedCompletion:
    """L1 and L2 on the whole text, L3 on every one of `splits` under each of `policies`; the result.

    The whole text is searched as a long one is, so that L3 also says that this changes nothing.
    """
    whole, deltas = run(format, [text], "complete", finish_reason, far=0, **options)
    assert_tiles(whole, text)
    assert_slices(whole)
    assert_deltas(whole, deltas, "complete")
    for pieces in splits:
        for policy in policies:
            result, deltas = run(format, pieces, policy, finish_reason, **options)
            assert result == whole, f"{policy} differs from the whole text"
            assert_deltas(result, deltas, policy)
    return whole


def assert_tiles(result: ParsedCompletion, text: str) -> None:
    """L1: `raw_text` is what was fed, and the segments tile it; neighbours differ in kind."""
    assert result.raw_text == text
    at, kind = 0, ""
    for segment in result.segments:
        assert segment.start == at < segment.end
        assert segment.kind != kind
        at, kind = segment.end, segment.kind
    assert at == len(text)


def assert_slices(result: ParsedCompletion) -> None:
    """L2: every view is made of slices of `raw_text`, and `arguments` is the slice wherever that is strict JSON."""
    text = result.raw_text
    for kind in ("reasoning", "content"):
        joined = "".join(text[s.start : s.end] for s in result.segments if s.kind == kind)
        assert (getattr(result, kind) or "") == joined
    for call in result.parsed_tool_calls:
        assert call.raw_arguments in text
        (call.name + call.arguments).encode()  # a response can be written: no lone surrogates
        assert is_json_object(call.arguments), call.arguments
        if is_json_object(call.raw_arguments) and result.format in _NOT_JSON:
            assert json.loads(call.arguments) == json.loads(call.raw_arguments)
        elif is_json_object(call.raw_arguments):
            assert call.arguments == call.raw_arguments
    for cut in result.incomplete_calls:
        assert cut.raw_text in text
        assert cut.raw_arguments in text


def assert_deltas(result: ParsedCompletion, deltas: Sequence[Delta], policy: Policy) -> None:
    """The deltas of a stream add up to its result; `eager` may also have begun calls that never closed."""
    for kind in ("reasoning", "content"):
        assert "".join(d.text for d in deltas if d.kind == kind) == (getattr(result, kind) or "")
    opened = {d.index: d for d in deltas if d.kind == "call"}
    ended = {d.index: d.text for d in deltas if d.kind == "call_end"}
    assert list(opened) == list(range(sum(d.kind == "call" for d in deltas))), "calls are counted from 0, each once"
    assert sorted(ended) == list(ended), "calls end in the order in which they came"
    assert set(ended) <= set(opened)
    if policy == "complete":
        assert set(ended) == set(opened), "under `complete` only closed calls are shown"
    else:
        assert len(opened) - len(ended) <= len(result.incomplete_calls)
    sent: dict[int, list[str]] = {index: [] for index in opened}
    for delta in deltas:
        if delta.kind == "arguments":
            sent[delta.index].append(delta.text)
    for (index, raw), call in zip(ended.items(), result.parsed_tool_calls, strict=True):
        began = opened[index]
        assert (began.text, began.call_id, raw) == (call.name, call.id, call.raw_arguments), "the name comes once"
        arguments = "".join(sent[index])
        if policy == "complete" or is_json_object(arguments):  # what `eager` has sent is not repaired afterwards
            assert arguments == call.arguments


def assert_token_tiles(result: ParsedCompletion, ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """L1 for ids: the spans tile them in order, each token where its first character is.

    Where the tokens' bytes are valid UTF-8 and spell `raw_text` (a stop token at the end aside), the owner of each is
    found again from byte offsets alone.
    """
    alignment = result.tokens
    assert alignment is not None
    at = 0
    owner = -1
    owners: list[int | None] = []
    for span in alignment.spans:
        assert span.start == at < span.end
        at = span.end
        if span.segment is not None:
            assert span.segment >= owner
            owner = span.segment
        owners += [span.segment] * (span.end - span.start)
    assert at == len(ids)
    pieces = token_bytes(ids, tokenizer)
    data = b"".join(pieces)
    spelled = result.raw_text.encode("utf-8", "replace")
    if not data.startswith(spelled) or data.decode("utf-8", "ignore").encode() != data:
        return
    starts: list[int] = []  # byte offset -> character that begins there, -1 inside a character
    for i, character in enumerate(result.raw_text):
        starts += [i] + [-1] * (len(character.encode("utf-8", "replace")) - 1)
    straddling = []
    begin = 0
    for i, piece in enumerate(pieces):
        first = [c for c in starts[begin : begin + len(piece)] if c >= 0]
        begin += len(piece)
        if not first:
            assert owners[i] is None
            continue
        expected = next(n for n, s in enumerate(result.segments) if s.start <= first[0] < s.end)
        assert owners[i] == expected
        if first[-1] >= result.segments[expected].end:
            straddling.append(i)
    assert list(alignment.straddling) == straddling


def growth(work: Callable[[int], object], small: int, factor: int = 8) -> float:
    """How much more CPU time `work(small * factor)` takes than `work(small)`: about `factor` if it is linear.

    The best of three runs each; times below a millisecond count as one, since they measure nothing.
    """

    def cost(n: int) -> float:
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            work(n)
            best = min(best, time.process_time() - begin)
        return max(best, 1e-3)

    return cost(small * factor) / cost(small)
