"""What follows a completion, learnt from the chat template itself.

Promise: `extend` returns the ids of the previous prompt and of everything that was sampled, unchanged,
followed by the ids of exactly what the template writes after that turn; or it returns a `Refusal`. The
one exception: a sampled stop token that history spells differently takes the template's spelling
(`respelled_stop`), since the engine never fed it.

The bridge knows no model. It renders a stand-in of the turn (standin.py) with and without the new
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
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prr_plugins.common.frames import Frame, Frames
from prr_plugins.common.seam import Seams
from prr_plugins.common.standin import Message, Placement, Render, Scene, StandIns, Tail, Tools, leading

__all__ = ["Extension", "Message", "Refusal", "Render", "Span", "TemplateBridge", "Tools"]

_SEAM_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer. `reason` is one of docs/refusals.md; `detail` is for a log, without content."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `[start, end)` of an extended prompt and where they come from.

    `message` is the index in the new messages of a "message" span, else None. "close" is what ends the
    sampled turn and was not sampled; "generation" is the generation prompt.
    """

    start: int
    end: int
    source: Literal["prompt", "sampled", "close", "message", "generation"]
    message: int | None = None


@dataclass(frozen=True, slots=True)
class Extension:
    """The next prompt.

    ids: all of it; the first `kept` are the previous prompt and completion (less a respelled stop).
    shows_reasoning: given the new messages, the template itself would still show the reasoning of the turn.
    spans: computes where each token comes from (a loss mask needs it, a server does not).
    """

    ids: list[int]
    kept: int
    respelled_stop: bool
    shows_reasoning: bool
    spans: Callable[[], tuple[Span, ...]]


@dataclass(frozen=True, slots=True)
class Continuation:
    """What stands behind a turn, once its last `dropped` (0 or 1) ids, a respelled stop, are taken off.

    ids: to be appended; text: their text.
    shows_reasoning: given the new messages, the template itself would still show the reasoning of the turn.
    bounds: computes at which character of `text` each new message, and then the generation prompt, begins.
    """

    ids: list[int]
    dropped: int
    shows_reasoning: bool
    text: str
    bounds: Callable[[], list[int]]


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


class _Refused(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, detail)


class _Ending(NamedTuple):
    """What stands behind the completion: `text`, after the last `dropped` (0 or 1) sampled ids are taken off."""

    text: str
    dropped: int = 0
    inserted: int = 0
    """Characters at the start of `text` that end an open reasoning."""


