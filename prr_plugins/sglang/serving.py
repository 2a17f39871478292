"""Follows one chat request through SGLang: splices its prompt, captures its turns, shows the client what it asked for.

Promises: the prompt is handed over as ids in the place where SGLang would render, or is SGLang's own render; a turn is
stored with the ids that were used and sampled and with the message as it was returned, before the client can answer
it; nothing is stored of an aborted or failed request; whatever fails here, the request goes on as SGLang would have
answered it (L7).

The functions below the `Turn` are the hooks of `hooks.HOOKS`: each gets the original and its arguments. A request
without a `Turn` (other API surfaces, `/tokenize`) passes through untouched.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, model_serializer
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    MessageProcessingResult,
    ToolCall,
)
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.runtime_context import get_disagg

from prr_plugins.common import overflow, request_fields
from prr_plugins.common.settings import SpliceMode
from prr_plugins.common.splice import Conversation, Plan
from prr_plugins.sglang import hooks
from prr_plugins.sglang.detectors import tool_dicts
from prr_plugins.sglang.output import Choice, ForcedCalls, edit_event, stream_chunks, tool_call_models
from prr_plugins.sglang.runtime import Runtime, copy_messages, template_kwargs

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import GenerateReqInput

logger = logging.getLogger(__name__)

_TURN = "_prr_turn"
_ASKED = "_prr_asked"
RUNTIME = "prr_runtime"
_FINISHED = frozenset({"stop", "length"})


class MissRefused(ValueError):
    """The request is to fail, not to be rendered (`PRR_ON_MISS=error`). SGLang answers ValueErrors with HTTP 400."""


class Turn:
    """One chat request, from its arrival to its last chunk."""

    def __init__(self, serving: Any, request: ChatCompletionRequest, tenant: str | None) -> None:
        asked: dict[str, Any] = request.__dict__.get(_ASKED) or {}
        self.runtime: Runtime = getattr(serving, RUNTIME)
        self.serving = serving
        self.request = request
        self.tenant = tenant
        self.report = bool(asked.get(request_fields.REPORT))
        self.mode: SpliceMode = self.runtime.mode(asked.get(request_fields.SPLICE))
        self.policy = request_fields.stream_arguments(asked, self.runtime.settings.stream_arguments)
        self.forbids_storing = asked.get("store") is False  # OpenAI's field
        self.plan: Plan | None = None
        self.recordable = False
        self.choices: dict[int, Choice] = {}
        self._tools = tool_dicts(serving._effective_tools(request))
        self._results: Sequence[dict[str, Any]] = ()

    @staticmethod
    def of(request: Any) -> Turn | None:
        """The turn of a request, if we follow it."""
        turn: Turn | None = request.__dict__.get(_TURN)
        return turn

    @staticmethod
    def follow(serving: Any, request: ChatCompletionRequest, raw_request: Any = None) -> Turn:
        """The turn of a request, made if there is none."""
        turn = Turn.of(request)
        if turn is None:
            header = getattr(serving, RUNTIME).settings.tenant_header
            turn = request.__dict__[_TURN] = Turn(serving, request, _tenant(request, raw_request, header))
        return turn

    # ------------------------------------------------------------------------------------ prompt

    def splice(self, tools: list[dict[str, Any]] | None, is_multimodal: bool) -> list[int] | None:
        """The prompt's ids, or None: the engine renders.

        Raises:
            MissRefused: `PRR_ON_MISS=error` and the history cannot be spliced.
        """
        splicer, request = self.runtime.splicer, self.request
        reason = self._cannot_follow()
        if reason is not None:
            self.plan = Plan("refused", reason)
            return None
        self.recordable = True
        conversation = Conversation(
            messages=copy_messages(request.messages),
            tools=tools,
            template_kwargs=template_kwargs(request),
            model=self.runtime.model,
            lora=self._lora(),
            tenant=self.tenant,
            template_id=self.runtime.template_id,
            continue_final_message=request.continue_final_message,
        )
        room = self.runtime.room(request.max_completion_tokens or request.max_tokens)
        plan = overflow.plan(splicer, conversation, self.mode, room)
        if plan.prompt_ids is not None and (reason := self._cannot_use(plan.prompt_ids, is_multimodal)):
            plan = splicer.refuse(plan, reason)
        self.plan = plan
        if plan.error is not None:
            raise MissRefused(plan.error)
        return plan.prompt_ids

    def _lora(self) -> str | None:
        request = self.request
        lora = self.serving._resolve_lora_path(request.model, request.lora_path)
        return None if lora is None else str(lora)

    def _cannot_follow(self) -> str | None:
        """Why the prompt will not be (only) what the template makes of the messages: no splice, no record."""
        request = self.request
        if self.mode == "off":
            return "off"
        if "chat_template" in (request.chat_template_kwargs or {}):
            return "request_template"
        if request.session_params is not None or request.session_id is not None:
            return "session"
        if request._format_add_generation_prompt is not None or request._format_add_special_tokens:
            return "prompt_format"
        if request.bootstrap_room is not None or get_disagg().disaggregation_mode != "null":
            return "disaggregated"  # the other leg renders the prompt by itself: both must have the same
        if self.serving.chat_encoding_spec is not None and (request.task or request.response_format):
            return "request_encoding"  # these encoders put more into the prompt than messages
        return None

    def _cannot_use(self, prompt_ids: list[int], is_multimodal: bool) -> str | None:
        """Why ids that the splicer gave are not used."""
        request = self.request
        if not self.runtime.fits(len(prompt_ids), request.max_completion_tokens or request.max_tokens):
            return "too_long"
        if is_multimodal and not self.serving._can_reuse_text_only_prompt_ids(_prompt(prompt_ids, request), True):
            return "multimodal_model"
        return None

    def failed(self, error: Exception) -> None:
        """Splicing failed; the engine renders."""
        logger.error("splicing failed (%s: %s); SGLang renders the prompt", type(error).__name__, error)
        self.plan = Plan("fallback", "error_splice")
        self.recordable = False

    def used(self, prompt_ids: Any) -> None:
        """The prompt is final: see that the engine took our ids, and count."""
        splicer = self.runtime.splicer
        if self.plan is None:
            self.plan = Plan("refused", "caller_ids" if self.request.input_ids is not None else "not_followed")
        elif self.plan.prompt_ids is not None and prompt_ids != self.plan.prompt_ids:
            logger.error("SGLang did not take the spliced prompt")
            self.plan = splicer.refuse(self.plan, "ids_not_taken")
        splicer.settle(self.plan)

    # ------------------------------------------------------------------------------------ completion

    def choice(self, index: int, result: dict[str, Any], *, stream: bool) -> Choice:
        """The parser of one completion; `result` is its first output."""
        if index not in self.choices:
            serving, request = self.serving, self.request
            self.choices[index] = Choice(
                self.runtime,
                result.get("prompt_token_ids"),
                self._tools,
                self.policy if stream else "complete",
                reasoning=bool(serving.reasoning_parser) and request.separate_reasoning,
                tool_calls=serving._tool_call_parsing_active(request),
                hold_reasoning=stream and not request.stream_reasoning,
                forced=ForcedCalls(serving._effective_tools(request)) if self._forced() else None,
            )
        return self.choices[index]

    def _forced(self) -> bool:
        """Whether SGLang forced the calls to be JSON instead of the model's own format."""
        serving, request = self.serving, self.request
        if isinstance(request.tool_choice, str) and request.tool_choice != "required":
            return False
        if not serving._tool_call_parsing_active(request):
            return False
        parser = FunctionCallParser(
            serving._effective_tools(request),
            serving.tool_call_parser,
            tokenizer=self.runtime.tokenizer,
            tool_choice=request.tool_choice,
        )
        return not parser.owns_tool_format()

    def watch(self, results: Sequence[dict[str, Any]]) -> None:
        """The engine's outputs of a whole response."""
        self._results = results

    def claim(self, ids: Any) -> tuple[int, dict[str, Any]]:
        """The output whose ids these are: SGLang hands on the very object that it got from the engine."""
        for index, result in enumerate(self._results):
            if result["output_ids"] is ids:
                return index, result
        raise LookupError("SGLang asks for a completion that it did not show")

    @property
    def shows_ids(self) -> bool:
        """Whether the client asked for the completion's ids, in any of SGLang's ways."""
        return bool(self.request.return_token_ids or self.serving._should_return_output_ids(self.request))

    def outcome(self) -> dict[str, Any]:
        """The `prr` report of the response."""
        return (self.plan or Plan("refused", "not_followed")).report()

    def record(self, choice: Choice, prompt_ids: Sequence[int] | None, *, streamed: bool) -> None:
        """Store one finished choice; a fault is counted and logged, never raised."""
        if self.plan is None or not self.recordable or choice.finish_reason not in _FINISHED:
            return
        if choice.failed or prompt_ids is None:
            return  # a parser's failure was counted
        try:
            if self.forbids_storing:
                self.runtime.metrics.add("prr_records_total", 1, "refused", "store_false")
                return
            turn = self.runtime.splicer.record(
                self.plan.context,
                prompt_ids,
                choice.ids,
                choice.message(),
                also=choice.other_forms() if streamed else (),
                reasoning_span=choice.reasoning_span,
                reasoning_open=choice.reasoning_open,
                native_call_ids=[call.native_id for call in choice.calls.values()],
            )
            if turn is not None and self.runtime.shared is not None:
                self.runtime.shared.share(turn)  # this is the event loop's thread: nobody waits
        except Exception as e:
            self.runtime.capture_failed(e)


