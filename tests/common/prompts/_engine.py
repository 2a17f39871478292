"""An engine as far as the splicer sees it, with a real tokenizer and template: for tests of whole conversations."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from prr_plugins.common.messages import Message
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.settings import Settings
from prr_plugins.common.store.memory import TurnStore

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "List the files."}
NEXT = {"role": "user", "content": "Go on, please."}


def call(name: str = "bash", **arguments: Any) -> Message:
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def results(message: Message, *texts: str) -> list[Message]:
    calls = message["tool_calls"]
    return [
        {"role": "tool", "tool_call_id": one["id"], "content": text} for one, text in zip(calls, texts, strict=True)
    ]


@dataclass
class Engine:
    """An engine as far as the splicer sees it: renders what is not spliced, and is told what to sample."""

    model: Any
    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=Metrics)
    store: TurnStore = field(default_factory=lambda: TurnStore(1 << 28))
    ids: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.splicer = Splicer(self.model.bridge(stop=self.settings.stop), self.store, self.settings, self.metrics)
        self.plan: Plan = Plan("refused")
        self.prompt: list[int] = []
        self.turn: list[int] = []

    def ask(
        self,
        messages: list[Message],
        *,
        reasoning: str = "Hm.",
        content: str = "",
        calls: list[Message] | None = None,
        stop: str = "<|im_end|>",
        native: tuple[str | None, ...] = (),
        mode: Any = None,
        hidden: bool = False,
        **request: Any,
    ) -> Message:
        """One request. Returns the assistant message that the client gets; `prompt` and `turn` hold the ids."""
        fields = {name: request.pop(name) for name in ("dropped_calls", "also") if name in request}
        conversation = Conversation(copy.deepcopy(messages), model="m", **request)
        before = copy.deepcopy(conversation)
        self.plan = self.splicer.plan(conversation, mode)
        self.splicer.settle(self.plan)
        assert conversation == before
        kwargs = request.get("template_kwargs") or {}
        self.prompt = self.plan.prompt_ids or self.rendered(messages, request.get("tools"), kwargs)
        # written as no template would write it
        thought = self.model.encode(f"{reasoning}\n\n\n")
        text = f"</think>\n{content}"
        for one in calls or []:
            text += f"<tool_call> {one['function']['name']} {one['function']['arguments']}</tool_call>"
        sampled = thought + self.model.encode(text + stop)
        message: Message = {"role": "assistant", "content": content or None}
        if reasoning and not hidden:
            message["reasoning"] = reasoning
        if calls:
            ids = [own or f"chatcmpl-tool-{next(self.ids)}" for own in native or [None] * len(calls)]
            message["tool_calls"] = [{"id": call_id, **one} for call_id, one in zip(ids, calls, strict=True)]
        self.splicer.record(
            self.plan.context,
            self.prompt,
            sampled,
            message,
            reasoning_span=(0, len(thought)) if reasoning else None,
            native_call_ids=native or [None] * len(calls or []),
            hidden_reasoning=hidden,
            **fields,
        )
        self.turn = self.prompt + sampled
        return copy.deepcopy(message)

    def rendered(self, messages: list[Message], tools: Any = None, kwargs: dict[str, Any] | None = None) -> list[int]:
        ids: list[int] = self.model.encode(self.model.render(messages, tools, True, kwargs or {}))
        return ids

    def outcome(self) -> tuple[str, str]:
        return self.plan.outcome, self.plan.reason

    def check_exact(self, turn: list[int]) -> None:
        assert self.plan.outcome == "spliced", self.plan.reason
        assert self.prompt[: len(turn)] == turn
        assert self.plan.kept_tokens == len(turn)


def without_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning"}


def answered(engine: Engine, **request: Any) -> list[Message]:
    message = engine.ask([USER], content="Two files.", **request)
    return [USER, without_reasoning(message), NEXT]
