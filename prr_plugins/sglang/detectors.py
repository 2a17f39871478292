"""The detector classes behind every `prr_*` name, for `--tool-call-parser` and for `--reasoning-parser`.

Each inherits from SGLang's own detector of the family and replaces the parsing alone: guided decoding, the ids of the
reasoning's end in the scheduler, the reasoning default of a template and whatever else SGLang reads off a detector stay
as they are for the family's stock name.

In a chat the work is done by `choice`; these serve SGLang's other surfaces (`/parse_function_call`,
`/separate_reasoning`, Responses) and a server whose hooks are gone. There each half stands alone: what belongs to the
other one stays verbatim in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.function_call.core_types import StreamingParseResult as ToolResult
from sglang.srt.function_call.core_types import ToolCallItem
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.parser.reasoning_parser import StreamingParseResult as ReasoningResult

from prr_plugins.common.parsing.completion import Delta, ParsedCompletion
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from prr_plugins.common.serving.request_turn import tool_dicts


@dataclass(frozen=True)
class Family:
    """SGLang's own names for the models of a format."""

    tool: str
    reasoning: str


FAMILIES: dict[str, Family] = {
    "prr_qwen3": Family("qwen3_coder", "qwen3"),
    "prr_hermes": Family("qwen25", "qwen3"),
    "prr_glm": Family("glm47", "glm45"),
    "prr_gpt_oss": Family("gpt-oss", "gpt-oss"),
    "prr_deepseek_v3": Family("deepseekv31", "deepseek-v3"),
    "prr_deepseek_v4": Family("deepseekv4", "deepseek-v4"),
    "prr_kimi_k2": Family("kimi_k2", "kimi_k2"),
    "prr_kimi_k3": Family("kimi_k3", "kimi_k3"),
    "prr_gemma4": Family("gemma4", "gemma4"),
    "prr_mistral": Family("mistral", "mistral"),
    "prr_llama": Family("llama3", "deepseek-v3"),  # no reasoning: a detector that expects none unless told
    "prr_minimax_m2": Family("minimax-m2", "minimax"),
    "prr_minicpm5": Family("minicpm5", "qwen3"),
}


class ToolDetector:
    """Calls alone. Mixed in before the family's stock detector."""

    prr_format: Format
    _stream: StreamParser | None = None
    _seen: tuple[str, ParsedCompletion] | None = None

    @property
    def incomplete_tool_call_indices(self) -> set[int]:
        """Calls that were begun and not finished; SGLang then leaves the finish reason as it is."""
        return self._open_calls

    _open_calls: set[int] = frozenset()  # type: ignore[assignment]

    def _parsed(self, text: str, tools: Sequence[Any]) -> ParsedCompletion:
        if self._seen is None or self._seen[0] != text:
            self._seen = text, parse(self.prr_format, text, tools=tool_dicts(tools), reasoning=False)
        return self._seen[1]

    def has_tool_call(self, text: str) -> bool:
        """Whether there is a finished call. Text with a cut call alone is returned whole rather than without it."""
        return bool(self._parsed(text, ()).parsed_tool_calls)

    def detect_and_parse(self, text: str, tools: Sequence[Any]) -> ToolResult:
        self._seen = None  # has_tool_call had no tools: values may be typed otherwise
        parsed = self._parsed(text, tools)
        if not parsed.parsed_tool_calls:
            return ToolResult(normal_text=text)
        calls = [
            ToolCallItem(tool_index=i, name=call.name, parameters=call.arguments)
            for i, call in enumerate(parsed.parsed_tool_calls)
        ]
        return ToolResult(normal_text=parsed.content or "", calls=calls)

    def parse_streaming_increment(self, new_text: str, tools: Sequence[Any]) -> ToolResult:
        if self._stream is None:
            self._stream = StreamParser(self.prr_format, tools=tool_dicts(tools), reasoning=False)
            self._open_calls = set()
        return self._result(self._stream.feed(new_text))

    def finish(self, tools: Sequence[Any]) -> ToolResult:
        return ToolResult() if self._stream is None else self._result(self._stream.finish())

    def _result(self, deltas: Iterable[Delta]) -> ToolResult:
        result = ToolResult()
        for delta in deltas:
            if delta.kind == "content":
                result.normal_text += delta.text
            elif delta.kind == "call":
                self._open_calls.add(delta.index)
                result.calls.append(ToolCallItem(tool_index=delta.index, name=delta.text, parameters=""))
            elif delta.kind == "call_end":
                self._open_calls.discard(delta.index)
            elif delta.kind == "arguments":
                result.calls.append(ToolCallItem(tool_index=delta.index, parameters=delta.text))
        return result


