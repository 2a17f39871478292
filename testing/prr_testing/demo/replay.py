"""Run a session against a server and measure, turn by turn, what of the turn before stands again in the prompt.

Every figure is the server's own: prompt and completion ids (`return_token_ids`), `usage`, and the counters of
`/metrics`, which have to agree with it. The client is the stock one: it knows the messages it got, not ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..chat import Reply, chat
from ..server import Server
from ..tokens import Vocabulary
from .session import Session, SessionError, Turn

_DRIFT_TOKENS = 6  # tokens shown on each side of a drift


class ReplayError(RuntimeError):
    """The run is no evidence: the engine did not sample the script, or the server's figures contradict each other."""


@dataclass(frozen=True)
class TurnFigures:
    """One row. P + C: the prompt and completion ids of the turn before, none before the first turn.

    kept_tokens: length of the common prefix of P + C and this prompt.
    text_prefix_exact: the text of P + C begins this prompt's text.
    max_cached_tokens: what a cache of whole blocks can hold of P + C; the last sampled token was never computed.
    drift: where the prompt leaves P + C, as text; None if it does not.
    """

    turn: int
    streaming: bool
    prompt_tokens: int
    reusable_tokens: int
    kept_tokens: int
    prefix_exact: bool
    text_prefix_exact: bool
    cached_tokens: int
    max_cached_tokens: int
    drift: str | None


@dataclass(frozen=True)
class Row:
    """A turn's figures with what the demo shows beside them."""

    figures: TurnFigures
    finish_reason: str | None
    outcome: str


def max_cached_tokens(sampled: int, prompt: int, block_size: int) -> int:
    """Most tokens of a prompt that can be cached after `sampled` tokens of P + C: whole blocks, and the last token of
    either has to be computed: of P + C it was never fed, of the prompt its logits are needed."""
    if not sampled:
        return 0
    return block_size * min((sampled - 1) // block_size, (prompt - 1) // block_size)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def measure(
    turn: int, streaming: bool, before: Sequence[int], reply: Reply, vocabulary: Vocabulary, block_size: int
) -> TurnFigures:
    """The figures of one turn; `before` is P + C of the turn before."""
    prompt = reply.prompt_ids
    kept = common_prefix(before, prompt)
    exact = kept == len(before)
    drift = None
    if not exact:
        context = vocabulary.text_of(before[max(0, kept - 3) : kept])
        was = vocabulary.text_of(before[kept : kept + _DRIFT_TOKENS])
        now = vocabulary.text_of(prompt[kept : kept + _DRIFT_TOKENS])
        drift = f"after {context!r}: sampled {was!r}, prompt has {now!r}"
    return TurnFigures(
        turn=turn,
        streaming=streaming,
        prompt_tokens=reply.prompt_tokens,
        reusable_tokens=len(before),
        kept_tokens=kept,
        prefix_exact=exact,
        text_prefix_exact=vocabulary.bytes_of(prompt).startswith(vocabulary.bytes_of(before)),
        cached_tokens=reply.cached_tokens,
        max_cached_tokens=max_cached_tokens(len(before), len(prompt), block_size),
        drift=drift,
    )


def script(turn: Turn, number: int, vocabulary: Vocabulary, seed: int | None) -> list[int]:
    """The ids that the model samples in this turn, the stop token included; SessionError if the text cannot be that.

    seed: spell everything with random tokens, the same ones for the same seed and turn; None: as the tokenizer would.
    """
    rng = None if seed is None else random.Random(f"{seed}/{number}")
    ids = [token_id for part in turn.completion for token_id in vocabulary.encode(part, rng=rng)]
    stops = stop_ids(vocabulary)
    inner = next((index for index, token_id in enumerate(ids) if token_id in stops), None)
    if inner is not None and (inner < len(ids) - 1 or turn.stop is None):
        raise SessionError(
            f"turns[{number - 1}].completion: holds the stop token {vocabulary.text_of([ids[inner]])!r} before its end"
        )
    if turn.stop is None or inner is not None:
        return ids
    if turn.stop == "":
        return [*ids, vocabulary.tokenizer.eos_token_id]
    if vocabulary.added.get(turn.stop) not in stops:
        known = ", ".join(vocabulary.text_of([token_id]) for token_id in stops)
        raise SessionError(f"turns[{number - 1}].stop: {turn.stop!r} is no stop token of this model; those are {known}")
    return [*ids, vocabulary.added[turn.stop]]


