"""Message normal form and chain keys: which stored turn a request goes on from.

Promise: two histories have equal keys exactly when a template would be given the same conversation by
them, up to what clients and proxies are known to change on the way (docs/matching.md has the table, each row a
test). Equality is decided on exact values: a number equals another when its decimal value and type do (`1.0` and `1`,
`1e3` and `1000.0`, but not `true` and `1`); text is compared character by character.

Not part of a key: reasoning and call ids. They only break ties between turns with equal keys. A tool result names its
call by place (which call of which turn), so that renamed ids change nothing.

One pass, linear in the history; messages arrive as new JSON with every request, so nothing is cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prr_plugins.common.canonical_json import KEY_BYTES, Malformed, exact_number, refuse_constant, to_bytes
from prr_plugins.common.messages import Message

Hash = Any
"""A running `hashlib.blake2b`."""

_TEXT = frozenset({"text", "input_text", "output_text"})
_THOUGHT = frozenset({"thinking", "reasoning", "redacted_thinking", "reasoning_text"})


class Media(ValueError):
    """A message holds more than text; it has no normal form here."""


@dataclass(frozen=True, slots=True)
class Link:
    """One message in its chain.

    digest: the hash of this message with all messages before it.
    call_ids: the ids its calls have in this request (assistant messages).
    reasoning: the reasoning it carries, outer whitespace trimmed; None where there is none.
    """

    role: str
    digest: bytes
    call_ids: tuple[str | None, ...] = ()
    reasoning: str | None = None


class Chain:
    """The links of a list of messages.

    Raises `Media` for images, audio and other parts that are not text, `Malformed` for what has no JSON text.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.links: list[Link] = []
        self._hash: Hash = hashlib.blake2b(digest_size=KEY_BYTES)
        self._calls: dict[str, bytes] = {}
        for message in messages:
            self.links.append(_follow(self._hash, message, self._calls))

    def follow(self, message: Message) -> Link:
        """The link that `message` would be behind the last one. The chain stays as it is."""
        return _follow(self._hash.copy(), message, dict(self._calls))


def turn_key(root: bytes, digest: bytes) -> bytes:
    """The key of a turn: its assistant message's `Link.digest` under a root."""
    return hashlib.blake2b(digest, key=root, digest_size=KEY_BYTES).digest()


def call_ids(message: Message) -> tuple[str | None, ...]:
    """The call ids of an assistant message, in order."""
    return tuple(_text_or_none(call.get("id")) for call in _calls_of(message))


def reasoning_of(message: Message) -> str | None:
    """The reasoning that a client sent back, under any of the names in use, trimmed; None where there is none."""
    for name in ("reasoning", "reasoning_content", "thinking"):
        if isinstance(message.get(name), str) and message[name].strip():
            return str(message[name]).strip()
    content = message.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") in _THOUGHT]
        text = "".join(str(part.get(name) or "") for part in parts for name in ("thinking", "reasoning", "text"))
        return text.strip() or None
    return None


def _follow(running: Hash, message: Message, known_calls: dict[str, bytes]) -> Link:
    role = str(message.get("role") or "")
    fields: list[bytes] = [_field("r", role)]
    calls: tuple[str | None, ...] = ()
    reasoning = None
    if role == "assistant":
        fields.append(_field("t", "".join(_texts(message.get("content"), _THOUGHT)).strip()))
        calls = call_ids(message)
        for call in _calls_of(message):
            fields += _call_form(call)
        reasoning = reasoning_of(message)
        if message.get("function_call"):
            fields.append(b"f" + to_bytes(message["function_call"]))
    else:
        texts = _texts(message.get("content"))
        if texts != [""]:
            fields += [_field("t", text) for text in texts]
        if role == "tool":
            call_id = message.get("tool_call_id")
            place = known_calls.get(call_id) if isinstance(call_id, str) else None
            fields.append(_field("i", str(call_id)) if place is None else b"p" + place)
        for kind, name in ((b"d", "tools"), (b"o", "tool_calls")):
            if message.get(name):
                fields.append(kind + to_bytes(message[name]))
    if message.get("name"):
        fields.append(_field("n", str(message["name"])))
    # Each field begins with its kind, and the lengths come first: no two lists of fields give the same bytes.
    running.update(b"%d:%s;" % (len(fields), b",".join(b"%d" % len(field) for field in fields)))
    for field in fields:
        running.update(field)
    digest = running.copy().digest()
    known_calls.update({call_id: digest + b"%d" % n for n, call_id in enumerate(calls) if call_id is not None})
    return Link(role, digest, calls, reasoning)


def _field(kind: str, text: str) -> bytes:
    return (kind + text).encode(errors="surrogatepass")


def _texts(content: Any, left_out: Collection[str] = ()) -> list[str]:
    """The text of a content field: a string, or the texts of a part list, parts of the types `left_out` aside."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict) and part.get("type", "text") in _TEXT and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif not (isinstance(part, dict) and part.get("type") in left_out):
                raise Media(str(part.get("type")) if isinstance(part, dict) else type(part).__name__)
        return texts
    raise Media(type(content).__name__)


def _calls_of(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _call_form(call: Mapping[str, Any]) -> list[bytes]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return [b"o" + to_bytes({key: value for key, value in call.items() if key not in ("id", "index")})]
    return [_field("c", str(function.get("name") or "")), b"a" + arguments_form(function.get("arguments"))]


def arguments_form(arguments: Any) -> bytes:
    """Equal for equal JSON values, whatever their spelling; text that is not strict JSON stands for itself.

    No arguments at all (null, an empty string) are an empty object. Raises `Malformed` for a value without JSON text.
    """
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return b"J{}"
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(type(error).__name__) from None
    try:
        return b"J" + to_bytes(json.loads(text, parse_float=exact_number, parse_constant=refuse_constant))
    except (ValueError, RecursionError, ArithmeticError):
        return b"T" + text.encode(errors="surrogatepass")


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def edited_index(stored: Iterable[bytes], links: Sequence[Link], start: int) -> int:
    """Index of the first message from `start` on whose digest does not begin with the next of `stored`."""
    index = start
    for known in stored:
        if index >= len(links) or links[index].digest[: len(known)] != known:
            break
        index += 1
    return index
