"""A conversation that has outgrown the window: what to leave out of it, and which prompt that gives.

Promise: a prompt made here has been counted in the ids it consists of, and fits. As long as the history fits, nothing
changes. Where neither a splice nor the template's render of all messages does, the oldest go (dropping.py) and the rest
is a conversation of its own: rendered once, and from then on spliced. Its turns are stored under the history as the
client sends it, in full, too; the next request finds them there, so the prompt only grows until it is too long again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, opening
from prr_plugins.common.prompts.budget import OverBudget
from prr_plugins.common.prompts.dropping import cuts, drop_steps, last_question, without
from prr_plugins.common.prompts.plan import Context, Conversation, Plan
from prr_plugins.common.prompts.splicer import Splicer, logger
from prr_plugins.common.settings import SpliceMode

_FRAME = 8
"""Tokens that a template writes around a message, about."""


def plan_prompt(
    splicer: Splicer,
    conversation: Conversation,
    mode: SpliceMode | None,
    room: int,
    prepared: Context | None = None,
) -> Plan:
    """`Splicer.plan` for a server, by its setting PRR_OVERFLOW. Never raises, counts nothing.

    room: most tokens of a prompt (the window without what the completion takes).
    """
    whole = splicer.plan(conversation, mode, prepared)
    if splicer.settings.overflow == "error" or (mode or splicer.mode) != "on":
        return whole
    if whole.context is None or whole.error is not None or room < 1:
        return whole
    try:
        return fit(splicer, conversation, whole, room, splicer.settings.overflow_target)
    except OverBudget as error:
        logger.info("prr: nothing more can be dropped: %s", error)
        return whole
    except Exception as error:
        return splicer.failed(whole, "overflow", error)


def fit(splicer: Splicer, conversation: Conversation, whole: Plan, room: int, target: float) -> Plan:
    """`whole` where it fits, or else a plan for what is left of the conversation.

    whole: the plan for all of it. target: share of `room` to be filled once messages have to go.

    Raises OverBudget where what must stay does not fit.
    """
    if whole.prompt_ids is not None and len(whole.prompt_ids) <= room:
        return whole
    messages = conversation.messages
    count = _counter(splicer.bridge, conversation)
    own = count(messages, room)
    if own is None and whole.prompt_ids is None:
        return whole  # the template does not support it, and the engine will say so
    if own is not None and own <= room:
        return whole if whole.prompt_ids is None else splicer.refuse(whole, "too_long")
    sizes = [splicer.bridge.size(message) + _FRAME for message in messages]
    enough = int(room * (1 + target) / 2)  # else the next cut would follow soon
    second_best: Plan | None = None
    for dropped in cuts(messages, sizes, room, target):
        trimmed = _trimmed(splicer, replace(conversation, messages=without(messages, dropped)), room)
        if trimmed is None:
            continue
        assert whole.context is not None
        assert trimmed.context is not None
        trimmed.context.whole = whole.context.chain
        trimmed = replace(trimmed, dropped=tuple(sorted(dropped)), special_texts=whole.special_texts)
        if trimmed.prompt_ids is None or trimmed.outcome == "spliced" or len(trimmed.prompt_ids) <= enough:
            return trimmed
        second_best = second_best or trimmed
    if second_best is None:
        raise over_budget(splicer.bridge, conversation, room)
    return second_best


def over_budget(bridge: TemplateBridge, conversation: Conversation, room: int) -> OverBudget:
    """Which parts of what must stay take how much of `room`."""
    messages = conversation.messages
    kept = without(messages, frozenset(at for step in drop_steps(messages) for at in step))
    least = replace(conversation, messages=kept)
    return OverBudget((_counter(bridge, least)(kept) or 0) - room, parts(bridge, least), room)


def parts(bridge: TemplateBridge, conversation: Conversation) -> dict[str, int]:
    """Tokens that "system", "tools", "last_user" and "last_cycle" add to the render; what is not there is left out."""
    messages = conversation.messages
    total = _counter(bridge, conversation)(messages)
    if total is None:
        return {}
    head, question = opening(messages), last_question(messages)
    smaller = {
        "system": (messages[head:], conversation),
        "tools": (messages, replace(conversation, tools=None)),
        "last_user": (_emptied(messages, question), conversation),
        "last_cycle": (_emptied(messages, range(max(head, question.stop), len(messages))), conversation),
    }
    sizes = {}
    for name, (rest, request) in smaller.items():
        size = _counter(bridge, request)(rest)
        if size is not None and size < total:
            sizes[name] = total - size
    return sizes


def _trimmed(splicer: Splicer, conversation: Conversation, room: int) -> Plan | None:
    """The plan for a trimmed conversation; None where it does not fit either."""
    again = splicer.plan(conversation, "on")
    if again.error is not None:
        return again
    if again.prompt_ids is not None:
        if len(again.prompt_ids) <= room:
            return again
        again = splicer.refuse(again, "too_long")
    ids = splicer.bridge.render(
        conversation.messages,
        tools=conversation.tools,
        template_kwargs=conversation.template_kwargs,
        add_generation_prompt=conversation.add_generation_prompt,
    )
    if ids is None or len(ids) > room:
        return None
    return Plan("trimmed", prompt_ids=ids, context=again.context)


def _counter(bridge: TemplateBridge, conversation: Conversation) -> Callable[..., int | None]:
    def count(messages: list[Message], at_most: int = 0) -> int | None:
        """Tokens of the template's render; exact only above `at_most`."""
        return bridge.count(
            messages,
            at_most,
            tools=conversation.tools,
            template_kwargs=conversation.template_kwargs,
            add_generation_prompt=conversation.add_generation_prompt,
        )

    return count


def _emptied(messages: list[Message], places: range) -> list[Message]:
    return [{**message, "content": ""} if at in places else message for at, message in enumerate(messages)]
