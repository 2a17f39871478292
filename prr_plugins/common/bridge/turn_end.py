"""How a turn ends: what of a probe's tail stands behind the last sampled token.

A tail (template_probe.py) begins behind a mark inside the assistant turn. It holds what is left of the turn's calls,
the close, and all that follows. Where the completion ended in it depends on the last id alone: a stop that was sampled,
or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prr_plugins.common.bridge.message_bounds import MessageBounds
from prr_plugins.common.bridge.template_facts import Frame, TemplateFacts
from prr_plugins.common.bridge.template_probe import Placement, Scene, Tail, TemplateProbe
from prr_plugins.common.bridge.token_boundary import BoundaryEncoder
from prr_plugins.common.messages import Message
from prr_plugins.common.prefix import common_prefix

_CHUNK = 24
"""Characters of a message's text that are looked for to see where the template writes it."""


class Refused(Exception):
    """There is no answer; the reason is one of docs/refusals.md."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class TurnEnd(NamedTuple):
    """What stands behind the completion: `text`, after the last `dropped` (0 or 1) sampled ids are taken off."""

    text: str
    dropped: int = 0
    inserted: int = 0
    """Characters at the start of `text` that end an open reasoning."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A turn and its new messages as a probe shows them."""

    scene: Scene
    placement: Placement
    new_messages: Sequence[Message]
    generate: bool
    tail: Tail
    frame: Frame


