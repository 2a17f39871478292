"""Replay traces on real servers and measure every turn.

The assistant turns of a trace become scripted completions; what the client sends back is the reply that the server
parsed from them, never the trace's own message. All conversations of one server share its cache but not their prefixes:
each replay has a `cache_salt` of its own, so that a mode cannot profit from another one.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from .. import parsers
from ..chat import chat
from ..demo.replay import common_prefix, max_cached_tokens
from ..server import Engine, Server, serve_engine
from ..tokens import Vocabulary
from .trace import Conversation, Step, TraceError
from .writing import write


@dataclass(frozen=True)
class Mode:
    """One way to serve and to ask.

    server: which server it runs on; "stock", or the value of PRR_RETENTION of ours.
    template_kwargs: what the client sends as `chat_template_kwargs`.
    returns_reasoning: whether the client sends reasoning back.
    """

    name: str
    server: str
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    returns_reasoning: bool = False

    @property
    def ours(self) -> bool:
        return self.server != "stock"


PRESERVE = {"preserve_thinking": True}  # the switch of Qwen3.6's template
OPPONENT = "stock, preserve_thinking, reasoning returned"
MODES = (
    Mode("stock", "stock"),
    Mode("stock, preserve_thinking", "stock", PRESERVE),
    Mode(OPPONENT, "stock", PRESERVE, returns_reasoning=True),
    Mode("prr, retention auto", "auto"),
    Mode("prr, retention all", "all"),
    Mode("prr, retention template", "template"),
)


@dataclass(frozen=True)
class TurnResult:
    """One turn. All counts in tokens; `possible` is the most that a block cache could have held of the turn before.

    system: tokens of the prompt in front of the first user message.
    exact: the prompt begins with all ids of the turn before.
    after_user: a user spoke before this turn (else it is inside a tool loop).
    """

    conversation: str
    turn: int
    after_user: bool
    prompt: int
    cached: int
    possible: int
    system: int
    exact: bool
    first_token_s: float
    retained_reasoning: int
    outcome: str


@dataclass(frozen=True)
class Result:
    """All turns of one mode at one variation rate and seed."""

    mode: Mode
    variation: float
    seed: int
    turns: tuple[TurnResult, ...]
    dropped: tuple[str, ...]  # conversations that the server refused to go on with, and why

    def total(self, value: Callable[[TurnResult], float]) -> float:
        return sum(map(value, self.turns))

    @property
    def hit_rate(self) -> float:
        return self.total(lambda t: t.cached) / self.total(lambda t: t.prompt)

    @property
    def best_hit_rate(self) -> float:
        return self.total(lambda t: t.possible) / self.total(lambda t: t.prompt)

    @property
    def hit_rate_beyond_system(self) -> float:
        """The hit rate without the tokens of the system prompt, which every request of a service shares."""
        cached = self.total(lambda t: max(0, t.cached - t.system))
        return cached / self.total(lambda t: t.prompt - t.system)

    @property
    def uncached(self) -> int:
        """Prefill tokens that were computed."""
        return int(self.total(lambda t: t.prompt - t.cached))

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(turn.outcome for turn in self.turns if turn.outcome)


def run(
    conversations: Sequence[Conversation],
    model: str,
    folder: Path,
    vocabulary: Vocabulary,
    variations: Sequence[float],
    seeds: Sequence[int],
    log_dir: Path,
    on_result: Callable[[Result], None],
    on_server: Callable[[str], None],
    engine: Engine = "vllm",
    block_size: int | None = None,
) -> list[Result]:
    """Every mode at every variation rate and seed; one server at a time. Each result is told as it comes.

    block_size: tokens of a cache block; None is the tests' usual one.
    Raises TraceError if a server refuses every conversation.
    """
    results = []
    for name in dict.fromkeys(mode.server for mode in MODES):
        on_server(name)
        with _server(engine, name, model, folder, log_dir, block_size) as server:
            _warm_up(server, vocabulary)
            for variation in variations:
                for seed in seeds:
                    for mode in MODES:
                        if mode.server == name:
                            result = _replay(server, mode, conversations, model, vocabulary, variation, seed)
                            on_result(result)
                            if not result.turns:
                                raise TraceError("; ".join(result.dropped))
                            results.append(result)
    return results


def _server(engine: Engine, name: str, model: str, folder: Path, log_dir: Path, block_size: int | None) -> Any:
    chosen = (parsers.STOCK[engine] if name == "stock" else parsers.OURS)[model]
    return serve_engine(
        engine,
        folder,
        *parsers.ARGUMENTS.get((engine, model), ()),
        tool_parser=chosen.tool,
        reasoning_parser=chosen.reasoning,
        env={} if name == "stock" else {"PRR_RETENTION": name},
        plugins=name != "stock",
        block_size=block_size,
        max_model_len=131_072,
        kv_cache_tokens=2 << 20,  # nothing is evicted
        log=log_dir / f"bench-{engine}-{name}.log",
    )


def _warm_up(server: Server, vocabulary: Vocabulary) -> None:
    """The first requests of a server pay for lazy set-up, which is not what time to first token should show."""
    for _ in range(3):
        message = [{"role": "user", "content": "warm up " * 500}]
        script, body = vocabulary.encode("x"), {"cache_salt": "warm"}
        chat(server.client(), server.model, message, script_ids=script, body=body, engine=server.engine)


def _replay(
    server: Server,
    mode: Mode,
    conversations: Sequence[Conversation],
    model: str,
    vocabulary: Vocabulary,
    variation: float,
    seed: int,
) -> Result:
    turns: list[TurnResult] = []
    dropped = []
    for conversation in conversations:
        try:
            turns.extend(_conversation(server, mode, conversation, model, vocabulary, variation, seed))
        except openai.BadRequestError as error:  # too long for the window, or a role that the template refuses
            dropped.append(f"{conversation.name}: {error}")
    return Result(mode, variation, seed, tuple(turns), tuple(dropped))


def _conversation(
    server: Server,
    mode: Mode,
    conversation: Conversation,
    model: str,
    vocabulary: Vocabulary,
    variation: float,
    seed: int,
) -> Iterator[TurnResult]:
    client = server.client()
    replay_name = f"{mode.name}/{conversation.name}/{variation}/{seed}"
    body: dict[str, Any] = {"cache_salt": hashlib.sha256(replay_name.encode()).hexdigest()}
    if mode.template_kwargs:
        body["chat_template_kwargs"] = dict(mode.template_kwargs)
    if mode.ours:
        body["prr"] = True
    history: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    before: list[int] = []
    system = 0
    for number, step in enumerate(conversation.steps, start=1):
        # one source of randomness per turn: every mode is given the same completions
        rng = random.Random(f"{seed}/{variation}/{conversation.name}/{number}")
        text = write(model, step.assistant, rng, variation)
        script = [*vocabulary.encode(text, rng=rng, odd=variation), vocabulary.tokenizer.eos_token_id]
        history += _new_messages(step, calls)
        reply = chat(
            client,
            server.model,
            history,
            tools=conversation.tools,
            script_ids=script,
            stream=True,
            body=body,
            engine=server.engine,
            max_tokens=len(script),
        )
        if reply.completion_ids != script:
            raise RuntimeError(f"{conversation.name}, turn {number}: the engine did not sample the script")
        if number == 1:
            system = _system_tokens(reply.prompt_ids, step, vocabulary)
        told = reply.prr or {}
        yield TurnResult(
            conversation=conversation.name,
            turn=number,
            after_user=step.after_user,
            prompt=len(reply.prompt_ids),
            cached=reply.cached_tokens,
            possible=max_cached_tokens(len(before), len(reply.prompt_ids), server.block_size),
            system=system,
            exact=common_prefix(before, reply.prompt_ids) == len(before),
            first_token_s=reply.first_token_s,
            retained_reasoning=told.get("retained_reasoning_tokens") or 0,
            outcome=" ".join(filter(None, (told.get("outcome"), told.get("reason")))),
        )
        before = reply.prompt_ids + reply.completion_ids
        message = dict(reply.message)
        if not mode.returns_reasoning:
            message = {name: value for name, value in message.items() if not name.startswith("reasoning")}
        calls = message.get("tool_calls", [])
        if message["content"] is None and not calls:
            message["content"] = ""
        history.append(message)


def _new_messages(step: Step, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The step's new messages, its tool results under the ids of the calls that the server returned."""
    ids = iter([call["id"] for call in calls])
    return [
        {**message, "tool_call_id": next(ids, f"call_{index}")} if message["role"] == "tool" else message
        for index, message in enumerate(step.new)
    ]


def _system_tokens(prompt: Sequence[int], first: Step, vocabulary: Vocabulary) -> int:
    """How many ids of a conversation's first prompt lie wholly in front of its first user message."""
    user = next((m["content"] for m in first.new if m["role"] == "user" and isinstance(m.get("content"), str)), "")
    start = vocabulary.bytes_of(prompt).find(user.strip().encode())
    length = 0
    for index, token_id in enumerate(prompt):
        length += len(vocabulary.bytes_of([token_id]))
        if length > start:
            return index
    return len(prompt)
