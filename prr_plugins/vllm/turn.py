"""One request's turn through vLLM: its prompt spliced, its completions captured, its response completed.

Promises: the prompt goes through vLLM's own id-reuse path or is vLLM's own render; a turn is stored with the ids that
were used and sampled and with the message as it was returned, before the client can answer it; nothing is stored of an
aborted or failed request.

`chat` ties it to the chat route; `responses`, `anthropic`, `batches` and `previews` to the others. A request without a
`Turn` (stock parsers) passes through untouched.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
)
from vllm.entrypoints.serve.utils.api_utils import should_include_usage
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import has_non_text_content

from prr_plugins.common.messages import Message
from prr_plugins.common.parsing import ParsedCompletion
from prr_plugins.common.prompts.plan import Conversation, Plan
from prr_plugins.common.serving.request_turn import RequestTurn
from prr_plugins.common.serving.sent_message import SentMessage, event_of, raw_fields
from prr_plugins.vllm.runtime import Runtime, copy_messages

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput

logger = logging.getLogger(__name__)

Preview = Literal["ids", "count"]

_TURN = "_prr_turn"
# On a chat request made of an Anthropic one: its messages with late system messages in place; None: there are none.
CONVERTED = "_prr_converted"
# Engine finish reasons of a completion that is whole as far as it goes.
_FINISHED = frozenset({"stop", "length", "repetition"})
# Arguments of the template that `Conversation` names by itself, or that are vLLM's, not the template's.
_NOT_TEMPLATE_KWARGS = frozenset({"tools", "tokenize", "add_generation_prompt", "continue_final_message"})


@dataclass
class Choice:
    """One completion of a request."""

    index: int
    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None  # the engine's own
    parser: CompletionParser | None = None

    def add(self, output: CompletionOutput) -> None:
        self.ids.extend(output.token_ids)
        self.text.append(output.text)
        self.finish_reason = output.finish_reason

    def truth(self, reported: str | None, *, called: bool = True) -> str | None:
        """The finish reason for the client (L8): a cut completion is not passed off as one that ended in its calls.

        called: the message has calls. vLLM says `tool_calls` of a required call also where the model made none.
        """
        if self.finish_reason not in (None, "stop"):
            return self.finish_reason
        if reported == "tool_calls" and (self.has_open_calls or not called):
            return self.finish_reason
        return reported

    @property
    def has_open_calls(self) -> bool:
        """Whether a call was begun and not finished."""
        if self.parser is None:
            return False
        return self.parser.sent.has_open_calls(self.parser.parsed)


class CompletionParser(Protocol):
    """What a turn asks of the parser of one of its completions; `parser.LosslessParser` is one."""

    @property
    def parsed(self) -> ParsedCompletion | None: ...
    @property
    def reasoning_open(self) -> bool | None: ...
    @property
    def sent(self) -> SentMessage: ...
    def reasoning_span(self, completion_ids: Sequence[int]) -> tuple[int, int] | None: ...


class Turn(RequestTurn[Runtime]):
    """One request, from its arrival to its last chunk.

    request: chat, Responses or `/tokenize`; what it lacks of a chat request's fields is as good as unset.
    preview: nothing is generated: the prompt that a request would get, counted and recorded nowhere. "ids": the client
        sees its ids, "count": their number.
    history: the conversation in chat shape, where it is not the messages that vLLM renders.
    cannot_follow: why the history is not known, where it is not.
    late_system_as_user: see `Conversation`.
    decodes_arguments: the client gets a call's arguments as JSON values that Python has read (Anthropic).
    """

    engine = "vLLM"
    logger = logger
    preview: Preview | None = None
    history: list[Message] | None = None
    cannot_follow: str | None = None
    late_system_as_user = False
    decodes_arguments = False

    def __init__(self, runtime: Runtime, request: Any, tenant: str | None, model: str, lora: str | None) -> None:
        extra = request.model_extra or {}
        super().__init__(runtime, request, tenant, {"store": getattr(request, "store", None), **extra})
        self.model = model
        self.lora = lora
        self.prompt_ids: list[int] = []
        self.choices: dict[int, Choice] = {}
        self._current: RequestOutput | None = None
        self._engine_requests: set[str] = set()

    @staticmethod
    def of(request: Any) -> Turn | None:
        """The turn of a request, if we follow it."""
        return request.__dict__.get(_TURN)

    def attach(self, request: Any) -> None:
        """Make this the turn of a request object."""
        request.__dict__[_TURN] = self

    # ------------------------------------------------------------------------------------ prompt

    async def splice(
        self, messages: list[Any], template_kwargs: dict[str, Any], tools: list[dict[str, Any]] | None
    ) -> list[int] | None:
        """The prompt's ids, or None: the engine renders.

        Raises:
            VLLMValidationError: `PRR_ON_MISS=error` and the history cannot be spliced.
        """
        splicer = self.runtime.splicer
        if self.history is not None:
            messages = self.history
        reason = self._cannot_follow(messages)
        if reason is not None:
            plan = Plan("refused", reason)
        else:
            self.recordable = self.preview is None
            harmony = self.runtime.harmony
            conversation = Conversation(
                messages=copy_messages(messages),
                tools=tools,
                template_kwargs={k: v for k, v in template_kwargs.items() if k not in _NOT_TEMPLATE_KWARGS},
                model=self.model,
                lora=self.lora,
                tenant=self.tenant,
                template_id=self.runtime.template_id,
                # Harmony heeds neither of the two.
                add_generation_prompt=harmony or template_kwargs.get("add_generation_prompt", True),
                continue_final_message=not harmony and template_kwargs.get("continue_final_message", False),
                late_system_as_user=self.late_system_as_user,
            )
            plan = await self.runtime.plan(conversation, self.mode, self._room())
            if plan.prompt_ids is not None and (reason := self._cannot_use(plan)):
                plan = splicer.refuse(plan, reason)
        self.plan = plan
        if plan.error is not None and self.preview is None:
            splicer.settle(plan)
            raise VLLMValidationError(plan.error, parameter="messages")
        return plan.prompt_ids

    def _cannot_follow(self, messages: list[Any]) -> str | None:
        """Why the prompt will not be (only) what the template makes of the messages: no splice, no record."""
        kv = self._field("kv_transfer_params") or {}
        if self.mode == "off":
            return "off"
        if self.cannot_follow is not None:
            return self.cannot_follow
        if kv.get("prompt_token_ids") is not None:
            return "caller_ids"
        if kv.get("do_remote_decode"):
            return "prefill_leg"
        if self._field("chat_template") is not None or "chat_template" in (self._field("chat_template_kwargs") or {}):
            return "request_template"
        if self._field("truncate_prompt_tokens") is not None or self._field("truncation") not in (None, "disabled"):
            return "truncate_prompt_tokens"
        if self._field("echo"):
            return "echo"
        if self._field("add_special_tokens"):
            return "add_special_tokens"
        if self._field("use_beam_search"):
            return "beam_search"
        if has_non_text_content(messages):
            return "multimodal"
        return None

    def _room(self) -> int:
        """Most tokens of a prompt, by the completion that the request asks for."""
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        return self.runtime.room(next((limit for name in names if (limit := self._field(name)) is not None), None))

    def _cannot_use(self, plan: Plan) -> str | None:
        """Why ids that the splicer gave are not used."""
        assert plan.prompt_ids is not None
        if len(plan.prompt_ids) + 1 > self.runtime.max_model_len:
            return "too_long"
        if self._field("prompt_logprobs") is not None:
            return "prompt_logprobs"  # they would show the prompt's tokens, reasoning that was hidden included
        if (self._field("kv_transfer_params") or {}).get("do_remote_prefill"):
            return "decode_leg"  # the blocks to come belong to the prompt that the prefill side rendered
        if self.preview == "ids" and plan.hides_reasoning:
            return "hidden_reasoning"
        return None

    def _field(self, name: str) -> Any:
        return getattr(self.request, name, None)

    def used(self, engine_inputs: list[Any]) -> None:
        """The prompt is final: see that the engine took our ids, and count."""
        if self.plan is None or self.preview is not None:
            return
        self.prompt_is(engine_inputs[0].get("prompt_token_ids"))

    # ------------------------------------------------------------------------------------ completion

    def watch(self, results: AsyncIterator[RequestOutput]) -> AsyncIterator[RequestOutput]:
        """The engine's outputs, unchanged, noted as they pass."""
        return _Watch(self, results)

    @property
    def one_prompt(self) -> bool:
        """Whether all that was sampled stands behind one prompt; built-in tools of Responses make the engine go on."""
        return len(self._engine_requests) == 1

    def note(self, result: RequestOutput) -> None:
        self._current = result
        self._engine_requests.add(result.request_id)
        if result.prompt_token_ids is not None:
            self.prompt_ids = result.prompt_token_ids
        for output in result.outputs:
            self.choices.setdefault(output.index, Choice(output.index)).add(output)

    def claim(self, ids: Sequence[int]) -> Choice | None:
        """The choice whose ids a parser was just given: vLLM hands on the very object that it got from the engine."""
        if self._current is None:
            return None
        for output in self._current.outputs:
            if output.token_ids is ids:
                return self.choices[output.index]
        return self.choices[0] if self._field("n") is None and len(self.choices) == 1 else None

    @property
    def hides_tokens(self) -> bool:
        """`include_reasoning=false`: ids and text of the completion would show what was hidden."""
        return not self.request.include_reasoning

    @property
    def hides_prompt(self) -> bool:
        return self.plan is not None and self.plan.hides_reasoning

    def raw_fields(self, choice: Choice) -> dict[str, Any]:
        """What a choice carries beside vLLM's fields."""
        parsed = choice.parser.parsed if choice.parser is not None else None
        shown = self.request.return_token_ids and not self.hides_tokens
        return raw_fields(choice.ids if shown else None, choice.text, parsed)

    async def record(self, choice: Choice, message: Message, also: Iterable[Message] = ()) -> None:
        """Store one finished choice; a fault is counted and logged, never raised."""
        runtime = self.runtime
        parser = choice.parser
        if self.plan is None or not self.recordable or choice.finish_reason not in _FINISHED:
            return
        if parser is None or (parsed := parser.parsed) is None:
            return  # the parser failed, and that was counted
        if self.refuses_storing():
            return
        try:
            calls = message.get("tool_calls") or []
            natives = [call.id for call in parsed.parsed_tool_calls]
            one_call = self.request.parallel_tool_calls is False
            forms = [message, *also]
            if self.decodes_arguments:
                forms += [decoded for form in forms if (decoded := _decoded(form)) != form]
            await runtime.record(
                self.plan.context,
                self.prompt_ids,
                choice.ids,
                message,
                also=tuple(forms[1:]),
                reasoning_span=parser.reasoning_span(choice.ids),
                reasoning_open=parser.reasoning_open,
                native_call_ids=(natives + [None] * len(calls))[: len(calls)],
                hidden_reasoning=self.hides_tokens and parsed.reasoning is not None,
                dropped_calls=one_call and len(natives) > len(calls),
            )
        except Exception as e:
            runtime.capture_failed(e)

    async def finish_response(self, response: ChatCompletionResponse) -> None:
        """Complete and capture a response that is sent whole."""
        for sent in response.choices:
            await self.finish_choice(sent, sent.index)
        if self.hides_prompt:
            response.prompt_token_ids = None
        if self.report:
            response.prr = self.outcome()

    async def finish_choice(self, sent: ChatCompletionResponseChoice, index: int) -> None:
        """Complete and capture what is sent of the choice `index` of this turn."""
        choice = self.choices.get(index)
        if choice is None:
            return
        sent.finish_reason = choice.truth(sent.finish_reason, called=bool(sent.message.tool_calls))
        for name, value in self.raw_fields(choice).items():
            setattr(sent, name, value)
        await self.record(choice, sent.message.model_dump(exclude_none=True))

    async def finish_stream(self, events: AsyncGenerator[str, None], force_usage: bool) -> AsyncGenerator[str, None]:
        """The same for a stream: its events, with the last ones completed and every turn captured before its end."""
        usage_follows, _ = should_include_usage(self.request.stream_options, force_usage)
        open_choices = self.request.n or 1
        try:
            async for event in events:
                # Quotes inside a JSON string are escaped: these are the fields, not somebody's text.
                ends = '"finish_reason":"' in event
                open_choices -= ends
                last = open_choices == 0 and ('"choices":[]' in event if usage_follows else ends)
                if ends or (last and self.report) or (self.hides_prompt and '"prompt_token_ids":' in event):
                    event = await self._complete(event, last)
                yield event
        finally:
            await events.aclose()

    async def _complete(self, event: str, last: bool) -> str:
        try:
            data = json.loads(event.removeprefix("data: "))
            for sent in data["choices"]:
                choice = self.choices.get(sent["index"])
                if choice is None or sent.get("finish_reason") is None:
                    continue
                sent["finish_reason"] = choice.truth(sent["finish_reason"])
                sent.update(self.raw_fields(choice))
                await self._record_streamed(choice)
            if self.hides_prompt:
                data.pop("prompt_token_ids", None)
            if last and self.report:
                data["prr"] = self.outcome()
            return event_of(data)
        except Exception as e:
            self.runtime.capture_failed(e)
            return event

    async def _record_streamed(self, choice: Choice) -> None:
        if choice.parser is None or choice.parser.parsed is None:
            return
        sent = choice.parser.sent
        message = sent.message("reasoning")
        if self.request.parallel_tool_calls is False and "tool_calls" in message:
            message["tool_calls"] = message["tool_calls"][:1]
        await self.record(choice, message, sent.also_seen_as(choice.parser.parsed))


class _Watch:
    """An iterator that notes what passes.

    Not a generator: whoever drops it drops the engine's own with it, and that aborts the request.
    """

    def __init__(self, turn: Turn, results: AsyncIterator[RequestOutput]) -> None:
        self._turn = turn
        self._results = aiter(results)

    def __aiter__(self) -> _Watch:
        return self

    async def aclose(self) -> None:
        await self._results.aclose()  # type: ignore[attr-defined]  # vLLM gives a generator

    async def __anext__(self) -> RequestOutput:
        result = await anext(self._results)
        try:
            self._turn.note(result)
        except Exception as e:
            self._turn.runtime.capture_failed(e)
        return result


def claim(request: Any, parser: CompletionParser, ids: Sequence[int]) -> str:
    """Tie a parser to the choice whose ids it was given; the finish reason as far as it is known."""
    turn = Turn.of(request)
    choice = turn.claim(ids) if turn is not None else None
    if choice is None:
        return "stop"
    choice.parser = parser
    return choice.finish_reason or "stop"


def _decoded(message: Message) -> Message:
    """The message with its calls' arguments as a Python client has them that was sent JSON values."""
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.dumps(json.loads(call["function"]["arguments"] or "{}"))
        except ValueError:
            return message
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message
