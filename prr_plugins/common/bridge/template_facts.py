"""What a template writes around assistant turns of one shape, learnt once and remembered.

Everything here is independent of the new messages of a request, so it is rendered once for each `Scene`
(system messages, call names and ids, tools, template kwargs) and kept in a small LRU cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from prr_plugins.common.bridge.template_probe import PROBE_ID, Placement, Scene, Tail, TemplateProbe
from prr_plugins.common.bridge.token_boundary import BoundaryEncoder
from prr_plugins.common.messages import Message

T = TypeVar("T")

_CACHED = 512


_CALL = ("call00001", "f")  # nine letters and digits: Mistral's templates accept nothing else
_QUESTION: Message = {"role": "user", "content": "x"}
_ANSWER: Message = {"role": "assistant", "content": "x"}
_RESULT: Message = {"role": "tool", "tool_call_id": _CALL[0], "content": "x"}
_OTHER_ID = "call00002"  # of an earlier call: some templates number calls by their ids
_CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _OTHER_ID, "type": "function", "function": {"name": _CALL[1], "arguments": "{}"}}],
}
_ROUND = (_QUESTION, _CALLED, {**_RESULT, "tool_call_id": _OTHER_ID})
_EARLIER = ((_QUESTION, _ANSWER), (*_ROUND, _ANSWER))


@dataclass(frozen=True, slots=True)
class Frame:
    """What a turn of one shape ends with when nothing follows it."""

    alone: Tail | None
    """Behind the last mark: what is left of the calls, then the close. None: the template ends no conversation so."""
    close: str | None
    """The close alone; None where it could not be told from what is left of the calls."""


class TemplateFacts:
    """Learns from `probe`; `stop_ids` tell a close from a call's closing markup."""

    def __init__(self, probe: TemplateProbe, encoder: BoundaryEncoder, stop_ids: Collection[int]) -> None:
        self._probe = probe
        self._encoder = encoder
        self._stop_ids = stop_ids
        self._cache: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    def frame(self, scene: Scene, placement: Placement) -> Frame:
        """How a turn with these calls ends, seen from the marks of `placement`."""

        # Call ids differ from turn to turn; where the template writes none behind the mark, one frame serves all.
        nameless = scene.with_probe_ids()
        if nameless is not scene:
            frame = self.frame(nameless, placement)
            if frame.alone is not None and PROBE_ID not in frame.alone.text:
                return frame

        def learn() -> Frame:
            alone = self._probe.tail(scene, placement, (), False)
            if alone is None or not scene.calls:
                return Frame(alone, alone.text if alone else None)
            stops = self.stops_in(alone.text)
            bare = self.bare_close(scene)
            if bare is not None and alone.text.endswith(bare) and (bare or not stops):
                return Frame(alone, bare)
            return Frame(alone, alone.text[stops[-1] :] if stops else None)

        return self._cached("frame", scene, learn, placement)

    def bare_close(self, scene: Scene) -> str | None:
        """What closes a turn without calls."""

        def learn() -> str | None:
            bare = scene.with_calls(())
            tails = (self._probe.tail(bare, place, (), False) for place in self._probe.placements(bare))
            return next((tail.text for tail in tails if tail is not None), None)

        return self._cached("bare", scene, learn)

    def openers(self, scene: Scene) -> frozenset[str]:
        """The added tokens that open a message behind this turn, whatever its role."""

        def learn() -> frozenset[str]:
            follow: list[Message] = [{"role": role, "content": "x"} for role in ("user", "system")]
            if scene.calls:
                follow.append({"role": "tool", "tool_call_id": scene.calls[0][0], "content": "x"})
            found = set()
            for placement in self._probe.placements(scene):
                alone = self.frame(scene, placement).alone
                for message in follow if alone else ():
                    tail = self._probe.tail(scene, placement, [message], False)
                    if alone and tail and tail.mark == alone.mark and tail.text.startswith(alone.text):
                        found.add(self._encoder.starts(tail.text[len(alone.text) :].lstrip()))
                if found:
                    break
            return frozenset(opener for opener in found if opener)

        return self._cached("openers", scene, learn)

    def reasoning(self, scene: Scene) -> tuple[str, str] | None:
        """The text in front of a turn's reasoning and the text between reasoning and content."""

        def learn() -> tuple[str, str] | None:
            # Kimi shows the reasoning of a last turn only where it calls something.
            for calls in ((), scene.calls or (("call_1", "f"),)):
                frame = self._probe.reasoning_frame(scene.with_calls(calls))
                if frame is not None:
                    return frame
            return None

        return self._cached("reasoning", scene, learn)

    def stops_in(self, text: str) -> list[int]:
        """Where stop tokens begin in `text`."""
        return [match.start() for match in self._encoder.added(text) if self._encoder.ids[match[0]] in self._stop_ids]

    def keeps_reasoning(self, scene: Scene) -> bool:
        """Whether the template shows a turn's reasoning once a user message follows."""

        def learn() -> bool:
            follow = [{"role": "user", "content": "x"}]
            tails = (self._probe.tail(scene, place, follow, True) for place in self._probe.placements(scene))
            return any(tail is not None and tail.shows_reasoning for tail in tails)

        return self._cached("keeps", scene, learn)

    def depends_on_history(self, scene: Scene, role: str, behind_result: bool) -> bool:
        """Whether what the template writes for a message of `role` is another thing after an earlier exchange.

        Some number the rounds or the results of a conversation, or open a block of results only once.
        behind_result: the turn itself stands behind a tool result, where some close it otherwise.
        """
        plain = scene.with_calls((_CALL,) if role == "tool" else ())

        def learn() -> bool:
            follow = [_RESULT if role == "tool" else _QUESTION]
            histories = (*_EARLIER, *([_ROUND] if behind_result else []))
            for placement in self._probe.placements(plain):
                first = self._probe.tail(plain, placement, follow, True)
                if first is not None:
                    scenes = (replace(plain, head=(*plain.head, *earlier), around=b"") for earlier in histories)
                    tails = (self._probe.tail(later, placement, follow, True) for later in scenes)
                    return any(tail is not None and tail.text != first.text for tail in tails)
            return False

        return self._cached("history", plain, learn, role, behind_result)

    def generation_ids(self, scene: Scene) -> list[int]:
        """The generation prompt."""
        return self._cached(
            "generation", scene, lambda: self._encoder.encode(self._probe.generation_prompt(scene) or "")
        )

    def forget(self) -> None:
        """Forget everything."""
        with self._lock:
            self._cache.clear()

    def _cached(self, what: str, scene: Scene, learn: Callable[[], T], *more: object) -> T:
        key = (what, *scene.key, *more)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                value: T = self._cache[key]
                return value
        value = learn()
        with self._lock:
            self._cache[key] = value
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return value
