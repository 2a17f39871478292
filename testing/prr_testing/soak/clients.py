"""Clients that talk, interrupt, edit, fork and lie in pairs, and hold every answer against what they know themselves.

Each client keeps the ids of its own turns as the server returned them. Of every answer it checks that the prompt

- begins with the ids of the turn it goes on from, or that the server names a reason why not (`unnamed_breaks`);
- where the server says it spliced, begins with ids of this client's own history, and nowhere holds what another
  client's model thought (`wrong_splices`).

Whoever breaks an answer off does not know whether the server had finished it, and stored it. Asked again, the model may
say the same words behind another thought; where one process knows only the first of the two, the conversation goes on
from that one. It is this client's own, and counted by itself (`unreceived`).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from ..talk import EDIT_TOOL, Answer, Message, accumulate, whole

TENANT_HEADER = "X-Tenant"
KINDS = ("whole", "stream", "abort", "edit", "fork", "cut", "parallel", "twin", "keeps_reasoning", "forbids_storing")
TOOLS = [EDIT_TOOL]
_SECRET = re.compile(r"secret-(\d+)\.")


@dataclass
class Request:
    """One request's figures. phase: what was being done to the store; latency in seconds."""

    kind: str
    phase: str
    latency: float
    status: int
    outcome: str = ""
    reason: str = ""


@dataclass
class Ledger:
    """What all clients saw."""

    phase: str = "healthy"
    started: int = 0
    requests: list[Request] = field(default_factory=list)
    wrong_splices: list[str] = field(default_factory=list)
    unnamed_breaks: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unreceived: int = 0
    exact: int = 0
    continued: int = 0

    @property
    def done(self) -> int:
        return len(self.requests)

    @property
    def http_5xx(self) -> int:
        return sum(request.status >= 500 for request in self.requests)

    def outcomes(self, phase: str | None = None) -> dict[str, int]:
        chosen = [r for r in self.requests if phase in (None, r.phase) and r.outcome]
        return dict(sorted(Counter(f"{r.outcome} {r.reason}".strip() for r in chosen).items()))


@dataclass
class Writer:
    """Makes completions out of words, in the ids that a model might have sampled."""

    tokenizer: Any
    stop: int

    def ids(self, text: str, odd: bool, stop: bool = True) -> list[int]:
        """odd: in the smallest pieces there are."""
        pieces = list(text) if odd else [text]
        ids = [i for piece in pieces for i in self.tokenizer.encode(piece, add_special_tokens=False)]
        return [*ids, self.stop] if stop else ids

    def call(self, path: str, count: str) -> str:
        return (
            f"<tool_call>\n<function=edit>\n<parameter=path>\n{path}\n</parameter>\n"
            f"<parameter=count>\n{count}\n</parameter>\n</function>\n</tool_call>"
        )