class TemplateBridge:
    """Extends a turn by new messages, for one template and one tokenizer.

    render: the engine's own, see `Render`.
    encode: text to ids, special tokens in the text becoming their ids, nothing added in front.
    decode: ids to text, special tokens shown.
    stop_ids: the token ids that end generation on this server (not those of one request).
    added_tokens: text to id of every token the tokenizer never splits (special or not).
    stop: "template" respells a sampled stop token that history spells differently; "sampled" keeps it.
    reasoning_end: what ends reasoning, for templates that never write reasoning themselves.

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
    ) -> None:
        self._stand_ins = StandIns(render)
        self._seams = Seams(encode, decode, added_tokens)
        self._stop_ids = frozenset(stop_ids)
        self._frames = Frames(self._stand_ins, self._seams, self._stop_ids)
        self._spelling = stop
        self._reasoning_end = reasoning_end

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
        before: the messages before it; only leading system and developer messages are looked at.
        reasoning_open: whether the completion ended inside reasoning; None: find out from the template.
        """
        ids = [*prompt_ids, *completion_ids]
        answer = self.continue_turn(
            ids,
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
        kept = len(ids) - answer.dropped
        del ids[kept:]
        ids += answer.ids
        front = ids[max(0, kept - _SEAM_TOKENS) : kept]

        def spans() -> tuple[Span, ...]:
            return _spans(self._seams, front, answer.ids, answer.text, answer.bounds(), len(prompt_ids), kept)

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
    ) -> Continuation | Refusal:
        """As `extend`, for a turn given as one sequence of which the last `sampled` ids are the completion.

        Reads only the end of `turn_ids`, and returns only what comes behind it.
        """
        try:
            if any(_has_media(message) for message in new_messages):
                raise _Refused("multimodal")
            calls = _calls(assistant or {})
            _check_results(calls, new_messages)
            scene = Scene(tuple(leading(before)), calls, tools, template_kwargs or {})
            placement, tail = self._behind(scene, new_messages, add_generation_prompt)
            frame = self._frames.frame(scene, placement)
            if sampled and turn_ids[-1] in self._stop_ids:
                ending = self._after_stop(scene, frame, tail, turn_ids[-1])
            else:
                if reasoning_open is None:
                    reasoning_open = self._reasoning_open(scene, turn_ids, sampled)
                ending = self._after_cut(scene, frame, tail, turn_ids[len(turn_ids) - sampled :], reasoning_open)
        except _Refused as refused:
            return refused.refusal

        kept = len(turn_ids) - ending.dropped
        added = self._seams.encode_after(turn_ids[max(0, kept - _SEAM_TOKENS) : kept], ending.text)
        if added is None and ending.inserted:
            # Cut in mid-reasoning, the sampled ids are not what the template's text would be encoded to anyway.
            added = self._seams.encode(ending.text)
        if added is None:
            return Refusal("seam")

        def bounds() -> list[int]:
            return self._bounds(scene, placement, new_messages, tail, ending)

        return Continuation(added, ending.dropped, tail.shows_reasoning, ending.text, bounds)

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
        full = self._stand_ins.render(messages, tools, add_generation_prompt, template_kwargs or {})
        return full is not None and full.endswith(text)

    def retention_switch(self, tools: Tools, template_kwargs: Mapping[str, Any]) -> str | None:
        """The template kwarg that makes this template keep reasoning it would drop; None where it has none.

        Found whether `template_kwargs` sets it or not: whoever set it has decided, and the template shows the outcome.
        """
        free = {name: value for name, value in template_kwargs.items() if name not in _SWITCHES}
        if self._frames.keeps_reasoning(Scene((), (), tools, free)):
            return None
        for name, value in _SWITCHES.items():
            if self._frames.keeps_reasoning(Scene((), (), tools, {**free, name: value})):
                return name
        return None

    def _behind(self, scene: Scene, new_messages: Sequence[Message], generate: bool) -> tuple[Placement, Tail]:
        """What the template writes behind the turn and for the new messages, from the first placement that serves.

        One serves best when the turn ends in the same way with and without messages behind it.
        """
        second_best: tuple[Placement, Tail] | None = None
        for placement in self._stand_ins.placements(scene):
            tail = self._stand_ins.tail(scene, placement, new_messages, generate)
            if tail is None:
                continue
            alone = self._frames.frame(scene, placement).alone
            if alone is not None and alone.mark == tail.mark and tail.text.startswith(alone.text):
                return placement, tail
            if second_best is None and (alone is None or alone.mark == tail.mark):
                second_best = placement, tail
        if second_best is None:
            raise _Refused("unsupported_by_template")
        return second_best

    def _after_stop(self, scene: Scene, frame: Frame, tail: Tail, stop_id: int) -> _Ending:
        stop = self._seams.texts.get(stop_id) or self._seams.decode([stop_id])
        alone = frame.alone.text if frame.alone and tail.text.startswith(frame.alone.text) else None
        if alone is not None and stop in alone:
            return _Ending(tail.text[alone.rindex(stop) + len(stop) :])
        closing = self._closing(scene, frame, tail)
        if closing.lstrip().startswith(stop):
            return _Ending(closing[closing.index(stop) + len(stop) :])
        if stop in self._frames.openers(scene):
            raise _Refused("stop_opens_other_role", stop)
        if self._spelling == "template":
            return _Ending(closing, dropped=1)
        written = self._seams.starts(closing) if frame.close else None
        return _Ending(closing[len(written or "") :])

    def _after_cut(
        self, scene: Scene, frame: Frame, tail: Tail, completion_ids: Sequence[int], reasoning_open: bool
    ) -> _Ending:
        closing = self._closing(scene, frame, tail)
        if not reasoning_open:
            return _Ending(closing[self._already_written(completion_ids, closing) :])
        learnt = self._frames.reasoning(scene)
        end = learnt[1] if learnt else self._reasoning_end
        if end is None:
            raise _Refused("reasoning_end_unknown")
        if self._seams.starts(end) is not None and self._seams.starts(end) == self._seams.starts(closing):
            return _Ending(closing)  # reasoning is a message of its own (Harmony): one close ends both
        return _Ending(end + closing, inserted=len(end))

    def _closing(self, scene: Scene, frame: Frame, tail: Tail) -> str:
        """The turn's close and all that follows: `tail` without what is left of the calls."""
        if not scene.calls:
            return tail.text
        if frame.alone is not None and frame.close is not None:
            calls = frame.alone.text[: len(frame.alone.text) - len(frame.close)]
            if tail.text.startswith(calls):
                return tail.text[len(calls) :]
        raise _Refused("close_unknown")

    def _already_written(self, completion_ids: Sequence[int], closing: str) -> int:
        """How many characters of `closing` the completion already ends with.

        Only whole tokens from a marker on count: a cut just behind `<|im_end|>` (a server that ignores stops) is
        not closed again, a newline of the content is not taken for one of the frame.
        """
        marker = self._seams.starts(closing)
        if marker is None:
            return 0
        marker_id = self._seams.ids[marker]
        ids = self._seams.encode(closing)
        for length in range(min(len(ids), len(completion_ids)), 0, -1):
            if completion_ids[-length] == marker_id and list(completion_ids[-length:]) == ids[:length]:
                text = self._seams.decode(ids[:length])
                return len(text) if closing.startswith(text) else len(marker)
        return 0

    def _reasoning_open(self, scene: Scene, turn_ids: Sequence[int], sampled: int) -> bool:
        """Whether the turn's last reasoning marker opens reasoning, by the markers the template writes."""
        learnt = self._frames.reasoning(scene)
        if learnt is None:
            return False
        start, end = (self._marker(text) for text in (learnt[0], learnt[1]))
        if not start or not end or start == end:
            return False
        generated = len(self._frames.generation_ids(scene))
        turn = turn_ids[max(0, len(turn_ids) - sampled - generated) :]
        ids = self._seams.ids
        if start in ids and end in ids:
            last = next((token for token in reversed(turn) if token in (ids[start], ids[end])), None)
            return last == ids[start]
        text = self._seams.decode(turn)
        return text.rfind(start) > text.rfind(end)

    def _marker(self, frame: str) -> str:
        """The marker in a reasoning frame: its last added token, or its last line of text."""
        added = [match[0] for match in self._seams.added(frame)]
        return added[-1] if added else frame.strip().rpartition("\n")[2]

    def _bounds(
        self, scene: Scene, placement: Placement, new_messages: Sequence[Message], tail: Tail, ending: _Ending
    ) -> list[int]:
        """Characters of `ending.text` at which each new message and then the generation prompt begin."""
        shift = len(tail.text) - len(ending.text)
        bounds = []
        for count in range(len(new_messages) + 1):
            part = self._stand_ins.tail(scene, placement, new_messages[:count], False)
            bounds.append(max(0, _common_prefix(part.text if part else "", tail.text) - shift))
        bounds[0] = max(bounds[0], ending.inserted)
        return [min(max(bounds[: index + 1]), len(ending.text)) for index in range(len(bounds))]


