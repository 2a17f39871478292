"""What follows a completion, learnt from the chat template itself.

Promise: `extend` returns the ids of the previous prompt and of everything that was sampled, unchanged,
followed by the ids of exactly what the template writes after that turn; or it returns a `Refusal`. The
one exception: a sampled stop token that history spells differently takes the template's spelling
(`respelled_stop`), since the engine never fed it.

The bridge knows no model. It renders a probe of the turn (template_probe.py) with and without the new
messages, by the engine's own render function, and so cannot disagree with the engine about the template. Render and
encode cost what the new messages cost, whatever the length of the history.

How a turn may end
- stop sampled: the text goes on behind it; a stop that is already the next turn's opener (GLM) is not written twice;
- stop sampled that opens another role than what comes: refused;
- stop sampled that history spells differently (Harmony `<|return|>`): respelled, or kept as sampled (`stop`);
- no stop (max_tokens, a stop string): the turn's close is written, and the end of the reasoning before it where
  that was still open.
Whether the stop is there is read from the last id alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from prr_plugins.common.bridge.continuation import Continuation, Extension, Refusal, Span, spans_of
from prr_plugins.common.bridge.message_bounds import MessageBounds
from prr_plugins.common.bridge.special_tokens import Shield, SpecialTexts, texts_of
from prr_plugins.common.bridge.template_facts import TemplateFacts
from prr_plugins.common.bridge.template_probe import Render, Scene, TemplateProbe, shows_content
from prr_plugins.common.bridge.token_boundary import BoundaryEncoder
from prr_plugins.common.bridge.turn_end import Refused, TurnEnds
from prr_plugins.common.messages import Message, Tools, opening

_SEAM_TOKENS = 32
_GENERATION_TOKENS = 256
"""More than any generation prompt has: what of a prompt can bear on how its turn ends."""


# How templates call the switch that keeps the reasoning of earlier turns, and the value that keeps it. A name counts
# only where setting it changes what the template shows.
_SWITCHES: dict[str, bool] = {
    "preserve_thinking": True,  # Qwen3.6, Kimi K2.6
    "clear_thinking": False,  # GLM
    "keep_past_thinking": True,
    "truncate_history_thinking": False,  # Nemotron
    "drop_thinking": False,  # DeepSeek V4
    "preserved_thinking": True,
    "keep_thinking": True,
    "keep_all_reasoning": True,
    "save_history_reasoning_content": True,
}


class TemplateBridge:
    """Extends a turn by new messages, for one template and one tokenizer.

    render: the engine's own, see `Render`.
    encode: text to ids, special tokens in the text becoming their ids, nothing added in front.
    decode: ids to text, special tokens shown.
    stop_ids: the token ids that end generation on this server (not those of one request).
    added_tokens: text to id of every token the tokenizer never splits (special or not).
    stop: "template" respells a sampled stop token that history spells differently; "sampled" keeps it.
    reasoning_end: what ends reasoning, for templates that never write reasoning themselves.
    special_tokens: what the text of a special token inside a message becomes: "as_engine" has the whole render encoded,
        which makes it that token; "as_text" keeps it text (special_tokens.py).

    Thread-safe. Nothing here raises but what `encode` and `decode` raise.
    """

    def __init__(
        self,
        render: Render,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        stop_ids: Collection[int],
        added_tokens: Mapping[str, int],
        *,
        stop: Literal["template", "sampled"] = "template",
        reasoning_end: str | None = None,
        special_tokens: Literal["as_engine", "as_text"] = "as_engine",
    ) -> None:
        self.special_texts = SpecialTexts(added_tokens)
        self._as_text = special_tokens == "as_text"
        self._probe = TemplateProbe(render)
        self._encoder = BoundaryEncoder(encode, decode, added_tokens)
        self._stop_ids = frozenset(stop_ids)
        self._facts = TemplateFacts(self._probe, self._encoder, self._stop_ids)
        self._turn_ends = TurnEnds(self._probe, self._facts, self._encoder, stop, reasoning_end)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        assistant: Message | None = None,
        before: Sequence[Message] = (),
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        reasoning_open: bool | None = None,
    ) -> Extension | Refusal:
        """The prompt for `new_messages` after the turn `prompt_ids + completion_ids`.

        completion_ids: everything sampled, a sampled stop token included.
        assistant: the assistant message this completion was parsed to (call names and ids are read).
        before: the messages before it; only opening system and developer messages, and whether one is an assistant's,
            are looked at.
        reasoning_open: whether the completion ended inside reasoning; None: find out from the template.

        An assistant message among `new_messages` is written by the template like all others, but refused
        (`depends_on_history`) where the template writes it otherwise by what earlier turns reason (GLM).
        """
        answer = self.continue_turn(
            [*prompt_ids[max(0, len(prompt_ids) - _GENERATION_TOKENS) :], *completion_ids],
            len(completion_ids),
            new_messages,
            assistant=assistant,
            before=before,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
            reasoning_open=reasoning_open,
        )
        if isinstance(answer, Refusal):
            return answer
        kept = len(prompt_ids) + len(completion_ids) - answer.dropped
        rest = [*completion_ids[: len(completion_ids) - answer.dropped], *answer.ids]
        ids = prompt_ids + rest if isinstance(prompt_ids, list) else [*prompt_ids, *rest]  # copied once
        front = ids[max(0, kept - _SEAM_TOKENS) : kept]

        def spans() -> tuple[Span, ...]:
            return spans_of(self._encoder, front, answer, len(prompt_ids), kept)

        return Extension(ids, kept, answer.dropped > 0, answer.shows_reasoning, spans)

    def continue_turn(
        self,
        turn_ids: Sequence[int],
        sampled: int,
        new_messages: Sequence[Message],
        *,
        assistant: Message | None = None,
        before: Sequence[Message] = (),
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        reasoning_open: bool | None = None,
        compared: bool = False,
    ) -> Continuation | Refusal:
        """As `extend`, for a turn given as one sequence of which the last `sampled` ids are the completion.

        Reads only the end of `turn_ids`, and returns only what comes behind it.
        compared: the caller compares an answer with a whole render (`writes`) where an assistant is among
            `new_messages`; else the answer is `depends_on_history` where the template may write that message otherwise
            by what earlier turns reason (GLM).
        """
        shield = self.special_texts.shield() if self._as_text else None
        try:
            if not (set(map(type, before)) <= {dict} or all(map(_is_mapping, before))):  # a history may be long
                raise Refused("malformed", "message")
            _check_form([*([] if assistant is None else [assistant]), *new_messages])
            if shield is not None:
                assistant, new_messages = _hidden(shield, assistant), _hidden(shield, new_messages)
            if any(_has_media(message) for message in new_messages):
                raise Refused("multimodal")
            calls = _calls(assistant or {})
            _check_results(calls, new_messages)
            content = (assistant or {}).get("content")
            scene = Scene(tuple(before[: opening(before)]), calls, tools, template_kwargs or {}, shows_content(content))
            if any(message.get("role") == "assistant" for message in before):
                for role in {str(message.get("role")) for message in new_messages} & {"user", "tool"}:
                    if self._facts.depends_on_history(scene, role, before[-1].get("role") == "tool"):
                        raise Refused("depends_on_history", role)
            turn = self._turn_ends.show(scene, new_messages, add_generation_prompt)
            if not compared and any(message.get("role") == "assistant" for message in new_messages):
                self._turn_ends.check_later_turns(turn)
            if self._probe.other_text in turn.tail.text:  # a quotation of what the probe asks
                raise Refused("depends_on_history")
            if sampled and turn_ids[-1] in self._stop_ids:
                ending = self._turn_ends.after_stop(turn, turn_ids[-1])
            else:
                if reasoning_open is None:
                    reasoning_open = self._turn_ends.reasoning_open(scene, turn_ids, sampled)
                ending = self._turn_ends.after_cut(turn, turn_ids[len(turn_ids) - sampled :], reasoning_open)
        except Refused as refused:
            return Refusal(refused.reason, refused.detail)

        kept = len(turn_ids) - ending.dropped
        front = turn_ids[max(0, kept - _SEAM_TOKENS) : kept]
        # Cut in mid-reasoning, the sampled ids are not what the template's text would be encoded to anyway.
        encoded = self._encode(ending.text, shield, front, alone=ending.inserted > 0)
        if encoded is None:
            return Refusal("seam")
        added, pieces = encoded
        bounds = partial(self._turn_ends.bounds, turn, ending)
        if shield is None:
            return Continuation(added, ending.dropped, turn.tail.shows_reasoning, ending.text, pieces, bounds)
        text, _ = shield.show(ending.text)
        places = partial(_places, shield, ending.text, bounds)
        return Continuation(added, ending.dropped, turn.tail.shows_reasoning, text, pieces, places)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int] | None:
        """The ids of the engine's render of a whole conversation; None where the template does not support it.

        Media are not looked at: what the engine adds for them is no text.
        """
        return self._render(messages, -1, tools, template_kwargs, add_generation_prompt)

    def _render(
        self,
        messages: Sequence[Message],
        at_most: int,
        tools: Tools,
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
    ) -> list[int] | None:
        shield = self.special_texts.shield() if self._as_text else None
        hidden = shield.hide(messages) if shield is not None else messages
        text = self._probe.render(hidden, tools, add_generation_prompt, template_kwargs or {})
        if text is None:
            return None
        meant = shield.show(text)[0] if shield is not None else text
        size = len(meant.encode(errors="replace"))
        if size <= at_most:
            return [0] * size
        encoded = self._encode(text, shield, (), alone=True)
        return None if encoded is None else encoded[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        return self._encoder.decode(ids)

    def render_with_spans(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> tuple[list[int], tuple[Span, ...]] | None:
        """As `render`, with where the tokens of each message are; None where it cannot be told (message_bounds.py)."""
        try:
            _check_form(messages)
        except Refused:
            return None
        shield = self.special_texts.shield() if self._as_text else None
        hidden = shield.hide(messages) if shield is not None else messages
        kwargs = template_kwargs or {}
        text = self._probe.render(hidden, tools, add_generation_prompt, kwargs)
        if text is None or not hidden:
            return None
        bounds = MessageBounds(self._probe, self.special_texts.pattern, tools, kwargs)
        begins = bounds.begins(hidden, text, add_generation_prompt)
        if begins is None:
            return None
        ids: list[int] = []
        spans = []
        for at, (begin, end) in enumerate(pairwise([*begins, len(text)])):
            encoded = self._encode(text[begin:end], shield, (), alone=True)
            if encoded is None:
                return None
            more, _ = encoded
            if more:
                last = at == len(hidden)
                end_id = len(ids) + len(more)
                spans.append(Span(len(ids), end_id, "generation" if last else "message", None if last else at))
            ids += more
        return ids, tuple(spans)

    def spans(self, continuation: Continuation, prompt: Sequence[int], sampled: int) -> tuple[Span, ...]:
        """Where the tokens of a spliced `prompt` come from, whose last turn's completion had `sampled` tokens."""
        kept = len(prompt) - len(continuation.ids)
        before = kept + continuation.dropped - sampled
        front = prompt[max(0, kept - _SEAM_TOKENS) : kept]
        return spans_of(self._encoder, front, continuation, before, kept)

    def count(
        self,
        messages: Sequence[Message],
        at_most: int = 0,
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> int | None:
        """Tokens of the engine's render, None where the template does not support the messages.

        Exact only above `at_most`: a text with no more bytes has no more tokens, and is not encoded.
        """
        ids = self._render(messages, at_most, tools, template_kwargs, add_generation_prompt)
        return None if ids is None else len(ids)

    def size(self, message: Message) -> int:
        """Tokens of all text in a message."""
        return sum(len(self._encoder.encode(text)) for text in texts_of(message))

    def _encode(
        self, text: str, shield: Shield | None, front: Sequence[int], *, alone: bool
    ) -> tuple[list[int], Sequence[tuple[str, int]]] | None:
        """The ids of `text` behind `front`; where a merge would cross the seam, those of the text `alone`, or None.

        With them the texts that were encoded one by one, and how many ids each has.
        """

        def first(text: str) -> list[int] | None:
            ids = self._encoder.encode_after(front, text) if len(front) else None
            return self._encoder.encode(text) if ids is None and alone else ids

        if shield is not None:
            return shield.encode(text, first, self._encoder.encode, self._encoder.decode)
        ids = first(text)
        return None if ids is None else (ids, ((text, len(ids)),))

    def writes(
        self,
        messages: Sequence[Message],
        text: str,
        *,
        tools: Tools = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> bool:
        """Whether the template, given the whole conversation, ends with `text`. Costs a full render, no encode."""
        full = self._probe.render(messages, tools, add_generation_prompt, template_kwargs or {})
        return full is not None and full.endswith(text)

    def forget(self) -> None:
        """Forget all that was learnt of the template; it is learnt again when needed."""
        self._facts.forget()

    def retention_switch(self, tools: Tools, template_kwargs: Mapping[str, Any]) -> str | None:
        """The template kwarg that makes this template keep reasoning it would drop; None where it has none.

        Found whether `template_kwargs` sets it or not: whoever set it has decided, and the template shows the outcome.
        """
        free = {name: value for name, value in template_kwargs.items() if name not in _SWITCHES}
        if self._facts.keeps_reasoning(Scene((), (), tools, free)):
            return None
        for name, value in _SWITCHES.items():
            if self._facts.keeps_reasoning(Scene((), (), tools, {**free, name: value})):
                return name
        return None


def _places(shield: Shield, rendered: str, bounds: Callable[[], list[int]]) -> list[int]:
    return [shield.place(rendered, at) for at in bounds()]


def _calls(assistant: Message) -> tuple[tuple[str | None, str], ...]:
    calls = assistant.get("tool_calls") or ()
    return tuple((call.get("id"), str((call.get("function") or {}).get("name") or "")) for call in calls)


def _check_form(messages: Sequence[Message]) -> None:
    """Refuses what is no message, or has calls or a call id of no form that could be read."""
    for message in messages:
        if not _is_mapping(message):
            raise Refused("malformed", "message")
        if not isinstance(message.get("tool_call_id"), str | None):
            raise Refused("malformed", "tool_call_id")
        calls = message.get("tool_calls") or ()
        if not isinstance(calls, (list, tuple)) or not all(map(_is_call, calls)):
            raise Refused("malformed", "tool_calls")


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # the first is much faster


def _is_call(call: Any) -> bool:
    return (
        _is_mapping(call)
        and isinstance(call.get("id"), str | None)
        and isinstance(call.get("function"), Mapping | None)
    )


def _hidden(shield: Shield, value: Any) -> Any:
    try:
        return shield.hide(value)
    except RecursionError:
        raise Refused("malformed", "nesting") from None


def _check_results(calls: tuple[tuple[str | None, str], ...], new_messages: Sequence[Message]) -> None:
    """Templates look calls up by id: a result whose call the probe does not hold would look orphaned."""
    known = {call_id for call_id, _ in calls}
    for message in new_messages:
        if message.get("role") == "assistant":
            known.update(call_id for call_id, _ in _calls(message))
        elif message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id is not None and call_id not in known:
                raise Refused("unknown_call_id")


def _has_media(message: Message) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and part.get("type", "text") not in _TEXT_PARTS for part in content)


_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning", "tool_reference"})
