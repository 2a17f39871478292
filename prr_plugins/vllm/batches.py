"""Batches of chats on vLLM, tied to `turn.Turn`: a turn for each conversation.

Promise: a turn is spliced and captured as on the chat route, or vLLM goes its own way.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from prr_plugins.common.prompts.plan import Plan
from prr_plugins.vllm.chat import enters, follow_quietly
from prr_plugins.vllm.runtime import Runtime
from prr_plugins.vllm.turn import Turn

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)

_BATCH = "_prr_batch"


class _Batch:
    """The turns of a batch, one for each conversation. vLLM makes the single requests anew for parsing."""

    def __init__(self, make: Callable[[Any], Turn | None]) -> None:
        self._make = make
        self.turns: dict[int, Turn] = {}

    def attach(self, index: int, request: Any) -> None:
        turn = self.turns.get(index)
        if turn is None:
            turn = self._make(request)
        if turn is not None:
            turn.attach(request)
            self.turns[index] = turn


def wrap_create_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a batch comes in."""

    def begin(serving: Any, runtime: Runtime, request: Any, raw_request: Any) -> None:
        request.__dict__[_BATCH] = _Batch(lambda single: follow_quietly(serving, runtime, single, raw_request))

    return enters(original, begin)


def wrap_to_single_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a conversation of a batch becomes a request."""

    @functools.wraps(original)
    def to_chat_completion_request(self: Any, messages: list[Any]) -> Any:
        single = original(self, messages)
        batch = self.__dict__.get(_BATCH)
        if batch is not None:
            index = next((n for n, conversation in enumerate(self.messages) if conversation is messages), None)
            if index is not None:
                batch.attach(index, single)
        return single

    return to_chat_completion_request


def wrap_batch_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where the answer to a batch is made."""

    @functools.wraps(original)
    async def chat_completion_full_generator_batch(
        self: Any, request: Any, generators: list[AsyncIterator[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        batch = request.__dict__.get(_BATCH)
        if batch is None:
            return await original(self, request, generators, *args, **kwargs)
        turns: dict[int, Turn] = batch.turns
        watched = [turns[n].watch(results) if n in turns else results for n, results in enumerate(generators)]
        response = await original(self, request, watched, *args, **kwargs)
        if hasattr(response, "choices"):  # else an error
            for sent in response.choices:
                turn = turns.get(sent.index)
                if turn is None:
                    continue
                if turn.plan is None:  # Harmony makes the prompts of a batch without `render_chat`
                    turn.runtime.splicer.settle(Plan("refused", "harmony_batch"))
                try:
                    await turn.finish_choice(sent, 0)
                    if turn.report:
                        sent.prr = turn.outcome()
                except Exception as e:
                    turn.runtime.capture_failed(e)
        return response

    return chat_completion_full_generator_batch