def _spans(
    seams: Seams, front: Sequence[int], added: list[int], text: str, bounds: list[int], prompt: int, kept: int
) -> tuple[Span, ...]:
    cuts = []
    for bound in bounds:
        part = seams.encode_after(front, text[:bound])
        cuts.append(kept + _common_prefix(part if part is not None else seams.encode(text[:bound]), added))
    spans = [Span(0, prompt, "prompt"), Span(prompt, kept, "sampled"), Span(kept, cuts[0], "close")]
    for index in range(len(cuts) - 1):
        spans.append(Span(cuts[index], max(cuts[index], cuts[index + 1]), "message", index))
    spans.append(Span(cuts[-1], kept + len(added), "generation"))
    return tuple(span for span in spans if span.start < span.end)


def _common_prefix(one: str | list[int], other: str | list[int]) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _calls(assistant: Message) -> tuple[tuple[str | None, str], ...]:
    calls = assistant.get("tool_calls") or ()
    return tuple((call.get("id"), str((call.get("function") or {}).get("name") or "")) for call in calls)


def _check_results(calls: tuple[tuple[str | None, str], ...], new_messages: Sequence[Message]) -> None:
    """Templates look calls up by id: a result whose call the stand-in does not hold would look orphaned."""
    known = {call_id for call_id, _ in calls}
    for message in new_messages:
        if message.get("role") == "assistant":
            known.update(call_id for call_id, _ in _calls(message))
        elif message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id is not None and call_id not in known:
                raise _Refused("unknown_call_id")


def _has_media(message: Message) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and part.get("type", "text") not in _TEXT_PARTS for part in content)


_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning", "tool_reference"})
