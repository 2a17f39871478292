"""One completion on its way to the client: SGLang's text and ids in, its messages and stream chunks out.

Promises: whole and streamed give the same reasoning, content and calls; nothing is stripped; a fault of ours never
fails a request: the text not yet shown goes out as content (L7), counted and logged once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang.srt.entrypoints.openai.chat_encoding_adapters import token_output_sse_chunks
from sglang.srt.entrypoints.openai.protocol import FunctionResponse, Tool, ToolCall
from sglang.srt.function_call.json_array_parser import JsonArrayParser

from prr_plugins.common.parsing.arguments import is_json_object
from prr_plugins.common.parsing.completion import Delta, ParsedCompletion, Policy
from prr_plugins.common.parsing.stream_parser import StreamParser
from prr_plugins.common.serving.guarded_parser import GuardedParser
from prr_plugins.common.serving.sent_message import SentCall, SentMessage, edit_event, raw_fields

if TYPE_CHECKING:
    from prr_plugins.sglang.runtime import Runtime

logger = logging.getLogger(__name__)


def new_call_id() -> str:
    """As SGLang makes them up."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True)
class CallStep:
    """What one step says about one call; `opens` is its first."""

    index: int
    call: SentCall
    opens: bool
    arguments: str
    ends: bool


@dataclass(frozen=True)
class Step:
    """What flows to the client at one time."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallStep, ...] = ()


class ForcedCalls:
    """Calls that SGLang forced to be a JSON array (required and named calls of a family without a grammar of its own).

    Read by SGLang's own parser for them, from what is content to ours.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._parser = JsonArrayParser()
        self._tools = list(tools)

    def feed(self, text: str) -> list[Delta]:
        return self._deltas(self._parser.parse_streaming_increment(text, self._tools))

    def finish(self) -> list[Delta]:
        return self._deltas(self._parser.finish(self._tools))

    @staticmethod
    def _deltas(result: Any) -> list[Delta]:
        deltas = [Delta("content", result.normal_text)] if result.normal_text else []
        for call in result.calls:
            if call.name:
                deltas.append(Delta("call", call.name, call.tool_index))
            if call.parameters:
                deltas.append(Delta("arguments", call.parameters, call.tool_index))
        return deltas


