"""The one `Parser` that serves a request: a completion in, vLLM's message or deltas out.

Promises: whole and streamed give the same reasoning, content and calls; nothing is stripped; a fault of ours never
fails a request: the text not yet shown goes out as content (L7), counted and logged once.

vLLM makes one instance per choice and calls either `parse` or `parse_delta`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from openai.types.responses import ToolChoiceCustom, ToolChoiceFunction
from vllm.entrypoints.generate.base.protocol import FunctionCall
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionNamedToolChoiceParam
from vllm.parser.abstract_parser import DelegatingParser
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.tool_parsers.streaming import extract_named_tool_call_streaming, extract_required_tool_call_streaming

from prr_plugins.common.parsing.completion import Delta, ParsedCompletion, Policy
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.reasoning_tokens import reasoning_markers
from prr_plugins.common.parsing.stream_parser import StreamParser
from prr_plugins.common.serving import request_fields
from prr_plugins.common.serving.guarded_parser import GuardedParser
from prr_plugins.common.serving.request_turn import tool_dicts
from prr_plugins.common.serving.sent_message import SentCall, SentMessage
from prr_plugins.vllm import hooks
from prr_plugins.vllm.deltas import DeltaAssembler
from prr_plugins.vllm.standalone_parsers import GUIDED_WHOLE, function_call, show_special_tokens
from prr_plugins.vllm.turn import claim

if TYPE_CHECKING:
    from vllm.entrypoints.generate.base.protocol import DeltaMessage

logger = logging.getLogger(__name__)

_NAMED = (ChatCompletionNamedToolChoiceParam, ToolChoiceFunction, ToolChoiceCustom)


class LosslessParser(DelegatingParser):
    """Parses by one `StreamParser`, whichever of the two flags chose us. Subclassed once per server, see `compose`.

    What `DelegatingParser` still does: guided decoding of calls (`adjust_request`), ids in Kimi's style, and the JSON
    that vLLM forces for required and named calls of a format without structural tag.
    """

    always_adjust_request = True  # special tokens must be shown without tools as well
    prr_format: ClassVar[Format]
    runtime: ClassVar[Any] = None  # the server's `runtime.Runtime`, once it is there

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, tools, *args, **kwargs)
        self._tool_dicts = tool_dicts(tools)
        self._markers = reasoning_markers(tokenizer, self.prr_format)
        self._prompt_ids: Sequence[int] | None = None
        self._parser: GuardedParser | None = None
        self._deltas = DeltaAssembler()
        self._shown = ""  # content of a guided completion so far, see `_forced_delta`
        self._named_sent = False
        self._is_forced = False  # vLLM forced the calls to be JSON instead of the model's own format

    # ------------------------------------------------------------------------------------ what vLLM calls

    def adjust_request(self, request: Any) -> Any:
        if self.prr_format.name in GUIDED_WHOLE:
            from vllm.parser import harmony  # makes the grammar of its calls known, too

            if hooks.HOOKS.check(hooks.HARMONY_FORMAT) is None:
                request = harmony._adjust_output_format(request)
        return show_special_tokens(super().adjust_request(request))

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt_ids = prompt_token_ids

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        finish_reason = claim(request, self, model_output_token_ids)
        parser = self._open(request, "complete")
        deltas = parser.whole(model_output, model_output_token_ids, finish_reason)
        parsed = parser.parsed
        if parsed is None:
            return None, "".join(delta.text for delta in deltas), None
        if self._is_forced:
            calls, content = self._extract_tool_calls(parsed.content, request, enable_auto_tools)
            return parsed.reasoning, content, calls
        made = [function_call(c, self._make_tool_call_id(c.name)) for c in parsed.parsed_tool_calls]
        return parsed.reasoning, parsed.content, made or None

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> DeltaMessage | None:
        finish_reason = claim(request, self, delta_token_ids)
        parser = self._parser
        if parser is None:
            if prompt_token_ids is not None:
                self._prompt_ids = prompt_token_ids
            policy: Policy = "eager" if self.runtime is None else self.runtime.settings.stream_arguments
            policy = request_fields.stream_arguments(getattr(request, "model_extra", None) or {}, policy)
            parser = self._open(request, policy)
        deltas = parser.feed(delta_text, delta_token_ids)
        if finished:
            deltas += parser.finish(finish_reason)
        if self._is_forced:
            return self._forced_delta(deltas, request)
        return self._deltas.message(deltas)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        span = self.reasoning_span(token_ids)
        return span[1] - span[0] if span else 0

    # ------------------------------------------------------------------------------------ what `turn` asks

    @property
    def parsed(self) -> ParsedCompletion | None:
        """The whole result, once the completion is finished; None before, and after a fault."""
        return self._parser.parsed if self._parser is not None else None

    @property
    def reasoning_open(self) -> bool | None:
        """Whether the completion ended inside reasoning; None after a fault."""
        return self._parser.reasoning_open if self._parser is not None else None

    @property
    def sent(self) -> SentMessage:
        """What was streamed so far."""
        return self._deltas.sent

    def reasoning_span(self, completion_ids: Sequence[int]) -> tuple[int, int] | None:
        """Token range of the reasoning in `completion_ids`, None where there is none."""
        if self.reasoning_parser_cls is None:
            return None
        opened = self._parser is not None and self._parser.opened
        return self._markers.parsed_reasoning_span(completion_ids, opened, self.parsed, self.reasoning_open)

    # ------------------------------------------------------------------------------------ the completion

    def _open(self, request: Any, policy: Policy) -> GuardedParser:
        self._deltas = DeltaAssembler(self._new_id, reasoning=request.include_reasoning)
        self._is_forced = self._forced(request)

        def make() -> StreamParser:
            self._initialize_history_tool_call_cnt(request)
            return StreamParser(
                self.prr_format,
                tools=self._tool_dicts,
                prompt_tail=self._markers.tail_text(self._prompt_ids) if self._prompt_ids else "",
                reasoning=self.reasoning_parser_cls is not None,
                tool_calls=self._calls(request),
                stream_arguments=policy,
                tokenizer=self.model_tokenizer,
            )

        hides = not request.include_reasoning
        self._parser = GuardedParser(self.prr_format, make, self.runtime, logger, hides_reasoning=hides)
        return self._parser

    def _calls(self, request: Any) -> bool:
        """Whether calls are read. Where vLLM would throw them away the markup stays in the content."""
        return (
            self.tool_parser_cls is not None
            and bool(request.tools)
            and request.tool_choice != "none"
            and not self._is_forced
        )

    def _new_id(self, name: str) -> str:
        return self._make_tool_call_id(name) or make_tool_call_id()

    # ------------------------------------------------------------------------------------ calls as guided JSON

    def _forced(self, request: Any) -> bool:
        """See `_is_forced`."""
        choice = request.tool_choice
        return (
            self.tool_parser is not None
            and bool(request.tools)
            and self.tool_parser.supports_required_and_named
            and (choice == "required" or isinstance(choice, _NAMED))
        )

    def _forced_delta(self, deltas: list[Delta], request: Any) -> DeltaMessage | None:
        """As vLLM streams them: the content is one call's arguments, or an array of calls."""
        before = self._shown
        self._shown += "".join(d.text for d in deltas if d.kind == "content")
        new = self._shown[len(before) :]
        message = self._deltas.message([d for d in deltas if d.kind == "reasoning"])
        state = self._stream_state
        calls = None
        if new and isinstance(request.tool_choice, _NAMED):
            calls, self._named_sent = extract_named_tool_call_streaming(
                delta_text=new,
                function_name=self._get_function_name(request),
                function_name_returned=self._named_sent,
                tool_call_idx=state.history_tool_call_cnt,
                tool_call_id_type=state.tool_call_id_type,
                tokenizer=self.model_tokenizer,
            )
        elif new:
            calls, _ = extract_required_tool_call_streaming(
                previous_text=before,
                current_text=self._shown,
                tool_call_idx=state.history_tool_call_cnt,
                tool_call_id_type=state.tool_call_id_type,
            )
        if calls is None:
            return message
        for call in calls.tool_calls:
            if call.id is not None:
                state.history_tool_call_cnt += 1
                self.sent.calls[call.index] = SentCall(call.id, None, call.function.name)
            if call.function.arguments:
                self.sent.calls[call.index].arguments.append(call.function.arguments)
        if message is not None:
            calls.reasoning = message.reasoning
        return calls


@lru_cache(maxsize=32)
def compose(
    fmt: Format, reasoning_parser_cls: type | None, tool_parser_cls: type | None, strict_level: Any
) -> type[LosslessParser]:
    """The parser class of a server. Cached: vLLM composes one for each of its API surfaces."""
    fields = {
        "prr_format": fmt,
        "reasoning_parser_cls": reasoning_parser_cls,
        "tool_parser_cls": tool_parser_cls,
        "tool_strict_level": strict_level,
    }
    return type("PrrParser", (LosslessParser,), fields)
