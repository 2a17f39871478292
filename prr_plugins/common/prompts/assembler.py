"""Prompts out of messages, counted and accounted for: for whoever runs conversations without a server of ours.

Promise of `PromptAssembler`: the ids of a prompt are those of the previous prompt and of everything sampled, and of
only what is new, where that turn was recorded (splicer.py decides, by its own rules); else they are the template's
render of all messages. They are never more than the budget: what was left out for that is named. The segments of a
prompt tile its ids and say whose message each is, and whether it was rendered or sampled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from prr_plugins.common.bridge.continuation import Span
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.canonical_json import Malformed, root_key
from prr_plugins.common.matching.message_keys import Chain, Media, turn_key
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts import overflow
from prr_plugins.common.prompts.budget import OverBudget, TokenBudget
from prr_plugins.common.prompts.cleaning import Cleaning, clean
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.settings import Settings
from prr_plugins.common.store.interface import Store
from prr_plugins.common.store.memory import TurnStore

__all__ = ["Assembled", "AssemblyError", "Cleaning", "OverBudget", "PromptAssembler", "Segment", "TokenBudget"]

Boundary = Literal["generation", "end"]
Source = Literal["rendered", "sampled", "close", "generation"]
_REMEMBERED = 256
"""Turns whose segments are remembered."""


class AssemblyError(ValueError):
    """There is no prompt for these messages: the template does not support them, or they hold more than text.

    Or what has no JSON text where JSON belongs (arguments nested too deep).
    """


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of a prompt that come from one place.

    ids, text: what they are; joined, the segments are the prompt.
    role, sequence: of the message, and its index in what the caller gave; None where it is not known or of no message.
    source: "rendered" by the template, "sampled" by the model, "close" (the end of a sampled turn, not sampled), or
        the "generation" prompt.
    """

    ids: tuple[int, ...]
    text: str
    role: str | None
    sequence: int | None
    source: Source


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment without its tokens: `[start, end)` of the prompt."""

    start: int
    end: int
    role: str | None
    sequence: int | None
    source: Source


@dataclass(frozen=True)
class Assembled:
    """One prompt.

    ids: all of it. key: first 8 hex digits of its cache key (see `PromptAssembler.key`).
    hit: whether it goes on from a recorded turn; kept: tokens of that turn in it; reason: why it does not, or not from
        the last one (docs/refusals.md).
    messages: what it was made of. dropped: indices, in what the caller gave, of messages that were left out to fit a
        budget, now or when the turn it goes on from was made.
    """

    ids: list[int]
    key: str
    hit: bool
    kept: int
    reason: str
    messages: list[Message]
    dropped: tuple[int, ...]
    plan: Plan = field(repr=False)
    places: Callable[[], tuple[_Place, ...]] = field(repr=False)
    decode: Callable[[Sequence[int]], str] = field(repr=False)

    @property
    def tokens(self) -> int:
        return len(self.ids)

    def segments(self) -> list[Segment]:
        """Computed when asked for: some renders of short conversations, and of this one where it was rendered."""
        made = []
        for place in self.places():
            ids = self.ids[place.start : place.end]
            made.append(Segment(tuple(ids), self.decode(ids), place.role, place.sequence, place.source))
        return made


class PromptAssembler:
    """Makes prompts for one model. Thread-safe.

    bridge: over the model's template and tokenizer. template_id: names both; prompts of another one are never reused.
    store: where recorded turns are kept (default: 256 MiB of memory). settings: those of the splicer.
    """

    def __init__(
        self, bridge: TemplateBridge, template_id: str, store: Store | None = None, settings: Settings | None = None
    ) -> None:
        self._bridge = bridge
        self._template_id = template_id
        store, settings = store or TurnStore(256 << 20), settings or Settings()
        # Two policies: a turn whose prompt was cut to fit a budget is not found by who has none.
        self._unbounded = Splicer(bridge, store, replace(settings, overflow="error"), Metrics())
        self._bounded = Splicer(bridge, store, replace(settings, overflow="drop_oldest_cycles"), Metrics())
        self._recorded: OrderedDict[bytes, tuple[tuple[_Place, ...], tuple[int, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def key(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        boundary: Boundary = "generation",
    ) -> bytes:
        """The cache key of a prompt: a hash of template, tools, template kwargs, boundary and messages.

        Equal whenever message_keys.py takes two histories for the same one; call ids, times and other things that
        change with every request are no part of it.

        Raises AssemblyError for messages that hold more than text, and for what has no JSON text.
        """
        try:
            links = Chain(messages).links
            root = root_key("prompt", self._template_id, tools or [], dict(template_kwargs or {}), boundary)
        except Media as error:
            raise AssemblyError(f"no prompt for media: {error}") from error
        except Malformed as error:
            raise AssemblyError(f"no prompt for what has no JSON text: {error}") from error
        return turn_key(root, links[-1].digest if links else b"")

    def assemble(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        boundary: Boundary = "generation",
        budget: TokenBudget | None = None,
        cleaning: Cleaning | None = None,
    ) -> Assembled:
        """The prompt for `messages` in OpenAI's shape (anthropic.py has `from_anthropic`).

        boundary: "generation" ends with the generation prompt, "end" with the last message.

        Raises OverBudget where what must stay does not fit, AssemblyError where there is no prompt at all.
        """
        messages = list(messages)
        for at, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise AssemblyError(f"message {at} is no message: a mapping with a `role` is")
        numbered = clean(messages, cleaning or Cleaning())
        given, indices = [message for _, message in numbered], [at for at, _ in numbered]
        key = self.key(given, tools=tools, template_kwargs=template_kwargs, boundary=boundary)
        conversation = Conversation(
            given,
            tools,
            dict(template_kwargs or {}),
            template_id=self._template_id,
            add_generation_prompt=boundary == "generation",
        )
        splicer = self._unbounded if budget is None else self._bounded
        plan = splicer.plan(conversation, "on")
        if budget is not None:
            self._check_parts(conversation, budget)
            plan = overflow.fit(splicer, conversation, plan, budget.room, budget.target)
        ids = plan.prompt_ids
        if ids is None:
            ids = self._bridge.render(given, **_request(conversation))
        if ids is None or plan.error is not None:
            raise AssemblyError(plan.error or "the template does not support these messages")
        left = [at for place, at in enumerate(indices) if place not in plan.dropped]
        dropped = {indices[place] for place in plan.dropped} | {at for at in self._earlier(plan)[1] if at in indices}
        return Assembled(
            ids=ids,
            key=key.hex()[:8],
            hit=plan.outcome == "spliced",
            kept=plan.kept_tokens,
            reason=plan.reason,
            messages=[message for at, message in numbered if at not in dropped],
            dropped=tuple(sorted(dropped)),
            plan=plan,
            places=partial(self._places, ids, left, conversation, plan),
            decode=self._bridge.decode,
        )

    def record(self, prompt: Assembled, completion_ids: Sequence[int], message: Message, **details: Any) -> None:
        """Remember what was sampled for a prompt: the next one that holds `message` there goes on from it.

        completion_ids: everything, the stop token included. message: the assistant message that was made of it.
        details: as for `Splicer.record`.
        """
        turn = self._bounded.record(prompt.plan.context, prompt.ids, completion_ids, message, **details)
        if turn is None:
            return
        places = prompt.places()
        with self._lock:
            self._recorded[turn.id] = places, prompt.dropped
            while len(self._recorded) > _REMEMBERED:
                self._recorded.popitem(last=False)

    def _check_parts(self, conversation: Conversation, budget: TokenBudget) -> None:
        limits = {"system": budget.system, "tools": budget.tools, "last_user": budget.last_user}
        if all(limit is None for limit in limits.values()):
            return
        sizes = overflow.parts(self._bridge, conversation)
        for name, limit in limits.items():
            if limit is not None and sizes.get(name, 0) > limit:
                raise OverBudget(sizes[name] - limit, {name: sizes[name]}, limit)

    def _earlier(self, plan: Plan) -> tuple[tuple[_Place, ...], tuple[int, ...]]:
        """What is remembered of the prompt that a spliced one goes on from."""
        if plan.outcome != "spliced" or plan.context is None or plan.context.match is None:
            return (), ()
        with self._lock:
            return self._recorded.get(plan.context.match.turn.id, ((), ()))

    def _places(self, ids: list[int], indices: list[int], conversation: Conversation, plan: Plan) -> tuple[_Place, ...]:
        """Where the segments of a prompt are; `indices` are the caller's of the messages it was made for."""
        context = plan.context
        messages = context.conversation.messages if context is not None else conversation.messages
        if plan.outcome != "spliced" or context is None or context.match is None or context.continued is None:
            found = self._bridge.render_with_spans(messages, **_request(conversation))
            if found is None or found[0] != ids:
                return (_Place(0, len(ids), None, None, "rendered"),)
            return tuple(_place(span, span.message, messages, indices) for span in found[1])
        turn, index = context.match.turn, context.match.index
        places: list[_Place] = []
        for span in self._bridge.spans(context.continued, ids, turn.completion):
            if span.source == "prompt":
                known, _ = self._earlier(plan)
                whole = known and known[-1].end == span.end
                places += known if whole else [_Place(span.start, span.end, None, None, "rendered")]
            else:
                at = index if span.message is None else index + 1 + span.message
                places.append(_place(span, at, messages, indices))
        return tuple(places)


def _place(span: Span, at: int | None, messages: Sequence[Message], indices: Sequence[int]) -> _Place:
    if span.source == "generation" or at is None:
        return _Place(span.start, span.end, "assistant", None, "generation")
    source: Source = "rendered" if span.source == "message" else "close" if span.source == "close" else "sampled"
    return _Place(span.start, span.end, str(messages[at].get("role")), indices[at], source)


def _request(conversation: Conversation) -> dict[str, Any]:
    return {
        "tools": conversation.tools,
        "template_kwargs": conversation.template_kwargs,
        "add_generation_prompt": conversation.add_generation_prompt,
    }
