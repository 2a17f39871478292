"""One chat request's turn through SGLang: its prompt spliced, its completions captured.

Promises: the prompt is handed over as ids in the place where SGLang would render, or is SGLang's own render; a turn is
stored with the ids that were used and sampled and with the message as it was returned, before the client can answer
it; nothing is stored of an aborted or failed request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    MessageProcessingResult,
)
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.runtime_context import get_disagg

from prr_plugins.common.prompts import overflow
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.serving import request_fields
from prr_plugins.common.serving.request_turn import RequestTurn, tenant_of, tool_dicts
from prr_plugins.sglang.choice import Choice, ForcedCalls
from prr_plugins.sglang.runtime import RUNTIME, Runtime, copy_messages, template_kwargs

logger = logging.getLogger(__name__)

_TURN = "_prr_turn"
ASKED = "_prr_asked"
"""Where a request keeps the fields of ours that it came with."""
_FINISHED = frozenset({"stop", "length"})


class MissRefused(ValueError):
    """The request is to fail, not to be rendered (`PRR_ON_MISS=error`). SGLang answers ValueErrors with HTTP 400."""


class Turn(RequestTurn[Runtime]):
    """One chat request, from its arrival to its last chunk."""

    engine = "SGLang"
    logger = logger

    def __init__(self, serving: Any, request: ChatCompletionRequest, tenant: str | None) -> None:
        asked: dict[str, Any] = request.__dict__.get(ASKED) or {}
        super().__init__(getattr(serving, RUNTIME), request, tenant, asked)
        self.serving = serving
        self.policy = request_fields.stream_arguments(asked, self.runtime.settings.stream_arguments)
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
            salts = [("salt", request.cache_salt), ("extra_key", request.extra_key)]
            tenant = tenant_of(salts, raw_request, getattr(serving, RUNTIME).settings.tenant_header)
            turn = request.__dict__[_TURN] = Turn(serving, request, tenant)
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
        plan = overflow.plan_prompt(splicer, conversation, self.mode, room)
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
        if is_multimodal and not self.serving._can_reuse_text_only_prompt_ids(reused_prompt(prompt_ids, request), True):
            return "multimodal_model"
        return None

    def used(self, prompt_ids: Any) -> None:
        """The prompt is final: see that the engine took our ids, and count."""
        if self.plan is None:
            self.plan = Plan("refused", "caller_ids" if self.request.input_ids is not None else "not_followed")
        self.prompt_is(prompt_ids)

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

    def record(self, choice: Choice, prompt_ids: Sequence[int] | None, *, streamed: bool) -> None:
        """Store one finished choice; a fault is counted and logged, never raised."""
        if self.plan is None or not self.recordable or choice.finish_reason not in _FINISHED:
            return
        if choice.failed or prompt_ids is None:
            return  # a parser's failure was counted
        try:
            if self.refuses_storing():
                return
            turn = self.runtime.splicer.record(
                self.plan.context,
                prompt_ids,
                choice.ids,
                choice.sent.message("reasoning_content"),
                also=choice.sent.also_seen_as(choice.parsed) if streamed else (),
                reasoning_span=choice.reasoning_span,
                reasoning_open=choice.reasoning_open,
                native_call_ids=[call.native_id for call in choice.sent.calls.values()],
            )
            if turn is not None and self.runtime.shared is not None:
                self.runtime.shared.share(turn)  # this is the event loop's thread: nobody waits
        except Exception as e:
            self.runtime.capture_failed(e)


def reused_prompt(prompt_ids: list[int], request: ChatCompletionRequest) -> MessageProcessingResult:
    """Ids in the place of what SGLang renders."""
    return MessageProcessingResult(
        prompt="",
        prompt_ids=prompt_ids,
        image_data=None,
        audio_data=None,
        video_data=None,
        modalities=[],
        stop=request.stop,
    )
