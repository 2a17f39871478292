"""The chat route of SGLang, tied to `turn.Turn`: the hooks of `hooks.HOOKS`, each given the original and its arguments.

Promise: whatever fails here, the request goes on as SGLang would have answered it (L7). A request without a `Turn`
(other API surfaces, `/tokenize`) passes through untouched.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, model_serializer
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    MessageProcessingResult,
    ToolCall,
)

from prr_plugins.common.serving import request_fields
from prr_plugins.common.serving.sent_message import edit_event
from prr_plugins.sglang import hooks
from prr_plugins.sglang.choice import Choice, stream_chunks, tool_call_models
from prr_plugins.sglang.runtime import RUNTIME, Runtime
from prr_plugins.sglang.startup import is_ours
from prr_plugins.sglang.turn import ASKED, MissRefused, Turn, reused_prompt

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import GenerateReqInput

logger = logging.getLogger(__name__)


class OutputAdapter:
    """SGLang's interface for formats that parse their own output (`ChatEncodingOutputAdapter`)."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving

    def parse_chat_response(
        self, *, request: ChatCompletionRequest, output_ids: list[int], finish_reason: dict[str, Any] | None
    ) -> tuple[str | None, str, list[ToolCall] | None, dict[str, Any] | None]:
        turn = Turn.follow(self._serving, request)
        index, result = turn.claim(output_ids)
        choice = turn.choice(index, result, stream=False)
        choice.whole(result["text"], output_ids, finish_reason["type"] if finish_reason else "stop")
        turn.record(choice, result.get("prompt_token_ids"), streamed=False)
        if finish_reason and finish_reason["type"] == "stop" and choice.sent.calls and not choice.has_open_calls:
            finish_reason = {**finish_reason, "type": "tool_calls", "matched": None}
        return (
            "".join(choice.sent.reasoning) or None,
            "".join(choice.sent.content),
            tool_call_models(choice),
            finish_reason,
        )

    def stream_chat_chunks(
        self,
        *,
        content: dict[str, Any],
        index: int,
        request: ChatCompletionRequest,
        created: int,
        parser_dict: dict[int, Any],
        has_tool_calls: dict[int, bool],
        choice_logprobs: dict[str, Any] | None,
        finish_reason_type: str | None,
        usage: dict[str, Any] | None,
    ) -> list[str]:
        turn = Turn.follow(self._serving, request)
        fields = {"chunk_id": content["meta_info"]["id"], "created": created, "model": request.model, "index": index,
                  "usage": usage}  # fmt: skip
        choice = parser_dict[index] = turn.choice(index, content, stream=True)
        text, ids = self._new(choice, content, finish_reason_type)
        chunks = stream_chunks(choice.feed(text, ids), logprobs=choice_logprobs, **fields)
        if finish_reason_type is not None:
            chunks += stream_chunks(choice.finish(finish_reason_type), logprobs=None, **fields)
            turn.record(choice, content.get("prompt_token_ids"), streamed=True)
        if choice.sent.calls:
            has_tool_calls[index] = True
        return chunks

    def _new(self, choice: Choice, content: dict[str, Any], finish_reason_type: str | None) -> tuple[str, list[int]]:
        """What is new in an output: SGLang shows all so far, or (`--incremental-streaming-output`) what has come."""
        meta, ids = content["meta_info"], content["output_ids"]
        if not self._serving.tokenizer_manager.incremental_streaming_output:
            # The list is the live one: `completion_tokens` says how much of it belongs to this output.
            return content["text"][choice.characters :], ids[len(choice.ids) : meta["completion_tokens"]]
        if finish_reason_type == "abort":  # shows again what was shown
            ids = ids[: max(meta["completion_tokens"] - len(choice.ids), 0)]
        return content["text"], ids


