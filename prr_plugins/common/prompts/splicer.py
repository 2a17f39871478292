"""What a server does with the bridge: find the stored turn a request goes on from, and extend it.

A request's life: `plan = splicer.plan(conversation)` (a server calls `overflow.plan_prompt`, which may also trim); the
engine uses `plan.prompt_ids` or renders itself (it may call `plan = splicer.refuse(plan, "too_long")` first);
`splicer.settle(plan)` counts what happened, once; when the completion is there, `splicer.record(plan.context, ...)`
stores the turn. A preview (a token count, a render route) calls `plan` alone.

With a shared store, `plan` waits for it and `record` does not put the turn there. An engine that must not wait calls
`context = splicer.prepare(conversation)`, fetches `context.lookup` itself and gives the answer to `plan` in
`context.known`; the turn that `record` returns is for `SharedStore.share`.

Nothing here raises: any fault ends as outcome "fallback" with reason `error_<stage>` and one log line that
holds no content.
"""

from __future__ import annotations

import logging
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from prr_plugins.common import faults
from prr_plugins.common.bridge.continuation import Continuation, Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.canonical_json import Malformed, root_key
from prr_plugins.common.matching import find_turn
from prr_plugins.common.matching.find_turn import Ambiguous, Match
from prr_plugins.common.matching.message_keys import Chain, Media, call_ids, reasoning_of, turn_key
from prr_plugins.common.messages import SYSTEM_ROLES, Message, opening
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prefix import common_prefix
from prr_plugins.common.prompts.plan import Context, Conversation, Plan
from prr_plugins.common.settings import Settings, SpliceMode
from prr_plugins.common.store.interface import Lookup, Store
from prr_plugins.common.store.memory import TurnStore
from prr_plugins.common.store.turn import Turn, interned, tenant_tag, turn_id

logger = logging.getLogger(__name__)

_SHARED_STEM = 64
"""Tokens that a rendered prompt must have in common with an earlier turn to be stored as a branch of it."""