class Client:
    """One client of one kind. Twins: two tenants that say the same and get the same answers, thought differently."""

    def __init__(self, number: int, http: httpx.AsyncClient, model: str, writer: Writer, ledger: Ledger) -> None:
        self.number = number
        self.kind = KINDS[number % len(KINDS)]
        self.pair = number // len(KINDS) // 2 if self.kind == "twin" else None
        self.tenant = ("a" if number // len(KINDS) % 2 else "b") if self.pair is not None else None
        self._http, self._model, self._writer, self._ledger = http, model, writer, ledger
        # Twins draw the same numbers.
        self._random = random.Random(f"twins {self.pair}" if self.pair is not None else number)
        self._conversation = 0
        self.messages: list[Message] = []
        self.turns: list[tuple[int, list[int]]] = []
        """Index of an assistant message and all ids of its turn, of those that stand in `messages` as returned."""
        self.broken_off: list[list[int]] = []
        """All ids of turns that the client did not wait for."""
        self._begin()

    def _begin(self) -> None:
        self._conversation += 1
        who = f"pair {self.pair}" if self.pair is not None else f"client {self.number}"
        self.messages = [
            {"role": "system", "content": "You edit files."},
            {"role": "user", "content": f"{who}, conversation {self._conversation}: please edit."},
        ]
        self.turns, self.broken_off = [], []
        self._length = self._random.randint(4, 9)

    async def step(self) -> None:
        """One request and what comes of it."""
        if len(self.turns) >= self._length:
            self._begin()
        chance = self._random.random()
        if self.turns and self.kind == "edit" and chance < 0.3:
            self._edit()
        elif len(self.turns) > 1 and self.kind == "fork" and chance < 0.3:
            self._fork()
        script, limit = self._script(), 512
        if self.kind == "cut" and chance < 0.5:
            limit = self._random.randint(2, max(2, len(script) - 1))
        aborts = self.kind == "abort" and chance < 0.4
        streams = self.kind in ("stream", "abort") or self._random.random() < 0.2
        answer = await self._ask(script, limit, streams, aborts)
        if answer is not None:
            self._check(answer)
            self._go_on(answer)

    def _script(self) -> list[int]:
        draw = self._random
        thought = f"secret-{self.number}. {draw.choice(['Hm, so', ' ', 'Let  me see:'])} {draw.randint(0, 999)}"
        said = draw.choice(["", "I will. ", "\nOn it:\n\n", "Done.  "])
        calls = {"parallel": 2}.get(self.kind, draw.randint(0, 1))
        counts = (draw.choice(["1.0", "1e3", "7", " 2 "]) for _ in range(calls))
        called = [self._writer.call(f"/srv/{draw.randint(0, 99)}", count) for count in counts]
        text = f"{thought}\n</think>\n\n" + said + "\n".join(called)
        return self._writer.ids(text, odd=draw.random() < 0.05)

    def _edit(self) -> None:
        """Change a word of the user or of the model: what comes behind is no turn of this history any more."""
        index = self._random.randrange(1, len(self.messages))
        message = dict(self.messages[index])
        message["content"] = (message.get("content") or "") + " (edited)"
        self.messages[index] = message
        self.turns = [(at, ids) for at, ids in self.turns if at < index]

    def _fork(self) -> None:
        """Go back and say something else."""
        keep = self._random.randrange(len(self.turns) - 1)
        index, _ = self.turns[keep]
        self.turns = self.turns[: keep + 1]
        self.messages = self.messages[: index + 1]
        self.messages += self._answers(self.messages[index]) or [self._user("something else")]

    def _user(self, text: str) -> Message:
        return {"role": "user", "content": f"{text} {self._random.randint(0, 9999)}"}

    def _answers(self, message: Message) -> list[Message]:
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": f"ok {self._random.randint(0, 99)}"}
            for call in message.get("tool_calls") or []
        ]

    async def _ask(self, script: list[int], limit: int, streams: bool, aborts: bool) -> Answer | None:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": self.messages,
            "tools": TOOLS,
            "max_tokens": limit,
            "vllm_xargs": {"script_ids": script},
            "return_token_ids": True,
            "prr": True,
        }
        if streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.kind == "forbids_storing":
            body["store"] = False
        headers = {TENANT_HEADER: self.tenant} if self.tenant else {}
        phase, began = self._ledger.phase, time.perf_counter()
        status, answer = 0, None
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                status = response.status_code
                if status != 200:
                    text = (await response.aread()).decode(errors="replace")
                    self._ledger.failures.append(f"{self.kind}: HTTP {status}: {text[:200]}")
                elif streams:
                    events = []
                    async for event in _events(response):
                        events.append(event)
                        if aborts and len(events) > 3:
                            self.broken_off.append(events[0].get("prompt_token_ids", []) + script)
                            break
                    else:
                        answer = accumulate(events, 1)[0]
                        if any("error" in event for event in events):
                            answer = None
                            self._ledger.failures.append(f"{self.kind}: error in a stream: {events[-1]}")
                else:
                    answer = whole(json.loads(await response.aread()))[0]
        except httpx.HTTPError as error:
            self._ledger.failures.append(f"{self.kind}: {type(error).__name__}: {error}")
        request = Request(self.kind, phase, time.perf_counter() - began, status)
        if answer is not None and answer.prr is not None:
            request.outcome, request.reason = answer.prr["outcome"], answer.prr["reason"].partition(":")[0]
        self._ledger.requests.append(request)
        return answer

    def _check(self, answer: Answer) -> None:
        ledger, prompt = self._ledger, answer.prompt_ids
        prr = answer.prr or {"outcome": "missing", "reason": "", "kept_tokens": 0}
        where = f"client {self.number} ({self.kind}), conversation {self._conversation}, {len(self.messages)} messages"
        thought = set(map(int, _SECRET.findall(self._writer.tokenizer.decode(prompt))))
        kept = prompt[: prr["kept_tokens"]]
        if prr["outcome"] == "spliced" and kept in self.broken_off and thought <= {self.number}:
            ledger.unreceived += 1
            return
        if thought - {self.number} or (prr["outcome"] == "spliced" and all(kept != ids for _, ids in self.turns)):
            ledger.wrong_splices.append(f"{where}: {prr}, thoughts of {sorted(thought)}")
        if self.turns:
            ledger.continued += 1
            _, last = self.turns[-1]
            if prompt[: len(last)] == last:
                ledger.exact += 1
            elif not prr["reason"]:
                ledger.unnamed_breaks.append(f"{where}: {prr}")

    def _go_on(self, answer: Answer) -> None:
        message = answer.returned(reasoning=self.kind == "keeps_reasoning")
        self.messages.append(message)
        self.turns.append((len(self.messages) - 1, answer.turn))
        results = self._answers(message)
        self.messages += results or [self._user("and now")]


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[len("data: ") :])


async def talk(clients: list[Client], ledger: Ledger, requests: int, at_once: int) -> None:
    """All clients at once, `at_once` requests at a time, `requests` in all."""
    gate = asyncio.Semaphore(at_once)

    async def one(client: Client) -> None:
        while True:
            async with gate:
                if ledger.started >= requests:
                    return
                ledger.started += 1
                await client.step()

    await asyncio.gather(*(one(client) for client in clients))