class _Response(ChatCompletionResponse):
    """A response with the fields of ours; SGLang's types drop what they do not declare."""

    _turn: Turn = PrivateAttr()

    @model_serializer(mode="wrap")
    def _with_raw_fields(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        turn = self._turn
        data = handler(self)
        if data.get("sglext") is None:
            data.pop("sglext", None)
        for sent in data["choices"]:
            choice = turn.choices[sent["index"]]
            sent.update(choice.raw_fields(ids=turn.shows_ids))
            for call, made in zip(sent["message"].get("tool_calls") or (), choice.sent.calls.values(), strict=True):
                call["function"]["raw_arguments"] = made.raw_arguments
        if turn.report:
            data["prr"] = turn.outcome()
        return data


def _runtime(serving: Any) -> Runtime | None:
    return getattr(serving, RUNTIME, None)


def _reads_output(serving: Any) -> bool:
    """Whether completions are ours to read: all the places are there that it takes."""
    runtime = _runtime(serving)
    return runtime is not None and hooks.READING.isdisjoint(runtime.missing_hooks)


# ---------------------------------------------------------------------------------------- hooks (see hooks.HOOKS)


def show_special_tokens(original: Callable[..., None], self: Any, request: ChatCompletionRequest) -> None:
    """Have the detokenizer show special tokens: markers are such, and the raw text is the text with all of them."""
    original(self, request)
    if is_ours(self):
        request.skip_special_tokens = False


async def handle_request(original: Callable[..., Any], self: Any, request: Any, raw_request: Any) -> Any:
    """Where a request comes in: the only place that sees fields SGLang does not know."""
    if _runtime(self) is not None and raw_request is not None:
        try:
            body = await raw_request.json()  # read before, and kept, by FastAPI
        except Exception:
            body = None
        if isinstance(body, dict):
            if wrong := request_fields.mistake(body):
                return self.create_error_response(wrong[1], param=wrong[0])
            request.__dict__[ASKED] = {name: body[name] for name in (*request_fields.NAMES, "store") if name in body}
    return await original(self, request, raw_request)


def convert_to_internal_request(
    original: Callable[..., Any], self: Any, request: ChatCompletionRequest, raw_request: Any = None
) -> tuple[GenerateReqInput, ChatCompletionRequest]:
    """Where a request becomes the engine's. Runs in a thread pool."""
    if _runtime(self) is None:
        return original(self, request, raw_request)
    turn = Turn.follow(self, request, raw_request)
    try:
        adapted, request = original(self, request, raw_request)
    except Exception:
        turn.used(None)
        raise
    turn.used(adapted.input_ids)
    adapted.return_prompt_token_ids = True  # shown to us; SGLang shows them to the client only if that one asked
    return adapted, request


def apply_jinja_template(
    original: Callable[..., Any],
    self: Any,
    request: ChatCompletionRequest,
    tools: list[dict[str, Any]] | None,
    is_multimodal: bool,
) -> MessageProcessingResult:
    """Where messages become a prompt."""
    turn = Turn.of(request)
    if turn is not None and turn.serving is self:
        try:
            ids = turn.splice(tools, is_multimodal)
        except MissRefused:
            raise
        except Exception as e:
            turn.failed(e)
            ids = None
        if ids is not None:
            return reused_prompt(ids, request)
    return original(self, request, tools, is_multimodal)


def encoding_output(original: Callable[..., Any], self: Any) -> Any:
    """Where SGLang looks for something that parses the output as a whole."""
    return OutputAdapter(self) if _reads_output(self) else original(self)


def build_chat_response(
    original: Callable[..., Any], self: Any, request: ChatCompletionRequest, ret: list[dict[str, Any]], created: int
) -> Any:
    """Where a whole response is made."""
    if not _reads_output(self):
        return original(self, request, ret, created)
    turn = Turn.follow(self, request)
    turn.watch(ret)
    response = original(self, request, ret, created)
    if not isinstance(response, ChatCompletionResponse):
        return response
    made = _Response.model_construct(**dict(response))
    made._turn = turn
    return made


def generate_chat_stream(
    original: Callable[..., Any], self: Any, adapted_request: Any, request: ChatCompletionRequest, raw_request: Any
) -> AsyncGenerator[str, None]:
    """Where a stream is made."""
    events: AsyncGenerator[str, None] = original(self, adapted_request, request, raw_request)
    if not _reads_output(self):
        return events
    return _finish_stream(events, Turn.follow(self, request))


async def _finish_stream(events: AsyncGenerator[str, None], turn: Turn) -> AsyncGenerator[str, None]:
    """The events of a stream, the last ones completed by what we have to say.

    Nothing waits while the completion runs. Behind its end an event waits for the next one, to know the last.
    """
    waiting: str | None = None
    try:
        async for event in events:
            ended = waiting is not None or '"finish_reason":"' in event  # quotes inside a JSON string are escaped
            if not ended:
                yield event
                continue
            if waiting is not None:
                yield _complete(waiting, turn, last=event.startswith("data: [DONE]"))
            waiting = event
        if waiting is not None:
            yield waiting
    finally:
        await events.aclose()


def _complete(event: str, turn: Turn, *, last: bool) -> str:
    def change(data: dict[str, Any]) -> None:
        for sent in data.get("choices") or ():
            choice = turn.choices.get(sent["index"])
            if choice is not None and sent.get("finish_reason") is not None:
                sent.update(choice.raw_fields(ids=turn.shows_ids))
        if last and turn.report:
            data["prr"] = turn.outcome()

    try:
        return edit_event(event, change) if event.startswith("data: {") else event
    except Exception as e:
        turn.runtime.capture_failed(e)
        return event
