"""What a server does with the bridge: find the stored turn a request goes on from, and extend it.

A request's life: `plan = splicer.plan(conversation)`; the engine uses `plan.prompt_ids` or renders itself
(it may call `plan = splicer.refuse(plan, "too_long")` first); `splicer.settle(plan)` counts what happened, once;
when the completion is there, `splicer.record(plan.context, ...)` stores the turn. A preview (a token
count, a render route) calls `plan` alone.

Nothing here raises: any fault ends as outcome "fallback" with reason `error_<stage>` and one log line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prr_plugins.common.bridge import Message, TemplateBridge, Tools
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Settings, SpliceMode
from prr_plugins.common.store import TurnStore

Outcome = Literal["spliced", "first_turn", "refused", "fallback"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat request as the template will see it.

    messages: OpenAI shape as the client sent them (copied; never changed here).
    template_kwargs: the request's merged over the server's defaults.
    template_id: hash of the template text and the tokenizer that are used for this request.
    tenant: isolation domain (`cache_salt`, else the tenant header's value), None where there is none.
    stop_token_ids: additional stop ids of this request.
    """

    messages: list[Message]
    tools: Tools = None
    template_kwargs: dict[str, Any] | None = None
    model: str = ""
    lora: str | None = None
    tenant: str | None = None
    template_id: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one request's prompt.

    prompt_ids: use these; None: the engine renders.
    kept_tokens: tokens of the previous turn (prompt and completion) that stand unchanged in `prompt_ids`.
    retained_reasoning_tokens: tokens of sampled reasoning in `prompt_ids` that the template would drop.
    hides_reasoning: `prompt_ids` contain reasoning that the client never received: do not show the ids.
    error: with PRR_ON_MISS=error, the message to fail the request with; else None.
    context: opaque, for `record`.
    """

    outcome: Outcome
    reason: str
    prompt_ids: list[int] | None = None
    kept_tokens: int = 0
    retained_reasoning_tokens: int = 0
    hides_reasoning: bool = False
    error: str | None = None
    context: Any = None


class Splicer:
    """Plans prompts and records turns for one template, tokenizer and model server.

    `mode` may be changed at any time; `plan` takes a per-request override.
    """

    mode: SpliceMode

    def __init__(self, bridge: TemplateBridge, store: TurnStore, settings: Settings, metrics: Metrics) -> None:
        raise NotImplementedError

    def plan(self, conversation: Conversation, mode: SpliceMode | None = None) -> Plan:
        """What to do with this request's prompt. Synchronous, never raises, counts nothing."""
        raise NotImplementedError

    def refuse(self, plan: Plan, reason: str) -> Plan:
        """The same plan, not used, for a reason that only the engine knows (`too_long`)."""
        raise NotImplementedError

    def settle(self, plan: Plan) -> None:
        """Count what happened to the request. Call once, when the prompt is final."""
        raise NotImplementedError

    def record(
        self,
        context: Any,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        message: Message,
        *,
        also: Sequence[Message] = (),
        reasoning_span: tuple[int, int] | None = None,
        reasoning_open: bool | None = None,
        native_call_ids: Sequence[str | None] = (),
        hidden_reasoning: bool = False,
        dropped_calls: bool = False,
    ) -> None:
        """Store one finished turn. Never raises. With n > 1, call it once for each choice.

        context: `Plan.context` of the request, whatever the plan's outcome was.
        prompt_ids: the ids the engine really used.
        completion_ids: everything sampled, the stop token included.
        message: the assistant message as it was returned to the client (call ids included);
        also: further forms the client may have seen of it (`eager` streaming before a repair).
        reasoning_span: token range `[start, end)` of reasoning in `completion_ids`.
        reasoning_open: whether the completion ended inside reasoning (None: not known).
        native_call_ids: per call of `message`, the id the model itself wrote, None where the engine made one up.
        hidden_reasoning: the client did not receive the reasoning.
        dropped_calls: the completion holds calls that `message` does not (`parallel_tool_calls=false`).
        """
        raise NotImplementedError
