"""What follows a completion, learnt from the chat template itself.

Promise: `extend` returns the ids of the previous prompt and of everything that was sampled, unchanged,
followed by exactly the ids that the template writes after that turn; or it returns a `Refusal`.

The bridge knows no model. It calls the engine's own render function on a short stand-in of the
conversation and looks only at the text after a sentinel, so it cannot disagree with the engine about
the template, and its cost does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None


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
    ) -> str: ...


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
    """The next prompt: `ids`, of which the first `kept` are the previous prompt and completion."""

    ids: list[int]
    kept: int
    respelled_stop: bool
    keeps_reasoning: bool
    spans: Callable[[], tuple[Span, ...]]


class TemplateBridge:
    """Extends a turn by new messages, for one template and one tokenizer.

    render: the engine's own, see `Render`.
    encode: text to ids, special tokens in the text becoming their ids, nothing added in front.
    decode: ids to text, special tokens shown.
    stop_ids: the token ids that end generation on this server (not those of one request).
    added_tokens: text to id of every token the tokenizer never splits (special or not).
    stop: "template" respells a sampled stop token that history spells differently; "sampled" keeps it.

    Thread-safe; nothing here raises but `TypeError` for a wrong argument type.
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
    ) -> None:
        raise NotImplementedError

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
        raise NotImplementedError
