"""The chat route of vLLM, tied to `turn.Turn`, and what all API surfaces share.

Promise: whatever fails here, the request goes on as vLLM would have answered it (L7).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
)
from vllm.exceptions import VLLMValidationError
from vllm.renderers import merge_kwargs

from prr_plugins.common.serving import request_fields
from prr_plugins.common.serving.request_turn import tenant_of
from prr_plugins.vllm.parser import LosslessParser
from prr_plugins.vllm.runtime import Runtime
from prr_plugins.vllm.turn import CONVERTED, Preview, Turn

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

logger = logging.getLogger(__name__)

_RUNTIME = "prr_runtime"


# ---------------------------------------------------------------------------------------- wrappers (see hooks.HOOKS)


def enters(
    original: Callable[..., Any], begin: Callable[[Any, Runtime, Any, Any], object]
) -> Callable[..., Awaitable[Any]]:
    """The method of a serving object where requests come in, which alone sees their headers: our fields are checked
    there, and `begin` is given the serving object, its runtime, the request and the raw request."""

    @functools.wraps(original)
    async def enter(self: Any, request: Any, raw_request: Any = None) -> Any:
        runtime = runtime_of(self)
        if runtime is not None:
            if wrong := request_fields.mistake(request.model_extra or {}):
                return self.create_error_response(wrong[1], param=wrong[0])
            try:
                begin(self, runtime, request, raw_request)
            except Exception as e:
                runtime.capture_failed(e)
        return await original(self, request, raw_request)

    return enter


def wrap_create_chat_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a chat completion comes in."""
    return enters(original, follow)


def runtime_of(serving: Any) -> Runtime | None:
    """What a serving object of vLLM's has of ours, if its parser is ours."""
    parser = serving.online_renderer.parser
    if parser is None or not issubclass(parser, LosslessParser):
        return None
    return cast("Runtime | None", getattr(serving.online_renderer, _RUNTIME, None))


def follow(serving: Any, runtime: Runtime, request: Any, raw_request: Any) -> Turn:
    """The turn of a request that came in; `Turn.of(request)` has it from now on. raw_request: None where not known."""
    salt = [("salt", getattr(request, "cache_salt", None))]
    tenant = tenant_of(salt, raw_request, runtime.settings.tenant_header)
    lora = request.model if request.model in getattr(serving.models, "lora_requests", ()) else None
    turn = Turn(runtime, request, tenant, runtime.model, lora)
    if CONVERTED in request.__dict__:
        turn.decodes_arguments = True
        turn.history = request.__dict__[CONVERTED]
        turn.late_system_as_user = turn.history is not None
    turn.attach(request)
    return turn


def follow_quietly(
    serving: Any, runtime: Runtime, request: Any, raw_request: Any, preview: Preview | None = None
) -> Turn | None:
    """`follow`, with a fault counted and nothing followed. preview: nothing is generated, see `Turn`."""
    try:
        turn = follow(serving, runtime, request, raw_request)
        turn.preview = preview
        return turn
    except Exception as e:
        runtime.capture_failed(e)
        return None


def wrap_preprocess_chat(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where messages become a prompt: hand vLLM the ids, through the field it takes ids from."""

    @functools.wraps(original)
    async def preprocess_chat(
        self: Any,
        request: Any,
        messages: list[Any],
        default_template: str | None,
        default_template_content_format: Any,
        default_template_kwargs: dict[str, Any] | None,
        tool_dicts: list[dict[str, Any]] | None = None,
        parser: type | None = None,
        **kwargs: Any,
    ) -> Any:
        turn = Turn.of(request)
        transfer = getattr(request, "kv_transfer_params", None)
        if turn is not None:
            materialise(messages)
            params = request.build_chat_params(default_template, default_template_content_format)
            template_kwargs = merge_kwargs(default_template_kwargs, params.chat_template_kwargs)
            ids = await spliced(turn, messages, template_kwargs, tool_dicts)
            if ids is not None:
                request.kv_transfer_params = {**(transfer or {}), "prompt_token_ids": ids}
        conversation, engine_inputs = await original(
            self,
            request,
            messages,
            default_template,
            default_template_content_format,
            default_template_kwargs,
            tool_dicts,
            parser,
            **kwargs,
        )
        if turn is not None:
            if transfer is None:
                request.kv_transfer_params = None  # vLLM takes the ids out and leaves an empty dict
            turn.used(engine_inputs)
        return conversation, engine_inputs

    return preprocess_chat


def wrap_render_chat(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same for GPT-OSS, whose prompts vLLM makes by Harmony and not in `preprocess_chat`."""

    @functools.wraps(original)
    async def render_chat(self: Any, request: ChatCompletionRequest, **kwargs: Any) -> Any:
        turn = Turn.of(request) if self.use_harmony else None
        if turn is None:
            return await original(self, request, **kwargs)
        materialise(request.messages)
        without_tools = request.tool_choice == "none" and self.exclude_tools_when_tool_choice_none
        tools = None if request.tools is None or without_tools else [tool.model_dump() for tool in request.tools]
        effort = {} if request.reasoning_effort is None else {"reasoning_effort": request.reasoning_effort}
        ids = await spliced(turn, request.messages, effort, tools)
        if ids is not None:
            request.kv_transfer_params = {**(request.kv_transfer_params or {}), "prompt_token_ids": ids}
        result = await original(self, request, **kwargs)
        if isinstance(result, tuple):  # else an error
            turn.used(result[1])
        return result

    return render_chat


async def spliced(turn: Turn, *args: Any) -> list[int] | None:
    """`Turn.splice`, with whatever goes wrong there ending in vLLM's own render."""
    try:
        return await turn.splice(*args)
    except VLLMValidationError:
        raise
    except Exception as e:
        turn.failed(e)
        return None


def materialise(messages: list[Any]) -> None:
    """Validation may leave a part list as a one-shot iterator; reading it here must not eat it."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if content is not None and not isinstance(content, (str, list)):
            message["content"] = list(content)


def wrap_full_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a whole response is made."""

    @functools.wraps(original)
    async def chat_completion_full_generator(
        self: Any,
        request: ChatCompletionRequest,
        result_generator: AsyncIterator[RequestOutput],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        turn = Turn.of(request)
        if turn is None:
            return await original(self, request, result_generator, *args, **kwargs)
        response = await original(self, request, turn.watch(result_generator), *args, **kwargs)
        if isinstance(response, ChatCompletionResponse):
            try:
                await turn.finish_response(response)
            except Exception as e:
                turn.runtime.capture_failed(e)
        return response

    return chat_completion_full_generator


def wrap_stream_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a stream is made."""

    @functools.wraps(original)
    def chat_completion_stream_generator(
        self: Any,
        request: ChatCompletionRequest,
        result_generator: AsyncIterator[RequestOutput],
        *args: Any,
        **kwargs: Any,
    ) -> AsyncGenerator[str, None]:
        turn = Turn.of(request)
        if turn is None:
            return cast(AsyncGenerator[str, None], original(self, request, result_generator, *args, **kwargs))
        events = original(self, request, turn.watch(result_generator), *args, **kwargs)
        return turn.finish_stream(events, self.enable_force_include_usage)

    return chat_completion_stream_generator
