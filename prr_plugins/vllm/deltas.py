"""Deltas of the parser as vLLM's `DeltaMessage`, and what a client makes of them.

Promises: one `DeltaMessage` for one chunk (None where nothing flows); a call's first delta carries its id, type and
name, its last one `raw_arguments`. `sent` is the message a client holds after appending every delta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, SerializeAsAny
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
from vllm.renderers.chat_utils import make_tool_call_id

from prr_plugins.common.parsing.completion import Delta
from prr_plugins.common.serving.sent_message import SentCall, SentMessage


class RawDeltaFunctionCall(DeltaFunctionCall):
    """The last delta of a call: `raw_arguments` is the whole argument text as the model wrote it."""

    raw_arguments: str


class RawDeltaToolCall(DeltaToolCall):
    # vLLM serialises a field by its declared type, which would drop what a subclass adds.
    function: SerializeAsAny[DeltaFunctionCall] | None = None


class RawDeltaMessage(DeltaMessage):
    tool_calls: list[SerializeAsAny[DeltaToolCall]] = Field(default_factory=list)


@dataclass
class _Call:
    """What one chunk says about one call. Only what is said is set: vLLM leaves unset fields out."""

    index: int
    fields: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)

    def model(self) -> DeltaToolCall:
        kind = RawDeltaFunctionCall if "raw_arguments" in self.function else DeltaFunctionCall
        return RawDeltaToolCall(index=self.index, function=kind(**self.function), **self.fields)


class DeltaAssembler:
    """Turns parser deltas into messages, and accumulates them as a client would.

    new_id: makes the id of a call (from its name) where the format writes none.
    reasoning: False leaves reasoning out of the messages (`include_reasoning=false`).
    """

    def __init__(self, new_id: Callable[[str], str] | None = None, *, reasoning: bool = True) -> None:
        self._new_id = new_id or (lambda name: make_tool_call_id())
        self._reasoning = reasoning
        self.sent = SentMessage()

    def message(self, deltas: Sequence[Delta]) -> DeltaMessage | None:
        if not deltas:
            return None
        if len(deltas) == 1:  # as a rule; vLLM's own classes, plainly made, cost half
            kind, text, index, _ = deltas[0]
            if kind == "content":
                self.sent.content.append(text)
                return DeltaMessage(content=text)
            if kind == "reasoning":
                if not self._reasoning:
                    return None
                self.sent.reasoning.append(text)
                return DeltaMessage(reasoning=text)
            if kind == "arguments":
                self.sent.calls[index].arguments.append(text)
                return DeltaMessage(tool_calls=[DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=text))])
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, _Call] = {}
        for delta in deltas:
            if delta.kind == "content":
                content.append(delta.text)
            elif delta.kind == "reasoning":
                if self._reasoning:
                    reasoning.append(delta.text)
            else:
                self._add(calls.setdefault(delta.index, _Call(delta.index)), delta)
        fields: dict[str, Any] = {}
        if content:
            fields["content"] = "".join(content)
            self.sent.content.extend(content)
        if reasoning:
            fields["reasoning"] = "".join(reasoning)
            self.sent.reasoning.extend(reasoning)
        if calls:
            fields["tool_calls"] = [call.model() for call in calls.values()]
        return RawDeltaMessage(**fields) if fields else None

    def _add(self, call: _Call, delta: Delta) -> None:
        if delta.kind == "call":
            call_id = delta.call_id or self._new_id(delta.text)
            call.fields |= {"id": call_id, "type": "function"}
            call.function |= {"name": delta.text, "arguments": ""}
            self.sent.calls[delta.index] = SentCall(call_id, delta.call_id, delta.text)
        elif delta.kind == "arguments":
            call.function["arguments"] = call.function.get("arguments", "") + delta.text
            self.sent.calls[delta.index].arguments.append(delta.text)
        else:
            call.function.setdefault("arguments", "")
            call.function["raw_arguments"] = delta.text
            self.sent.calls[delta.index].raw_arguments = delta.text