def stop_ids(vocabulary: Vocabulary) -> list[int]:
    """The ids at which the engine ends a completion, from the model's generation_config.json."""
    folder = Path(vocabulary.tokenizer.name_or_path)
    configured = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return list(configured)


def as_client(message: dict[str, Any], finish_reason: str | None, turn: Turn) -> dict[str, Any]:
    """The assistant message as an ordinary client puts it into its history.

    Reasoning goes if the session's client drops it. Of a completion that ended with `length`, calls whose arguments are
    not JSON go too: no agent runs them, and servers refuse them in a history. A message that says nothing has "".
    """
    kept = {key: value for key, value in message.items() if not (turn.drop_reasoning and key.startswith("reasoning"))}
    calls = kept.pop("tool_calls", None) or []
    if finish_reason == "length":
        calls = [call for call in calls if _is_json(call["function"]["arguments"])]
    if turn.reserialize_arguments:
        calls = [_reserialized(call) for call in calls]
    if calls:
        kept["tool_calls"] = calls
    elif kept["content"] is None:
        kept["content"] = ""
    return kept


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _reserialized(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not _is_json(function["arguments"]):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(json.loads(function["arguments"]))}}


def new_messages(turn: Turn, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the client adds before a turn: one tool message for each call it got, whatever the session expected.

    Results that no call asks for are left out, calls without a result get an empty one.
    """
    results = [*turn.tool_results, *[""] * len(calls)]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(calls, results, strict=False)
    ]
    new = [*answers, *turn.messages]
    return new or [{"role": "user", "content": "Go on."}]


def replay(
    server: Server,
    session: Session,
    vocabulary: Vocabulary,
    *,
    seed: int | None = None,
    body: dict[str, Any] | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Run all turns of a session; one row each, told to `on_row` as it comes. `body`: fields of every request."""
    client = server.client()
    hits_before = _cache_hits(server)
    history: list[dict[str, Any]] = list(session.opening)
    calls: list[dict[str, Any]] = []
    before: list[int] = []
    rows = []
    request_body = dict(body or {})
    if session.template_kwargs:
        request_body["chat_template_kwargs"] = session.template_kwargs
    for number, turn in enumerate(session.turns, start=1):
        history += new_messages(turn, calls)
        ids = script(turn, number, vocabulary, seed)
        limit = min(turn.max_tokens or len(ids), len(ids)) if turn.stop is None else turn.max_tokens
        options: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
        reply = chat(
            client,
            server.model,
            history,
            tools=session.tools,
            script_ids=ids,
            stream=turn.stream,
            body=request_body,
            engine=server.engine,
            **options,
        )
        if reply.completion_ids != ids[:limit]:
            raise ReplayError(f"turn {number}: the engine did not sample the script")
        figures = measure(number, turn.stream, before, reply, vocabulary, server.block_size)
        outcome = reply.prr or {}
        row = Row(figures, reply.finish_reason, " ".join(filter(None, (outcome.get("outcome"), outcome.get("reason")))))
        on_row(row)
        rows.append(row)
        before = reply.prompt_ids + reply.completion_ids
        message = as_client(reply.message, reply.finish_reason, turn)
        calls = message.get("tool_calls", [])
        history.append(message)
    hits = _cache_hits(server) - hits_before
    told = sum(row.figures.cached_tokens for row in rows)
    if hits != told:
        raise ReplayError(f"the server's usage tells of {told} cached tokens, its counters of {hits:.0f}")
    return rows


def _cache_hits(server: Server) -> float:
    """Prompt tokens that the engine has taken from its cache, by its own counter."""
    name = "vllm:prefix_cache_hits_total" if server.engine == "vllm" else "sglang:cached_tokens_total"
    return server.metrics().total(name)


def hit_rate(rows: Sequence[Row]) -> float:
    """Cached tokens of all prompts over all prompt tokens."""
    return sum(row.figures.cached_tokens for row in rows) / sum(row.figures.prompt_tokens for row in rows)


def best_hit_rate(rows: Sequence[Row]) -> float:
    """The hit rate if every turn had cached the most that is possible."""
    return sum(row.figures.max_cached_tokens for row in rows) / sum(row.figures.prompt_tokens for row in rows)