class Output:
    """SGLang's interface for formats that parse their own output (`ChatEncodingOutputAdapter`)."""

    def __init__(self, serving: Any) -> None:
        self._serving = serving

    def parse_chat_response(
        self, *, request: ChatCompletionRequest, output_ids: list[int], finish_reason: dict[str, Any] | None
    ) -> tuple[str | None, str, list[ToolCall] | None, dict[str, Any] | None]:
        turn = Turn.follow(self._serving, request)
        index, result = turn.claim(output_ids)
        choice = turn.choice(index, result, stream=False)
        choice.feed(result["text"], output_ids)
        choice.finish(finish_reason["type"] if finish_reason else "stop")
        turn.record(choice, result.get("prompt_token_ids"), streamed=False)
        if finish_reason and finish_reason["type"] == "stop" and choice.calls and not choice.has_open_calls:
            finish_reason = {**finish_reason, "type": "tool_calls", "matched": None}
        return "".join(choice.reasoning) or None, "".join(choice.content), tool_call_models(choice), finish_reason

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
        if choice.calls:
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
            for call, made in zip(sent["message"].get("tool_calls") or (), choice.calls.values(), strict=True):
                call["function"]["raw_arguments"] = made.raw_arguments
        if turn.report:
            data["prr"] = turn.outcome()
        return data


