"""`/v1/responses` of vLLM, tied to `turn.Turn`.

Promise: a turn is spliced and captured as on the chat route, or vLLM goes its own way. Items become chat messages by
vLLM's own conversion; what one turn answered is one message (`one_a_turn`). Behind a `previous_response_id` the history
is the one that was answered, calls and reasoning included, which vLLM itself leaves out.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prr_plugins.common.messages import Message
from prr_plugins.vllm.chat import enters, follow, materialise, spliced
from prr_plugins.vllm.parser import LosslessParser
from prr_plugins.vllm.turn import Choice, Turn

if TYPE_CHECKING:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse

logger = logging.getLogger(__name__)

_HISTORIES = "_prr_histories"
_KEPT_RESPONSES = 10_000


def one_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Assistant messages in a row as one: the items of a turn become several where text stands behind a call."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.get("role") != "assistant" or message.get("role") != "assistant":
            merged.append(dict(message))
            continue
        for name in ("content", "reasoning"):
            if message.get(name):
                last[name] = _text(last.get(name)) + _text(message[name])
        if message.get("tool_calls"):
            last["tool_calls"] = [*(last.get("tool_calls") or ()), *message["tool_calls"]]
    return merged


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content or ""


def _conversation(histories: OrderedDict[str, list[Message]], request: ResponsesRequest) -> list[Message] | None:
    """The request's history in chat shape; None where it goes on from a response that we know nothing of."""
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    before: list[Any] | None = None
    if request.previous_response_id is not None:
        before = histories.get(request.previous_response_id)
        if before is None:
            return None
    items: Any = request.input
    if not isinstance(items, str):
        materialise(items)
        items = [dict(item) if isinstance(item, dict) else item for item in items]  # the conversion may add to them
    made = construct_input_messages(request_instructions=request.instructions, request_input=items, prev_msg=before)
    return one_a_turn([dict(message) for message in made])


def _histories(renderer: Any) -> OrderedDict[str, list[Message]]:
    """By response id: the conversation up to that response, the answer included."""
    histories: OrderedDict[str, list[Message]] = renderer.__dict__.setdefault(_HISTORIES, OrderedDict())
    return histories


def wrap_create_responses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a request comes in."""
    return enters(original, follow)


def wrap_render_responses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where items become a prompt. For GPT-OSS vLLM makes it by Harmony, not in `preprocess_chat`."""

    @functools.wraps(original)
    async def render_responses(self: Any, request: ResponsesRequest, **kwargs: Any) -> Any:
        turn = Turn.of(request)
        if turn is None:
            return await original(self, request, **kwargs)
        try:
            turn.history = _conversation(_histories(self), request)
            if turn.history is None:
                turn.cannot_follow = "previous_response"
        except Exception:  # vLLM's conversion refuses them; so will vLLM, unless Harmony has another
            turn.cannot_follow = "unsupported_items"
        if request.previous_input_messages:
            turn.cannot_follow = "previous_input_messages"
        ids = None
        if self.use_harmony:
            from vllm.entrypoints.openai.responses.utils import construct_tool_dicts

            effort = request.reasoning.effort if request.reasoning else None
            tools = construct_tool_dicts(request.tools, request.tool_choice)
            ids = await spliced(turn, [], {} if effort is None else {"reasoning_effort": effort}, tools)
        result = await original(self, request, **kwargs)
        if self.use_harmony and hasattr(result, "engine_input"):
            if ids is not None:
                taken = {**result.engine_input, "prompt_token_ids": ids}
                result = dataclasses.replace(result, engine_input=taken)
            turn.used([result.engine_input])
        return result

    return render_responses


def wrap_make_response_parser(original: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM reads GPT-OSS's Responses with its own Harmony parser and takes no other."""

    @functools.wraps(original)
    def _make_response_parser(self: Any, request: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.use_harmony or self.parser is None or not issubclass(self.parser, LosslessParser):
            return original(self, request, tokenizer, *args, **kwargs)
        return _harmony_parser()(tokenizer, request.tools, model_config=self.model_config)

    return _make_response_parser


@functools.cache
def _harmony_parser() -> type:
    from vllm.parser.harmony import HarmonyParser
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    halves = {
        "reasoning_parser_cls": ReasoningParserManager.get_reasoning_parser("openai_gptoss"),
        "tool_parser_cls": ToolParserManager.get_tool_parser("openai"),
    }
    return type("StockHarmonyParser", (HarmonyParser,), halves)


def _watch_context(turn: Turn, context: Any) -> None:
    """Note the engine's outputs as they are added to a response's context."""
    append = context.append_output

    def append_output(output: Any) -> None:
        try:
            turn.note(output)
        except Exception as e:
            turn.runtime.capture_failed(e)
        append(output)

    context.append_output = append_output


def wrap_responses_stream_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a stream is made."""

    @functools.wraps(original)
    def responses_stream_generator(
        self: Any,
        request: ResponsesRequest,
        sampling_params: Any,
        result_generator: Any,
        context: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        turn = Turn.of(request)
        if turn is not None:
            _watch_context(turn, context)
        return original(self, request, sampling_params, result_generator, context, *args, **kwargs)

    return responses_stream_generator


def wrap_responses_full_generator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a response is complete; a stream ends here too, before its last event."""

    @functools.wraps(original)
    async def responses_full_generator(
        self: Any,
        request: ResponsesRequest,
        sampling_params: Any,
        result_generator: Any,
        context: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        turn = Turn.of(request)
        if turn is None:
            return await original(self, request, sampling_params, result_generator, context, *args, **kwargs)
        if not turn.choices:  # not a stream
            _watch_context(turn, context)
        response = await original(self, request, sampling_params, result_generator, context, *args, **kwargs)
        if hasattr(response, "output"):  # else an error
            try:
                await _finish_response(self, turn, context, response)
            except Exception as e:
                turn.runtime.capture_failed(e)
        return response

    return responses_full_generator


async def _finish_response(serving: Any, turn: Turn, context: Any, response: ResponsesResponse) -> None:
    from vllm.entrypoints.openai.responses.utils import construct_chat_messages_with_tool_call

    request, choice = turn.request, turn.choices.get(0)
    answered = one_a_turn([dict(m) for m in construct_chat_messages_with_tool_call(list(response.output))])
    message = answered[0] if answered else {"role": "assistant", "content": ""}
    if turn.history is not None and request.store:
        histories = _histories(serving.online_renderer)
        histories[response.id] = [*turn.history, message]
        while len(histories) > _KEPT_RESPONSES:
            histories.popitem(last=False)
    if turn.hides_prompt:
        response.input_messages = None
    if turn.report:
        response.prr = turn.outcome()
    if choice is None:
        return
    if not turn.one_prompt:
        turn.runtime.metrics.add("prr_records_total", 1, "refused", "builtin_tools")
        return
    choice.parser = _reparsed(serving, turn, choice) if serving.use_harmony else context.response_parser
    await turn.record(choice, message)


def _reparsed(serving: Any, turn: Turn, choice: Choice) -> Any:
    """What our parser makes of a completion that vLLM's own has parsed for the client."""
    parser = serving.parser(serving.renderer.get_tokenizer(), turn.request.tools)
    parser.set_prompt_token_ids(turn.prompt_ids)
    parser.parse("".join(choice.text), turn.request, model_output_token_ids=choice.ids)
    return parser