class _Refused(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InjectedFault(RuntimeError):
    """Raised on purpose (PRR_FAULT)."""


class Splicer:
    """Plans prompts and records turns for one template, tokenizer and model server.

    `mode` may be changed at any time; `plan` takes a per-request override. Thread-safe.
    """

    def __init__(self, bridge: TemplateBridge, store: Store, settings: Settings, metrics: Metrics) -> None:
        self.bridge = bridge
        self.store = store
        self.settings = settings
        self.metrics = metrics
        self.mode: SpliceMode = settings.splice

    def prepare(self, conversation: Conversation) -> Context | None:
        """What `plan` needs first, made apart from it; None where it is better left to that. Never raises."""
        if conversation.continue_final_message:
            return None
        try:
            return self._context(conversation)
        except Exception:  # `plan` meets it again, and says what it is
            return None

    def plan(self, conversation: Conversation, mode: SpliceMode | None = None, prepared: Context | None = None) -> Plan:
        """What to do with this request's prompt. Synchronous, never raises, counts no request."""
        began = time.perf_counter()
        plan = self._plan(conversation, mode, prepared)
        self.metrics.add("prr_seconds_total", time.perf_counter() - began, "plan")
        return plan

    def _plan(self, conversation: Conversation, mode: SpliceMode | None, prepared: Context | None) -> Plan:
        mode = mode or self.mode
        if mode == "off":
            return Plan("refused", "off")
        stage = ["splice"]
        context: Context | None = None
        special_texts = 0
        try:
            self._fault("splice")
            if conversation.continue_final_message:
                raise _Refused("continue_final_message")
            context = prepared or self._context(conversation)
            news = conversation.messages[context.answered[-1] + 1 if context.answered else 0 :]
            special_texts = self.bridge.special_texts.count(news)
            plan = self._splice(context, stage)
        except _Refused as refused:
            plan = Plan("refused", refused.reason, context=context)
        except Malformed:
            plan = Plan("refused", "malformed", context=context)
        except Media:
            plan = Plan("refused", "multimodal")
        except Ambiguous:
            plan = Plan("refused", "ambiguous", context=context)
        except Exception as error:
            self._log(stage[0], error)
            plan = Plan("fallback", f"error_{stage[0]}", context=context)
        if special_texts:
            plan = replace(plan, special_texts=special_texts)
        if mode == "observe":
            return self._unused(plan, "observe") if plan.outcome == "spliced" else plan
        if self.settings.on_miss == "error" and plan.outcome in ("refused", "fallback"):
            plan = replace(plan, error=f"the history cannot be spliced: {plan.reason} (PRR_ON_MISS=error)")
        return plan

    def refuse(self, plan: Plan, reason: str) -> Plan:
        """The same plan, not used, for a reason that only the engine knows (`too_long`)."""
        return replace(self._unused(plan, reason), observed_tokens=0)

    def failed(self, plan: Plan, stage: str, error: Exception) -> Plan:
        """The same plan, not used, for a fault of ours in what came after it."""
        self._log(stage, error)
        return replace(self._unused(plan, f"error_{stage}"), outcome="fallback", observed_tokens=0)

    def settle(self, plan: Plan) -> None:
        """Count what happened to the request; verify a share of spliced ones. Call once, when the prompt is final."""
        add = self.metrics.add
        try:
            add("prr_turns_total", 1, plan.outcome, plan.reason.partition(":")[0])
            if plan.outcome == "spliced":
                add("prr_kept_tokens_total", plan.kept_tokens)
                add("prr_retained_reasoning_tokens_total", plan.retained_reasoning_tokens)
                add("prr_respelled_stops_total", int(plan.respelled_stop))
                if self.settings.verify and random.random() < self.settings.verify:
                    self._verify(plan)
            if plan.special_texts:
                add("prr_special_token_texts_total", plan.special_texts)
            if plan.dropped:
                add("prr_overflow_dropped_messages_total", len(plan.dropped))
                logger.info("prr: %d messages dropped to fit the window; the rest are %d tokens",
                            len(plan.dropped), len(plan.prompt_ids or ()))  # fmt: skip
            if plan.observed_tokens:
                add("prr_observed_kept_tokens_total", plan.observed_tokens)
        except Exception as error:
            self._log("settle", error)

    def record(
        self,
        context: Context | None,
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
    ) -> Turn | None:
        """Store one finished turn; the turn, if it was. Never raises. With n > 1, call it once for each choice.

        context: `Plan.context` of the request, whatever the plan's outcome was; None: nothing is stored.
        prompt_ids: the ids the engine really used.
        completion_ids: everything sampled, the stop token included.
        message: the assistant message as it was returned to the client (call ids and reasoning included);
        also: further forms the client may have seen of it (`eager` streaming before a repair).
        reasoning_span: token range `[start, end)` of reasoning in `completion_ids`.
        reasoning_open: whether the completion ended inside reasoning (None: not known).
        native_call_ids: per call of `message`, the id the model itself wrote, None where the engine made one up.
        hidden_reasoning: the client did not receive the reasoning.
        dropped_calls: the completion holds calls that `message` does not (`parallel_tool_calls=false`).
        """
        if context is None:
            return None
        began = time.perf_counter()
        stage = "capture"
        try:
            self._fault("capture")
            start, end = reasoning_span or (0, 0)
            turn = self._turn(context, list(prompt_ids), list(completion_ids), message, also)
            turn = replace(
                turn,
                native_call_ids=tuple(native_call_ids) if any(native_call_ids) else (),
                reasoning_tokens=self._reasoning_in_prompt(context) + end - start,
                retained_tokens=context.retained_tokens if context.used else 0,
                reasoning_open=reasoning_open,
                hidden=hidden_reasoning and end > start,
                dropped_calls=dropped_calls,
            )
            if turn.hidden:  # else clients to whom the model said the same would share the call ids of one of them
                turn = replace(turn, id=root_key(turn.id.hex(), turn.call_ids))
            stage = "store"
            self._fault("store")
            stored = self.store.put(turn)
            if stored and context.sibling is None:
                context.sibling = turn, list(prompt_ids)
            self.metrics.add("prr_records_total", 1, "stored" if stored else "refused", "" if stored else "store_full")
            if isinstance(self.store, TurnStore):
                self.metrics.set("prr_store_bytes", self.store.size)
                self.metrics.set("prr_store_turns", len(self.store))
            self.metrics.add("prr_seconds_total", time.perf_counter() - began, "record")
            return turn if stored else None
        except Exception as error:
            self._log(stage, error)
            self.metrics.add("prr_records_total", 1, "fallback", f"error_{stage}")
            self.metrics.add("prr_turns_total", 1, "fallback", f"error_{stage}")
            return None

    # plan

    def _context(self, conversation: Conversation) -> Context:
        kwargs = conversation.template_kwargs or {}
        lora, tenant = conversation.lora, conversation.tenant
        root = root_key(
            "turn", conversation.model, lora, tenant, conversation.template_id, kwargs, conversation.tools or [],
            # Under another policy a stored turn may stand for a history of which it holds only a part.
            *([self.settings.overflow] if self.settings.overflow != "error" else []),
        )  # fmt: skip
        chain = Chain(conversation.messages)
        answered = [index for index, link in enumerate(chain.links) if link.role == "assistant"]
        if not answered:
            return Context(conversation, chain, root, answered)
        lookup = Lookup(
            keys=tuple(turn_key(root, chain.links[index].digest) for index in reversed(answered)),
            loose=self._loose_key(conversation, chain.links[answered[-1]].digest),
            tenant=tenant_tag(tenant),
            fingerprint=_fingerprint(conversation),
        )
        return Context(conversation, chain, root, answered, lookup)

    def _splice(self, context: Context, stage: list[str]) -> Plan:
        conversation, links, answered = context.conversation, context.chain.links, context.answered
        if context.lookup is None:
            return Plan("first_turn", context=context)
        stage[0] = "store"
        self._fault("store")
        if context.known is None:
            context.known = self.store.fetch(context.lookup)
        turns = list(zip(answered, reversed(context.lookup.keys), strict=True))
        match = find_turn.deepest(self.store, links, turns)
        if match is None:
            raise _Refused(self._changed(context) or "unknown_turn")
        self.store.touch(match.lineage)
        context.match, context.match_ids = match, match.ids()
        stage[0] = "splice"
        reason = ""
        if match.index != answered[-1]:
            edit = find_turn.first_edit(self.store, match, links)
            unknown = answered[answered.index(match.index) + 1]
            reason = f"unknown_turn:messages[{unknown}]" if edit is None else f"edited:messages[{edit}]"
        if match.turn.dropped_calls:
            raise _Refused("calls_dropped")
        if conversation.tenant is None and find_turn.hidden_without_proof(match, links, turns):
            raise _Refused("no_possession")
        stage[0] = "bridge"
        self._fault("bridge")
        return self._continue(context, match, reason)

    def _continue(self, context: Context, match: Match, reason: str) -> Plan:
        conversation = context.conversation
        messages, turn = conversation.messages, match.turn
        kwargs = conversation.template_kwargs or {}
        assistant, new = find_turn.with_native_ids(messages[match.index], messages[match.index + 1 :], turn)
        continued = partial(
            self.bridge.continue_turn,
            context.match_ids,
            turn.completion,
            assistant=assistant,
            before=messages[: match.index],
            tools=conversation.tools,
            template_kwargs=kwargs,
            add_generation_prompt=conversation.add_generation_prompt,
            reasoning_open=turn.reasoning_open,
            compared=True,
        )
        answer = continued(new)
        if answer == Refusal("unsupported_by_template") and conversation.late_system_as_user:
            as_user = _system_as_user(new)
            if as_user != new:
                new, reason = as_user, reason or "late_system_as_user"
                answer = continued(new)
        if isinstance(answer, Refusal):
            raise _Refused(answer.reason)
        rendered = [*messages[: match.index], assistant, *new]
        context.continued, context.appended = answer, (rendered, answer.text)
        if match.index != context.answered[-1] and not self._proven(context):
            raise _Refused(reason)
        retained = self._retained(conversation, turn, answer, messages[match.index + 1 :])
        context.used, context.retained_tokens = True, retained
        kept = len(context.match_ids) - answer.dropped
        ids = context.match_ids[:kept]  # a copy: the engine may change what it is given
        ids += answer.ids
        return Plan(
            "spliced",
            reason,
            ids,
            kept,
            retained,
            respelled_stop=answer.dropped > 0,
            hides_reasoning=find_turn.hides_reasoning(match),
            context=context,
        )

    def _retained(self, conversation: Conversation, turn: Turn, answer: Continuation, new: Sequence[Message]) -> int:
        """Reasoning tokens of the turn that the template would drop and we keep; raises where they must go."""
        if answer.shows_reasoning:
            return turn.retained_tokens
        if not turn.reasoning_tokens:
            return 0
        kwargs = conversation.template_kwargs or {}
        policy = self.settings.retention
        switch = self.bridge.retention_switch(conversation.tools, kwargs)
        in_tool_loop = all(message.get("role") != "user" for message in new)
        set_to_drop = switch in kwargs
        if policy == "template" or set_to_drop or (policy == "auto" and switch is None and not in_tool_loop):
            raise _Refused("retention_template")
        return turn.reasoning_tokens

    def _proven(self, context: Context) -> bool:
        """Whether the template, given the whole conversation, ends with what the bridge has appended."""
        if context.appended is None:
            return False
        messages, text = context.appended
        conversation = context.conversation
        forms = [messages]
        if conversation.late_system_as_user:
            forms.append(_system_as_user(messages, after=opening(messages)))
        return any(
            self.bridge.writes(
                form,
                text,
                tools=conversation.tools,
                template_kwargs=conversation.template_kwargs,
                add_generation_prompt=conversation.add_generation_prompt,
            )
            for form in forms
        )

    def _verify(self, plan: Plan) -> None:
        agrees = plan.context is not None and self._proven(plan.context)
        self.metrics.add("prr_verified_total", 1, "agree" if agrees else "disagree")
        if not agrees:
            logger.warning("prr: a spliced prompt disagrees with a full render of its history")

    def _changed(self, context: Context) -> str | None:
        """What keeps a turn from being found whose messages are all there; None where it is something else."""
        now = _fingerprint(context.conversation)
        for fingerprint in reversed(context.known or ()):
            for place, what in enumerate(_FINGERPRINTED):
                if fingerprint[4 * place : 4 * place + 4] != now[4 * place : 4 * place + 4]:
                    return f"{what}_changed"
        return None

    def _unused(self, plan: Plan, reason: str) -> Plan:
        if plan.context is not None:
            plan.context.used = False
        return Plan(
            "refused",
            reason,
            observed_tokens=plan.kept_tokens,
            special_texts=plan.special_texts,
            context=plan.context,
        )

    # record

    def _turn(
        self,
        context: Context,
        prompt_ids: list[int],
        completion_ids: list[int],
        message: Message,
        also: Sequence[Message],
    ) -> Turn:
        parent, start = self._stem(context, prompt_ids)
        chains = [context.chain, *([context.whole] if context.whole is not None else [])]
        forms = [chain.follow(form) for chain in chains for form in (message, *also)]
        keys = tuple(dict.fromkeys(turn_key(context.root, form.digest) for form in forms))
        ids = array("I", prompt_ids[start:])
        ids.extend(completion_ids)
        after = context.match.index + 1 if context.match and parent is context.match.turn else 0
        links = [*context.chain.links[after:], forms[0]]
        return Turn(
            keys=keys,
            loose=self._loose_key(context.conversation, forms[0].digest),
            id=turn_id(keys[0], parent.id if parent else None, start, ids, len(completion_ids)),
            parent=parent.id if parent else None,
            start=start,
            ids=ids,
            completion=len(completion_ids),
            path=b"".join(link.digest[: find_turn.DIGEST_BYTES] for link in links),
            call_ids=call_ids(message),
            reasoning=find_turn.reasoning_hash(reasoning_of(message)),
            fingerprint=_fingerprint(context.conversation),
            tenant=tenant_tag(context.conversation.tenant),
        )

    def _stem(self, context: Context, prompt_ids: list[int]) -> tuple[Turn | None, int]:
        """The stored turn that the prompt begins with, and how many tokens of it."""
        known: list[tuple[Turn, list[int]]] = []
        if context.match is not None:
            known.append((context.match.turn, context.match_ids))
        if context.sibling is not None:
            known.append(context.sibling)
        best: tuple[Turn | None, int] = None, 0
        for turn, ids in known:
            common = common_prefix(ids, prompt_ids)
            least = 1 if context.used else _SHARED_STEM
            if common >= max(least, best[1] + 1) and self.store.find(turn.keys[:1])[0]:
                best = turn, common
        return best

    def _reasoning_in_prompt(self, context: Context) -> int:
        return context.match.turn.reasoning_tokens if context.used and context.match else 0

    def _loose_key(self, conversation: Conversation, digest: bytes) -> bytes:
        return turn_key(root_key("loose", conversation.tenant), digest)

    # faults

    def _fault(self, stage: str) -> None:
        if self.settings.fault == stage and self.settings.test:
            raise InjectedFault(stage)

    def _log(self, stage: str, error: Exception) -> None:
        logger.warning("prr: %s failed with %s; the engine goes its own way", stage, faults.described(error))


def _system_as_user(messages: Sequence[Message], after: int = 0) -> list[Message]:
    """The messages, those of the system from index `after` on as the user's."""
    return [
        {**message, "role": "user"} if index >= after and message.get("role") in SYSTEM_ROLES else message
        for index, message in enumerate(messages)
    ]


_FINGERPRINTED = ("template", "tools", "template_kwargs", "model")


def _fingerprint(conversation: Conversation) -> bytes:
    parts: tuple[Any, ...] = (
        conversation.template_id,
        conversation.tools or [],
        conversation.template_kwargs or {},
        [conversation.model, conversation.lora],
    )
    return interned(b"".join(root_key(part)[:4] for part in parts))