class TurnEnds:
    """Finds the ending of a shown turn.

    spelling: "template" takes a sampled stop off where history spells it differently; "sampled" keeps it.
    reasoning_end: what ends reasoning, for templates that never write any.
    """

    def __init__(
        self,
        probe: TemplateProbe,
        facts: TemplateFacts,
        encoder: BoundaryEncoder,
        spelling: Literal["template", "sampled"],
        reasoning_end: str | None,
    ) -> None:
        self._probe = probe
        self._facts = facts
        self._encoder = encoder
        self._spelling = spelling
        self._reasoning_end = reasoning_end

    def show(self, scene: Scene, new_messages: Sequence[Message], generate: bool) -> Shown:
        """The turn by the first placement that serves.

        One serves best when the turn ends in the same way with and without messages behind it.
        """
        second_best: Shown | None = None
        for placement in self._probe.placements(scene):
            tail = self._probe.tail(scene, placement, new_messages, generate)
            if tail is None:
                continue
            if not self._news_follow(scene, placement, new_messages, generate, tail):
                if placement.content and scene.calls and scene.content == "some":
                    raise Refused("content_moved")  # behind the results (Gemma 4): not where it was sampled
                continue
            frame = self._facts.frame(scene, placement)
            shown = Shown(scene, placement, new_messages, generate, tail, frame)
            if frame.alone is not None and frame.alone.mark == tail.mark and tail.text.startswith(frame.alone.text):
                return shown
            if second_best is None and (frame.alone is None or frame.alone.mark == tail.mark):
                second_best = shown
        if second_best is None:
            raise Refused("unsupported_by_template")
        return second_best

    def check_later_turns(self, turn: Shown) -> None:
        """Refuses assistant messages among the new ones that the template writes otherwise by what a turn reasons.

        GLM shows whether they reasoned by what any turn since the question did: the probe's reasoning may not be
        there, and other turns' may.
        """
        placement = replace(turn.placement, reasoning=not turn.placement.reasoning)
        other = self._probe.tail(turn.scene, placement, turn.new_messages, turn.generate)
        if other is None or (other.mark, other.text) != (turn.tail.mark, turn.tail.text):
            raise Refused("depends_on_history", "assistant")

    def after_stop(self, turn: Shown, stop_id: int) -> TurnEnd:
        """Behind a stop that was sampled."""
        stop = self._encoder.texts.get(stop_id) or self._encoder.decode([stop_id])
        tail, alone = turn.tail, turn.frame.alone
        if alone is not None and tail.text.startswith(alone.text) and stop in alone.text:
            # The turn's own stop is the first one; where more of the turn comes behind the mark, the last.
            at = alone.text.index(stop) if tail.ends_turn else alone.text.rindex(stop)
            return TurnEnd(tail.text[at + len(stop) :])
        closing = self._closing(turn)
        if closing is None:
            # The calls themselves look different with messages behind them: go by the first stop, if no news stand in
            # front of it.
            at = tail.text.find(stop)
            if at < 0 or not tail.ends_turn or at + len(stop) > self._unmoved(turn):
                raise Refused("close_unknown")
            return TurnEnd(tail.text[at + len(stop) :])
        if closing.lstrip().startswith(stop):
            return TurnEnd(closing[closing.index(stop) + len(stop) :])
        if stop in self._facts.openers(turn.scene):
            raise Refused("stop_opens_other_role", stop)
        if self._spelling == "template":
            return TurnEnd(closing, dropped=1)
        written = self._encoder.starts(closing) if turn.frame.close else None
        return TurnEnd(closing[len(written or "") :])

    def after_cut(self, turn: Shown, completion_ids: Sequence[int], reasoning_open: bool) -> TurnEnd:
        """Behind a completion that ended without a stop."""
        closing = self._closing(turn)
        if closing is None:
            raise Refused("close_unknown")
        if not reasoning_open:
            return TurnEnd(closing[self._already_written(completion_ids, closing) :])
        learnt = self._facts.reasoning(turn.scene)
        end = learnt[1] if learnt else self._reasoning_end
        if end is None:
            raise Refused("reasoning_end_unknown")
        if self._encoder.starts(end) is not None and self._encoder.starts(end) == self._encoder.starts(closing):
            return TurnEnd(closing)  # reasoning is a message of its own (Harmony): one close ends both
        return TurnEnd(end + closing, inserted=len(end))

    def reasoning_open(self, scene: Scene, turn_ids: Sequence[int], sampled: int) -> bool:
        """Whether the turn's last reasoning marker opens reasoning, by the markers that the template writes."""
        learnt = self._facts.reasoning(scene)
        if learnt is None:
            return False
        start, end = (self._marker(text) for text in learnt)
        if not start or not end or start == end:
            return False
        # Renderers that always ask for an answer (DeepSeek V4) show no generation prompt of their own.
        generated = len(self._facts.generation_ids(scene) or self._encoder.encode(learnt[0]))
        turn = turn_ids[max(0, len(turn_ids) - sampled - generated) :]
        ids = self._encoder.ids
        if start in ids and end in ids:
            last = next((token for token in reversed(turn) if token in (ids[start], ids[end])), None)
            return last == ids[start]
        text = self._encoder.decode(turn)
        return text.rfind(start) > text.rfind(end)

    def bounds(self, turn: Shown, ending: TurnEnd) -> list[int]:
        """Characters of `ending.text` at which each new message, and then the generation prompt, begin."""
        shift = len(turn.tail.text) - len(ending.text)
        bounds = []
        for count in range(len(turn.new_messages) + 1):
            part = turn.frame.alone
            if count:
                part = self._probe.tail(turn.scene, turn.placement, turn.new_messages[:count], False)
            bounds.append(max(0, common_prefix(part.text if part else "", turn.tail.text) - shift))
        if any(message.get("role") == "assistant" for message in turn.new_messages):
            # A template may write one otherwise where it is the last message: what it shares is no sign of its end.
            found = self._message_bounds(turn, len(ending.text))
            bounds = bounds[:1] + found if found is not None else bounds
        bounds[0] = max(bounds[0], ending.inserted)
        return [min(max(bounds[: index + 1]), len(ending.text)) for index in range(len(bounds))]

    def _message_bounds(self, turn: Shown, length: int) -> list[int] | None:
        """Where, in the last `length` characters of the probe, each new message ends."""
        scene = turn.scene
        messages = self._probe.conversation(scene, turn.placement, turn.new_messages)
        text = self._probe.render(messages, scene.tools, turn.generate, scene.template_kwargs)
        if text is None:
            return None
        found = MessageBounds(self._probe, self._encoder.pattern, scene.tools, scene.template_kwargs)
        begins = found.begins(messages, text, turn.generate)
        if begins is None:
            return None
        return [max(0, begin - len(text) + length) for begin in begins[-len(turn.new_messages) :]]

    def _news_follow(
        self, scene: Scene, placement: Placement, new_messages: Sequence[Message], generate: bool, tail: Tail
    ) -> bool:
        """Whether all of the turn stands in front of all of the new messages."""
        if not tail.inside:
            return True
        contents = [message.get("content") for message in new_messages]
        if all(isinstance(text, str) and text.strip() and text.strip()[:_CHUNK] in tail.text for text in contents) and (
            not any(text.strip()[:_CHUNK] in tail.inside for text in contents if isinstance(text, str))
        ):
            return True  # plain to see
        others = [{**message, "content": self._probe.other_text} for message in new_messages]
        other = self._probe.tail(scene, placement, others, generate)
        return other is not None and self._probe.other_text not in other.inside

    def _closing(self, turn: Shown) -> str | None:
        """The turn's close and all that follows: the tail without what is left of the calls."""
        tail, frame = turn.tail, turn.frame
        if not turn.scene.calls:
            return tail.text
        if frame.alone is not None and frame.close is not None:
            calls = frame.alone.text[: len(frame.alone.text) - len(frame.close)]
            if tail.text.startswith(calls):
                return tail.text[len(calls) :]
        # Else, what the same messages are given behind a turn without calls, if that is what stands here too.
        bare = self._probe.tail(
            turn.scene.with_calls(()), Placement(False, True, False), turn.new_messages, turn.generate
        )
        if bare is not None and bare.text and tail.text.endswith(bare.text):
            calls = tail.text[: len(tail.text) - len(bare.text)]
            if not self._facts.stops_in(calls):
                return bare.text
        return None

    def _unmoved(self, turn: Shown) -> int:
        """How many characters of the tail do not depend on what the new messages say."""
        others = [{**message, "content": self._probe.other_text} for message in turn.new_messages]
        other = self._probe.tail(turn.scene, turn.placement, others, turn.generate)
        return common_prefix(other.text, turn.tail.text) if other is not None and other.mark == turn.tail.mark else 0

    def _already_written(self, completion_ids: Sequence[int], closing: str) -> int:
        """How many characters of `closing` the completion already ends with.

        Only whole tokens from a marker on count: a cut just behind `<|im_end|>` (a server that ignores stops) is
        not closed again, a newline of the content is not taken for one of the frame.
        """
        marker = self._encoder.starts(closing)
        if marker is None:
            return 0
        marker_id = self._encoder.ids[marker]
        ids = self._encoder.encode(closing)
        for length in range(min(len(ids), len(completion_ids)), 0, -1):
            if completion_ids[-length] == marker_id and list(completion_ids[-length:]) == ids[:length]:
                text = self._encoder.decode(ids[:length])
                return len(text) if closing.startswith(text) else len(marker)
        return 0

    def _marker(self, frame: str) -> str:
        """The marker in a reasoning frame: its last added token, or its last line of text."""
        added = [match[0] for match in self._encoder.added(frame)]
        return added[-1] if added else frame.strip().rpartition("\n")[2]
