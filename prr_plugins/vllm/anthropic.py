"""`/v1/messages` of vLLM, and its token counts, tied to `turn.Turn`.

Promise: a turn is spliced and captured as on the chat route, or vLLM goes its own way. vLLM makes chat requests of
Anthropic's. Where the template refuses system messages in the middle, vLLM moves them all to the front, which changes
every later prompt from there on; we look at them in place.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prr_plugins.common import faults
from prr_plugins.vllm.chat import follow_quietly, materialise, runtime_of
from prr_plugins.vllm.turn import CONVERTED, Turn

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)

_RAW = "_prr_raw_request"


def wrap_to_chat_completion_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where an Anthropic request becomes a chat request: it keeps where the system messages stood."""

    @functools.wraps(original)
    def to_chat_completion_request(
        cls: Any, anthropic_request: Any, *, merge_inline_system: bool = False, **kwargs: Any
    ) -> Any:
        made = original(cls, anthropic_request, merge_inline_system=merge_inline_system, **kwargs)
        in_place = None
        if merge_inline_system and any(message.role == "system" for message in anthropic_request.messages):
            try:
                in_place = original(cls, anthropic_request, merge_inline_system=False, **kwargs).messages
                materialise(in_place)
            except Exception as e:
                logger.error("late system messages stay merged (%s)", faults.described(e))
        made.__dict__[CONVERTED] = in_place
        made.__dict__[_RAW] = anthropic_request.__dict__.get(_RAW)
        return made

    return to_chat_completion_request


def wrap_count_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    """Token counting: its chat request is made inside; the tenant's header is handed on to it."""

    @functools.wraps(original)
    async def count_tokens(self: Any, request: Any, raw_request: Any = None) -> Any:
        request.__dict__[_RAW] = (raw_request,)
        return await original(self, request, raw_request)

    return count_tokens


def wrap_render_chat_request(original: Callable[..., Any]) -> Callable[..., Any]:
    """On the way from a chat request to its prompt: a token count is seen here for the first time."""

    @functools.wraps(original)
    async def render_chat_request(self: Any, request: Any) -> Any:
        counted = request.__dict__.get(_RAW)
        runtime = runtime_of(self)
        if counted is not None and runtime is not None and Turn.of(request) is None:
            follow_quietly(self, runtime, request, counted[0], preview="count")
        return await original(self, request)

    return render_chat_request
