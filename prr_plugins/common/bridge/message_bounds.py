"""Where in a rendered conversation each message begins.

Promise: the answer comes from the template's own render, or there is none (None). The contents of the messages are
given random words at both ends, and rendered so; without these words, the text must be the render itself. What stands
between the end of one content and the start of the next is parted by what the template writes behind such a message
when it is the last one, or in front of such a message when it follows an assistant's. Cost: three renders of the
conversation, and a few of short ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from prr_plugins.common.bridge.template_probe import TemplateProbe
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.prefix import common_prefix

_QUESTION: Message = {"role": "user", "content": "x"}
_NAMING = ("role", "name", "tool_call_id")


class MessageBounds:
    """Finds the beginnings of messages in renders by `probe`, for one set of tools and template kwargs.

    tokens: matches what the tokenizer never splits.
    """

    def __init__(
        self, probe: TemplateProbe, tokens: re.Pattern[str], tools: Tools, template_kwargs: Mapping[str, Any]
    ) -> None:
        self._tokens = tokens
        self._probe = probe
        self._tools = tools
        self._kwargs = template_kwargs
        self._mark = probe.other_text

    def begins(self, messages: Sequence[Message], text: str, generate: bool) -> list[int] | None:
        """The character of `text` (the render of `messages`) at which each begins, and at which the last one ends."""
        closed = self._render(messages)
        spans = self._contents(messages, text, generate)
        if closed is None or spans is None or not text.startswith(closed):
            return None
        begins = [0]
        for at, (before, message) in enumerate(pairwise(messages)):
            place = self._behind(before, spans[at], text)
            if place is None:
                place = self._in_front(message, spans[at + 1], before, text)
            if place is None:
                return None
            begins.append(place)
        begins.append(len(closed))
        return begins if begins == sorted(begins) else None

    def _contents(self, messages: Sequence[Message], text: str, generate: bool) -> list[tuple[int, int] | None] | None:
        """Where the content of each message stands; None for an assistant's, which a template may rewrite."""
        marked = self._render([self._marked(message, at) for at, message in enumerate(messages)], generate)
        if marked is None:
            return None
        found: dict[str, int] = {}
        removed = 0
        for match in re.finditer(f"{self._mark}[0-9]+[se]", marked):
            found[match[0]] = match.start() - removed
            removed += len(match[0])
        if re.sub(f"{self._mark}[0-9]+[se]", "", marked) != text:
            return None
        spans: list[tuple[int, int] | None] = []
        for at, message in enumerate(messages):
            start, end = found.get(f"{self._mark}{at}s"), found.get(f"{self._mark}{at}e")
            spans.append(None if message.get("role") == "assistant" or start is None or end is None else (start, end))
        return spans

    def _marked(self, message: Message, at: int) -> Message:
        content = message.get("content")
        if message.get("role") == "assistant" or not isinstance(content, str) or not content.strip():
            return message
        body = content.strip()  # templates trim
        start = content.index(body)
        marked = f"{self._mark}{at}s{body}{self._mark}{at}e"
        return {**message, "content": content[:start] + marked + content[start + len(body) :]}

    def _behind(self, message: Message, span: tuple[int, int] | None, text: str) -> int | None:
        """Where a message ends whose content is at `span`: behind what closes it."""
        close = None if span is None else self._close(message)
        if span is None or close is None:
            return None
        blank = _blank(message)[1]
        ends = {span[1], span[1] + len(blank) if text.startswith(blank, span[1]) else span[1]}  # trimmed, or not
        shared, end = max((common_prefix(close, text[end : end + len(close)]), end) for end in ends)
        inside = (m.start() for m in self._tokens.finditer(text, end) if m.start() < end + shared < m.end())
        return next(inside, end + shared)

    def _in_front(self, message: Message, span: tuple[int, int] | None, before: Message, text: str) -> int | None:
        """Where a message begins whose content is at `span`: in front of what opens it."""
        opener = None if span is None else self._opener(message, before)
        if span is None or opener is None:
            return None
        for blank in ("", _blank(message)[0]):
            if text[: span[0]].endswith(opener + blank):
                return span[0] - len(opener + blank)
        return None

    def _close(self, message: Message) -> str | None:
        """What stands behind the content of such a message when it is the last one."""
        call = {"id": message.get("tool_call_id"), "function": {"name": "f"}}
        before = [_QUESTION, self._assistant([call])] if message.get("role") == "tool" else []
        text = self._render([*before, self._one(message)])
        return None if text is None else text.rpartition(self._mark)[2]

    def _opener(self, message: Message, before: Message) -> str | None:
        """What stands in front of the content of a message that follows an assistant's."""
        assistant = self._assistant(before.get("tool_calls") or ())
        close = self._render([_QUESTION, assistant])
        text = self._render([_QUESTION, assistant, self._one(message)])
        if close is None or text is None or not text.count(self._mark) >= 2:
            return None
        close = close.rpartition(self._mark)[2]
        _, _, opener = text.rpartition(self._mark)[0].rpartition(self._mark)
        return opener[len(close) :] if opener.startswith(close) else None

    def _assistant(self, calls: Sequence[Any]) -> Message:
        """A turn with these calls, a mark at its end."""
        if not calls:
            return {"role": "assistant", "content": self._mark}
        arguments = ["{}"] * (len(calls) - 1) + [json.dumps({"x": self._mark})]
        made = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": (call.get("function") or {}).get("name"), "arguments": text},
            }
            for call, text in zip(calls, arguments, strict=True)
        ]
        return {"role": "assistant", "content": "", "tool_calls": made}

    def _one(self, message: Message) -> Message:
        return {**{name: message[name] for name in _NAMING if name in message}, "content": self._mark}

    def _render(self, messages: Sequence[Message], generate: bool = False) -> str | None:
        return self._probe.render(messages, self._tools, generate, self._kwargs)


def _blank(message: Message) -> tuple[str, str]:
    """The blanks around a content, which some templates trim."""
    content = message["content"]
    return content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]