def _prompt(prompt_ids: list[int], request: ChatCompletionRequest) -> MessageProcessingResult:
    return MessageProcessingResult(
        prompt="",
        prompt_ids=prompt_ids,
        image_data=None,
        audio_data=None,
        video_data=None,
        modalities=[],
        stop=request.stop,
    )


def _tenant(request: ChatCompletionRequest, raw_request: Any, header: str | None) -> str | None:
    for kind, value in (("salt", request.cache_salt), ("extra_key", request.extra_key)):
        if value is not None:
            return f"{kind}:{value}"
    if header is not None and raw_request is not None and (value := raw_request.headers.get(header)) is not None:
        return f"header:{value}"
    return None


def _runtime(serving: Any) -> Runtime | None:
    return getattr(serving, RUNTIME, None)


def _reads_output(serving: Any) -> bool:
    """Whether completions are ours to read: all the places are there that it takes."""
    runtime = _runtime(serving)
    return runtime is not None and hooks.READING.isdisjoint(runtime.missing_hooks)


# ---------------------------------------------------------------------------------------- hooks (see hooks.HOOKS)


def show_special_tokens(original: Callable[..., None], self: Any, request: ChatCompletionRequest) -> None:
    """Have the detokenizer show special tokens: markers are such, and the raw text is the text with all of them."""
    from prr_plugins.sglang.startup import is_ours

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
            request.__dict__[_ASKED] = {name: body[name] for name in (*request_fields.NAMES, "store") if name in body}
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
            return _prompt(ids, request)
    return original(self, request, tools, is_multimodal)


def encoding_output(original: Callable[..., Any], self: Any) -> Any:
    """Where SGLang looks for something that parses the output as a whole."""
    return Output(self) if _reads_output(self) else original(self)


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
