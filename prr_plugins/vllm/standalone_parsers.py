"""The `ToolParser` and `ReasoningParser` classes behind every `prr_*` name.

vLLM asks for them by name. In a server `parser.LosslessParser` does the work and these only carry flags, but each also
works alone: the engine core loads the reasoning parser for guided decoding, and a server whose hook is gone
(`hooks`) composes the pair itself, with vLLM's own losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from vllm.reasoning import ReasoningParser
from vllm.tool_parsers import ToolParser

from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.reasoning_tokens import reasoning_markers
from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from prr_plugins.common.serving.request_turn import tool_dicts
from prr_plugins.vllm import guidance, names
from prr_plugins.vllm.deltas import DeltaAssembler

if TYPE_CHECKING:
    from vllm.entrypoints.generate.base.protocol import DeltaMessage

# Formats that vLLM guides from the first token on, reasoning included: its grammars for them describe the whole turn.
GUIDED_WHOLE = frozenset({"prr_gpt_oss"})


class PrrReasoningParser(ReasoningParser):
    """Reasoning alone: calls stay verbatim in the content."""

    prr_format: ClassVar[Format]

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._markers = reasoning_markers(tokenizer, self.prr_format)
        self._stream: StreamParser | None = None
        self._deltas = DeltaAssembler()
        self._prompt_tail: str | None = None
        switches = kwargs.get("chat_template_kwargs") or {}
        self._switched_off = switches.get("thinking", switches.get("enable_thinking")) is False

    @property
    def reasoning_start_str(self) -> str | None:
        return self.prr_format.reasoning_start

    @property
    def reasoning_end_str(self) -> str | None:
        return self.prr_format.reasoning_end

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        if self.prr_format.name in GUIDED_WHOLE or self._markers.reasoning_ended(input_ids):
            return True
        # A template that shows nothing of the switch: the request's own word, as vLLM's parsers take it.
        return self._switched_off and not self._markers.opens(input_ids)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        if self.prr_format.name in GUIDED_WHOLE:
            return True
        return self._markers.ends_in(input_ids, sum(1 for _ in delta_ids))

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return self._markers.after_reasoning(input_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        span = self._markers.reasoning_span(token_ids, opened=self._markers.ends_in(token_ids, len(token_ids)))
        return span[1] - span[0] if span else 0

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        self._prompt_tail = self._markers.tail_text(prompt_token_ids)

    def adjust_request(self, request: Any) -> Any:
        return show_special_tokens(request)

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        tail = self._tail(model_output)
        parsed = parse(self.prr_format, model_output, prompt_tail=tail, tool_calls=False)
        return parsed.reasoning, parsed.content

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        if self._stream is None:
            self._stream = StreamParser(self.prr_format, prompt_tail=self._tail(""), tool_calls=False)
        return self._deltas.message(self._stream.feed(delta_text, delta_token_ids))

    def _tail(self, completion: str) -> str:
        """The prompt's tail where vLLM told it; else the usual one: reasoning is open unless the model opens it."""
        if self._prompt_tail is not None:
            return self._prompt_tail
        start = self.prr_format.reasoning_start or ""
        return "" if completion.lstrip().startswith(start) else start


class PrrToolParser(ToolParser):
    """Calls alone: reasoning stays verbatim in the content."""

    prr_format: ClassVar[Format]

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._tool_dicts = tool_dicts(tools)
        self._stream: StreamParser | None = None
        self._deltas = DeltaAssembler()

    def adjust_request(self, request: Any) -> Any:
        return show_special_tokens(super().adjust_request(request))

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        parsed = parse(self.prr_format, model_output, tools=self._tool_dicts, reasoning=False)
        calls = [function_call(call) for call in parsed.parsed_tool_calls]
        return ExtractedToolCallInformation(
            tools_called=bool(calls),
            tool_calls=[ToolCall(id=c.id, function=c) if c.id else ToolCall(function=c) for c in calls],
            content=parsed.content,
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        if self._stream is None:
            self._stream = StreamParser(self.prr_format, tools=self._tool_dicts, reasoning=False)
        return self._deltas.message(self._stream.feed(delta_text, delta_token_ids))


def function_call(call: Any, call_id: str | None = None) -> FunctionCall:
    """vLLM's type of one finished call; `raw_arguments` is an extra field that reaches the client."""
    return FunctionCall(
        id=call.id or call_id, name=call.name, arguments=call.arguments, raw_arguments=call.raw_arguments
    )


def show_special_tokens(request: Any) -> Any:
    """Have the detokenizer show special tokens: markers are such, and the raw text is the text with all of them."""
    request.skip_special_tokens = False
    if hasattr(request, "spaces_between_special_tokens"):
        request.spaces_between_special_tokens = False
    return request


def __getattr__(class_name: str) -> Any:
    """vLLM imports a class by module and name once its parser is chosen; it is made then, of that one format."""
    for name in FORMATS:
        for half, make in _HALVES.items():
            if class_name == names.class_name(name, half):
                made = globals()[class_name] = make(name, class_name)
                return made
    raise AttributeError(f"module {__name__!r} has no attribute {class_name!r}")


def _make_tool_parser(name: str, class_name: str) -> type:
    made = type(class_name, (PrrToolParser,), {"__module__": __name__, "prr_format": get_format(name)})
    for attribute, value in guidance.of_format(name).items():
        setattr(made, attribute, value)
    return made


def _make_reasoning_parser(name: str, class_name: str) -> type:
    return type(class_name, (PrrReasoningParser,), {"__module__": __name__, "prr_format": get_format(name)})


_HALVES = {"ToolParser": _make_tool_parser, "ReasoningParser": _make_reasoning_parser}
