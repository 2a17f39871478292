"""What every format's tests hold a completion against: the laws, on every way to feed it.

Promises: `check` parses one completion whole, in single characters, in every pair of pieces (sampled where there are
too many), in random pieces and in the given ones, under both streaming policies. It asserts tiling (L1), slices (L2),
one result for all of them (L3) and that the deltas of a stream add up to it; then it compares the values asked for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from prr_plugins.common.parsing.completion import Delta, ParsedCompletion, Policy
from prr_plugins.common.parsing.stream_parser import StreamParser
from prr_testing.laws import assert_deltas, assert_slices, assert_tiles, growth

ANY: Any = object()  # "whatever it is": this value is not compared
_ALL_PAIRS = 600  # characters up to which every split in two is tried


def tool(name: str, /, *required: str, **properties: Any) -> dict[str, Any]:
    """A tool in OpenAI's shape; a property is a JSON type name, or a whole schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    parameters: dict[str, Any] = {"type": "object", "properties": schemas}
    if required:
        parameters["required"] = list(required)
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def exact(text: str) -> Any:
    """A JSON text's value with numbers as they were written (`1.0` is not `1`), and key order kept."""
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs), parse_float=Decimal)


def check(
    format: str,
    text: str,
    *,
    tools: list[dict[str, Any]] | None = None,
    prompt_tail: str = "",
    finish_reason: str = "stop",
    chunks: Sequence[str] | None = None,
    calls: Sequence[tuple[str, dict[str, Any] | str]] = ANY,
    content: str | None = ANY,
    reasoning: str | None = ANY,
    incomplete: Sequence[str | None] = ANY,
    statuses: Sequence[str] = ANY,
    ids: Sequence[str | None] = ANY,
    with_reasoning: bool = True,
    with_tool_calls: bool = True,
) -> ParsedCompletion:
    """Parse `text` in every way, hold it against the laws, compare what was given; the result.

    Args:
        chunks: a split of `text` that once failed.
        calls: `(name, arguments)` of the finished calls; arguments as a value (compared exactly) or as JSON text.
        incomplete: names of the calls that were cut or cannot be read; nobody may be there if `calls` is given alone.
        statuses, ids: of the finished calls.
    """

    def run(pieces: Iterable[str], policy: Policy) -> tuple[ParsedCompletion, list[Delta]]:
        parser = StreamParser(
            format, tools=tools, prompt_tail=prompt_tail, reasoning=with_reasoning, tool_calls=with_tool_calls,
            stream_arguments=policy,
        )  # fmt: skip
        deltas: list[Delta] = []
        for piece in pieces:
            deltas += parser.feed(piece)
        deltas += parser.finish(finish_reason)
        return parser.result, deltas

    whole, _ = run([text], "complete")
    assert_tiles(whole, text)
    assert_slices(whole)
    assert whole.finish_reason == finish_reason
    for pieces in splits(text, chunks):
        for policy in ("complete", "eager"):
            result, deltas = run(pieces, policy)
            assert result == whole, f"{policy}, fed as {pieces[:40]!r}"
            assert_deltas(result, deltas, policy)

    if calls is not ANY:
        assert [c.name for c in whole.parsed_tool_calls] == [name for name, _ in calls]
        for call, (_, arguments) in zip(whole.parsed_tool_calls, calls, strict=True):
            if isinstance(arguments, str):
                assert call.arguments == arguments
            else:
                assert exact(call.arguments) == exact(json.dumps(arguments)), call.arguments
        if incomplete is ANY:
            assert whole.incomplete_calls == ()
    if content is not ANY:
        assert whole.content == content
    if reasoning is not ANY:
        assert whole.reasoning == reasoning
    if incomplete is not ANY:
        assert [c.name for c in whole.incomplete_calls] == list(incomplete)
    if statuses is not ANY:
        assert [c.status for c in whole.parsed_tool_calls] == list(statuses)
    if ids is not ANY:
        assert [c.id for c in whole.parsed_tool_calls] == list(ids)
    return whole


def splits(text: str, chunks: Sequence[str] | None = None) -> Iterator[Sequence[str]]:
    """Ways to cut `text`: whole, by characters, in two at every place (or at 100), at random, and the given one."""
    yield [text]
    yield list(text)
    rng = random.Random(len(text))
    cuts: Iterable[int] = range(1, len(text))
    if len(text) > _ALL_PAIRS:
        cuts = rng.sample(range(1, len(text)), 100)
    for cut in cuts:
        yield [text[:cut], text[cut:]]
    for longest in (3, 8, 30):
        for _ in range(3):
            yield random_pieces(text, longest, rng)
    if chunks is not None:
        assert "".join(chunks) == text
        yield chunks


def random_pieces(text: str, longest: int, rng: random.Random) -> list[str]:
    """`text` in pieces of 1 to `longest` characters."""
    pieces, at = [], 0
    while at < len(text):
        end = at + rng.randint(1, longest)
        pieces.append(text[at:end])
        at = end
    return pieces


def assert_linear(parse: Callable[[int], object], small: int, *, factor: int = 8) -> None:
    """`parse(n)` on `factor` times the size costs at most about `factor` times the CPU time."""
    measured = growth(parse, small, factor)
    assert measured <= 3 * factor, f"{measured:.0f} times the work for {factor} times the text"
