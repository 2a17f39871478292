"""Probes: short conversations that make a chat template show what it writes behind an assistant turn.

Promise: what is learnt here comes out of the engine's own render function and of nothing else. A probe
is `[system messages, user, assistant(marks, same call names and ids), *new messages]`, with the request's tools
and template kwargs. The marks are random words in the reasoning, the content and the last call's arguments; the text
behind the last mark is the end of the assistant turn and everything after it. Templates drop some of these (content
beside calls, reasoning of earlier turns) and refuse some combinations, so several placements are tried in turn.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from prr_plugins.common.messages import Message, Tools

PROBE_ID = "prrcal"
"""How call ids of probes begin. With three digits behind it, an id that also Mistral's templates accept."""
Content = Literal["some", "", None]


class Render(Protocol):
    """The engine's own path from messages to prompt text: argument parsing, content format, template.

    `messages` are in OpenAI shape (arguments as JSON strings) and are not kept or changed by the callee.
    Anything it raises means that the template does not support these messages.
    """

    def __call__(
        self,
        messages: list[Message],
        tools: Tools,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
        /,
    ) -> str: ...


@dataclass(frozen=True)
class Scene:
    """What a probe takes over from the request: the frame around the one turn it imitates."""

    head: tuple[Message, ...]
    calls: tuple[tuple[str | None, str], ...]
    """Id and name of each call of the assistant turn."""
    tools: Tools
    template_kwargs: Mapping[str, Any]
    content: Content = "some"
    """The turn's content: some text, or how the client sent that there is none."""

    around: bytes = b""
    """Hash of head, tools and template kwargs; made here where it is not given."""

    def __post_init__(self) -> None:
        if not self.around:
            object.__setattr__(self, "around", _hash([self.head, self.tools, dict(self.template_kwargs)]))

    @property
    def key(self) -> tuple[object, ...]:
        """Stands for all of it."""
        return self.around, self.calls, self.content

    def with_calls(self, calls: tuple[tuple[str | None, str], ...], content: Content = "some") -> Scene:
        """Another turn under the same system messages, tools and template kwargs."""
        return Scene(self.head, calls, self.tools, self.template_kwargs, content, self.around)

    def with_probe_ids(self) -> Scene:
        """The scene with other call ids; itself where it has none or they are such already."""
        if not self.calls or str(self.calls[0][0]).startswith(PROBE_ID):
            return self
        calls = tuple((f"{PROBE_ID}{index:03}", name) for index, (_, name) in enumerate(self.calls))
        return self.with_calls(calls, self.content)


_to_json = json.JSONEncoder(default=str).encode


def _hash(value: Any) -> bytes:
    text = _to_json(value)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Placement:
    """Which parts of the assistant message carry a mark."""

    reasoning: bool
    content: bool
    arguments: bool


_WITH_CALLS = tuple(
    Placement(reasoning, content, arguments)
    for arguments in (True, False)
    for reasoning, content in ((True, True), (True, False), (False, True), (False, False))
    if reasoning or content or arguments
)
_CALLS_ONLY = tuple(sorted(_WITH_CALLS, key=lambda placement: placement.content))
_WITHOUT_CALLS = (Placement(True, True, False), Placement(False, True, False), Placement(True, False, False))


@dataclass(frozen=True, slots=True)
class Tail:
    """The text behind the last mark of a rendered probe."""

    text: str
    inside: str
    """The text between the first mark and the last."""
    mark: str
    """Which mark was the last one."""
    shows_reasoning: bool
    """The reasoning mark is in the rendered text."""
    ends_turn: bool
    """Nothing that a model samples comes behind the mark, but what is left of the call that holds it, and the close."""