class Choice:
    """One completion of a request, parsed as it comes.

    reasoning, tool_calls: switch one half off; its markup then stays verbatim in the content.
    hold_reasoning: send reasoning in one piece once it is over (SGLang's `stream_reasoning: false`).
    forced: the content is calls as JSON.
    """

    def __init__(
        self,
        runtime: Runtime,
        prompt_ids: Sequence[int] | None,
        tools: Sequence[dict[str, Any]],
        policy: Policy,
        *,
        reasoning: bool,
        tool_calls: bool,
        hold_reasoning: bool = False,
        forced: ForcedCalls | None = None,
    ) -> None:
        self.ids: list[int] = []
        self.text: list[str] = []
        self.sent = SentMessage()
        self.finish_reason: str | None = None  # the engine's own
        self._characters = 0
        self._runtime = runtime
        self._reads_reasoning = reasoning
        self._held: list[str] | None = [] if hold_reasoning else None
        self._forced = forced
        self._parser = GuardedParser(
            runtime.format,
            lambda: StreamParser(
                runtime.format,
                tools=tools,
                prompt_tail=runtime.reasoning.tail_text(prompt_ids) if prompt_ids else "",
                reasoning=reasoning,
                tool_calls=tool_calls and forced is None,
                stream_arguments=policy,
                tokenizer=runtime.tokenizer,
            ),
            runtime,
            logger,
        )

    # ------------------------------------------------------------------------------------ reading

    def feed(self, text: str, ids: Sequence[int]) -> Step:
        """The next text and the ids that came with it."""
        self._note(text, ids)
        return self._step(self._parser.feed(text, ids))

    def finish(self, finish_reason: str) -> Step:
        """The completion is over."""
        self.finish_reason = finish_reason
        return self._last(self._parser.finish(finish_reason))

    def whole(self, text: str, ids: Sequence[int], finish_reason: str) -> None:
        """A completion that came as a whole."""
        self._note(text, ids)
        self.finish_reason = finish_reason
        self._last(self._parser.whole(text, ids, finish_reason))

    def _note(self, text: str, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.text.append(text)
        self._characters += len(text)

    def _last(self, deltas: Iterable[Delta]) -> Step:
        step = self._step(deltas, ended=True)
        if not self._held:
            return step
        held, self._held = "".join(self._held), None
        return Step(held + step.reasoning, step.content, step.calls)

    def _step(self, deltas: Iterable[Delta], *, ended: bool = False) -> Step:
        if self._forced is not None:
            deltas = self._read_forced(deltas, ended)
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, CallStep] = {}
        for delta in deltas:
            if delta.kind == "content":
                content.append(delta.text)
            elif delta.kind == "reasoning":
                reasoning.append(delta.text)
            else:
                calls[delta.index] = self._call(delta, calls.get(delta.index))
        self.sent.content += content
        self.sent.reasoning += reasoning
        if self._held is not None:
            self._held += reasoning
            reasoning = []
            if self._held and not self._parser.reasoning_open:
                reasoning, self._held = self._held, []
        return Step("".join(reasoning), "".join(content), tuple(calls.values()))

    def _read_forced(self, deltas: Iterable[Delta], ended: bool) -> list[Delta]:
        assert self._forced is not None
        made: list[Delta] = []
        for delta in deltas:
            made += self._forced.feed(delta.text) if delta.kind == "content" else [delta]
        if ended:
            made += self._forced.finish()
            written = {index: "".join(call.arguments) for index, call in self.sent.calls.items()}
            for delta in made:
                if delta.kind == "arguments":
                    written[delta.index] = written.get(delta.index, "") + delta.text
            made += [Delta("call_end", text, index) for index, text in written.items() if is_json_object(text)]
        return made

    def _call(self, delta: Delta, so_far: CallStep | None) -> CallStep:
        if delta.kind == "call":
            call = SentCall(delta.call_id or new_call_id(), delta.call_id, delta.text)
            self.sent.calls[delta.index] = call
            return CallStep(delta.index, call, True, "", False)
        call = self.sent.calls[delta.index]
        opens, arguments = (so_far.opens, so_far.arguments) if so_far else (False, "")
        if delta.kind == "call_end":
            call.raw_arguments = delta.text
            return CallStep(delta.index, call, opens, arguments, True)
        call.arguments.append(delta.text)
        return CallStep(delta.index, call, opens, arguments + delta.text, False)

    # ------------------------------------------------------------------------------------ what came out

    @property
    def characters(self) -> int:
        """How much text has come."""
        return self._characters

    @property
    def failed(self) -> bool:
        """Whether there was a fault of ours."""
        return self._parser.failed

    @property
    def parsed(self) -> ParsedCompletion | None:
        """The whole result, once the completion is finished; None after a fault."""
        return self._parser.parsed

    @property
    def reasoning_open(self) -> bool | None:
        """Whether the completion ended inside reasoning; None after a fault."""
        return self._parser.reasoning_open

    @property
    def reasoning_span(self) -> tuple[int, int] | None:
        """Token range of the reasoning in the completion, None where there is none."""
        if not self._reads_reasoning or self.failed:
            return None
        return self._runtime.reasoning.parsed_reasoning_span(
            self.ids, self._parser.opened, self.parsed, self.reasoning_open
        )

    @property
    def has_open_calls(self) -> bool:
        """Whether a call was begun and not finished."""
        return self.sent.has_open_calls(self.parsed if self._forced is None else None)

    @property
    def incomplete_tool_call_indices(self) -> set[int]:
        """Read by SGLang, which leaves the finish reason as it is where there are any."""
        if not self.has_open_calls:
            return set()
        return {index for index, call in self.sent.calls.items() if not call.ended} or {len(self.sent.calls)}

    def raw_fields(self, *, ids: bool) -> dict[str, Any]:
        """What a choice carries beside SGLang's fields."""
        return raw_fields(self.ids if ids else None, self.text, self.parsed)


def tool_call_models(choice: Choice) -> list[ToolCall] | None:
    """SGLang's type of the calls of a whole response."""
    calls = [
        ToolCall(id=call.id, index=index, function=FunctionResponse(name=call.name, arguments="".join(call.arguments)))
        for index, call in choice.sent.calls.items()
    ]
    return calls or None


def stream_chunks(step: Step, **fields: Any) -> list[str]:
    """SGLang's stream chunks of one step. fields: those of `token_output_sse_chunks`, the step's own excepted."""
    calls = [
        ToolCall(
            id=call.call.id if call.opens else None,
            index=call.index,
            function=FunctionResponse(name=call.call.name if call.opens else None, arguments=call.arguments),
        )
        for call in step.calls
    ]
    chunks: list[str] = token_output_sse_chunks(
        reasoning=step.reasoning, content=step.content, tool_calls=calls, **fields
    )
    first = bool(step.reasoning) + bool(step.content)  # one chunk each, then one for every call
    for place, call in enumerate(step.calls, first):
        if call.ends:
            chunks[place] = _with_raw_arguments(chunks[place], call.call.raw_arguments)
    return chunks


def _with_raw_arguments(event: str, raw_arguments: str | None) -> str:
    def change(data: dict[str, Any]) -> None:
        data["choices"][0]["delta"]["tool_calls"][0]["function"]["raw_arguments"] = raw_arguments

    return edit_event(event, change)