class ReasoningDetector:
    """Reasoning alone. Mixed in before the family's stock detector, whose constructor decides `_in_reasoning`."""

    prr_format: Format
    _stream: StreamParser | None = None
    # of the stock detectors
    _in_reasoning: bool
    _force_nonempty_content: bool

    def _tail(self, text: str) -> str:
        """The prompt's tail as far as SGLang tells it: whether reasoning is open when the completion begins."""
        start = self.prr_format.reasoning_start or ""
        return start if self._in_reasoning and not (start and text.lstrip().startswith(start)) else ""

    def detect_and_parse(self, text: str) -> ReasoningResult:
        parsed = parse(self.prr_format, text, prompt_tail=self._tail(text), tool_calls=False)
        return self._nonempty(ReasoningResult(parsed.content, parsed.reasoning))

    def parse_streaming_increment(self, new_text: str) -> ReasoningResult:
        if self._stream is None:
            if not new_text:
                return ReasoningResult()
            self._stream = StreamParser(self.prr_format, prompt_tail=self._tail(new_text), tool_calls=False)
        return self._result(self._stream.feed(new_text))

    def finish(self) -> ReasoningResult:
        if self._stream is None:
            return ReasoningResult()
        result = self._result(self._stream.finish())
        whole = self._stream.result
        if self._force_nonempty_content and whole.content is None and whole.reasoning is not None:
            return ReasoningResult(whole.reasoning)
        return result

    def _result(self, deltas: Iterable[Delta]) -> ReasoningResult:
        result = ReasoningResult()
        for delta in deltas:
            if delta.kind == "content":
                result.normal_text += delta.text
            elif delta.kind == "reasoning":
                result.reasoning_text += delta.text
        return result

    def _nonempty(self, result: ReasoningResult) -> ReasoningResult:
        """SGLang's `force_nonempty_content`: a completion of reasoning alone is its own answer."""
        if self._force_nonempty_content and not result.normal_text:
            return ReasoningResult(result.reasoning_text)
        return result


def _make(name: str, mixin: type, stock: type) -> type:
    half = mixin.__name__
    title = "".join(part.title() for part in name.split("_"))
    return type(f"{title}{half}", (mixin, stock), {"prr_format": get_format(name), "__module__": __name__})


def register_names() -> None:
    """Make every format's name known for both flags. Idempotent.

    A format whose stock family this SGLang does not have is left out; `missing` names it.
    """
    tools, reasoning = FunctionCallParser.ToolCallParserEnum, ReasoningParser.DetectorMap
    for name in FORMATS:
        family = FAMILIES.get(name)
        if family is None:
            continue
        if name not in tools and family.tool in tools:
            tools[name] = _make(name, ToolDetector, tools[family.tool])
        if name not in reasoning and family.reasoning in reasoning:
            reasoning[name] = _make(name, ReasoningDetector, reasoning[family.reasoning])


def missing() -> list[str]:
    """Formats that this SGLang cannot offer under one of the flags."""
    tools, reasoning = FunctionCallParser.ToolCallParserEnum, ReasoningParser.DetectorMap
    return sorted(name for name in FORMATS if name not in tools or name not in reasoning)