class TemplateProbe:
    """Renders probes. Every method returns None where the template raises or drops every mark."""

    def __init__(self, render: Render) -> None:
        self._render = render
        # Words of letters only: no tokenizer, template or JSON writer changes them; random: no content can hold them.
        word = "".join(chr(ord("a") + byte % 26) for byte in secrets.token_bytes(24))
        self._reasoning, self._content, self._arguments, self._user = (f"{kind}{word}" for kind in "rcau")
        self.other_text = self._user
        """Content for messages whose own is not wanted; no text holds it."""

    def placements(self, scene: Scene) -> tuple[Placement, ...]:
        """Placements in the order they should be tried."""
        if not scene.calls:
            return _WITHOUT_CALLS
        # Some templates write a call and an empty content otherwise than a call alone.
        return _WITH_CALLS if scene.content == "some" else _CALLS_ONLY

    def tail(
        self, scene: Scene, placement: Placement, new_messages: Sequence[Message], add_generation_prompt: bool
    ) -> Tail | None:
        """What the template writes behind the assistant turn, up to the end."""
        messages = self.conversation(scene, placement, new_messages)
        text = self._try(messages, scene, add_generation_prompt)
        if text is None:
            return None
        shown = [word for word in (self._reasoning, self._content, self._arguments) if word in text]
        if not shown:
            return None
        first = min(text.index(word) + len(word) for word in shown)
        last, mark = max((text.rindex(word), word) for word in shown)
        ends_turn = not scene.calls or mark == self._arguments
        return Tail(text[last + len(mark) :], text[first:last], mark, self._reasoning in text, ends_turn)

    def conversation(self, scene: Scene, placement: Placement, new_messages: Sequence[Message]) -> list[Message]:
        """The probe that `tail` renders."""
        behind_result = bool(scene.head) and scene.head[-1].get("role") == "tool"
        asked = [] if behind_result else [self._question()]
        return [*scene.head, *asked, self._assistant(scene, placement), *new_messages]

    def reasoning_frame(self, scene: Scene) -> tuple[str, str] | None:
        """The text in front of a turn's reasoning (from the question on) and between reasoning and content."""
        messages = [*scene.head, self._question(), self._assistant(scene, Placement(True, True, False))]
        text = self._try(messages, scene, False)
        if text is None:
            return None
        question, reasoning, content = (text.find(word) for word in (self._user, self._reasoning, self._content))
        if not 0 <= question < reasoning < content:
            return None
        return text[question + len(self._user) : reasoning], text[reasoning + len(self._reasoning) : content]

    def generation_prompt(self, scene: Scene) -> str | None:
        """What the template adds to a user message to have it answered."""
        messages = [*scene.head, self._question()]
        closed, opened = (self._try(messages, scene, ask) for ask in (False, True))
        if closed is None or opened is None or not opened.startswith(closed):
            return None
        return opened[len(closed) :]

    def _question(self) -> Message:
        return {"role": "user", "content": self._user}

    def _assistant(self, scene: Scene, placement: Placement) -> Message:
        empty = None if scene.content is None else ""
        message: Message = {"role": "assistant", "content": self._content if placement.content else empty}
        if placement.reasoning:
            for field in ("reasoning", "reasoning_content", "thinking"):  # the last is GPT-OSS's
                message[field] = self._reasoning
        if scene.calls:
            arguments = ["{}"] * len(scene.calls)
            if placement.arguments:
                arguments[-1] = json.dumps({"x": self._arguments})
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
                for (call_id, name), text in zip(scene.calls, arguments, strict=True)
            ]
        return message

    def _try(self, messages: list[Message], scene: Scene, add_generation_prompt: bool) -> str | None:
        return self.render(messages, scene.tools, add_generation_prompt, scene.template_kwargs)

    def render(
        self, messages: Sequence[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str | None:
        """The engine's render of any messages."""
        try:
            return self._render(list(messages), tools, add_generation_prompt, template_kwargs)
        except Exception:  # whatever a template or an engine raises on messages that it does not support
            return None


def shows_content(content: Any) -> Content:
    """What a `Scene` keeps of a message's content."""
    return None if content is None else "" if content in ("", []) else "some"
