"""A scripted agent session: what the client sends and, word for word, what the model writes.

The format is described in docs/session-format.md. `load` turns a JSON file into a `Session`, or says with SessionError
which field of which turn is wrong and what would do. What it does not know it reports in `Session.warnings` and leaves
out. Nothing here knows an engine or a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_SESSION = Path(__file__).with_name("session.json")
_SENTINEL: Any = object()


class SessionError(ValueError):
    """A session file that cannot be run; the message names the field."""


@dataclass(frozen=True)
class Turn:
    """One request of the client and the completion that answers it.

    tool_results: contents for the calls of the turn before, in their order.
    messages: further new messages, behind the tool results.
    completion: raw text behind the generation prompt; each part begins a new token.
    stop: the stop token the model samples at the end; "" for the model's usual one, None for none (it was cut).
    max_tokens: the request's limit in tokens; without a stop token it is at most the completion's length.
    """

    tool_results: tuple[str, ...]
    messages: tuple[dict[str, Any], ...]
    completion: tuple[str, ...]
    stop: str | None
    max_tokens: int | None
    stream: bool
    drop_reasoning: bool
    reserialize_arguments: bool


@dataclass(frozen=True)
class Session:
    """A whole conversation. `opening` stands in front of the first turn's messages."""

    name: str
    model: str
    opening: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    template_kwargs: dict[str, Any]
    turns: tuple[Turn, ...]
    warnings: tuple[str, ...]


class _Fields:
    """A JSON object being read: every access names the path, every field that nobody asked for is a warning."""

    def __init__(self, value: Any, path: str, warnings: list[str]) -> None:
        if not isinstance(value, dict):
            raise SessionError(f"{path or 'the file'}: an object is needed, not {_kind(value)}")
        self._left = dict(value)
        self._path = path
        self._warnings = warnings

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str, types: type | tuple[type, ...], wanted: str, default: Any = _SENTINEL) -> Any:
        value = self._left.pop(name, _SENTINEL)
        if value is _SENTINEL:
            if default is _SENTINEL:
                raise SessionError(f"{self.path(name)}: missing; {wanted} is needed")
            return default
        is_bool = isinstance(value, bool)
        accepts_bool = types is bool or (isinstance(types, tuple) and bool in types)
        if not isinstance(value, types) or (is_bool and not accepts_bool):
            raise SessionError(f"{self.path(name)}: {wanted} is needed, not {_kind(value)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.take(name, bool, "true or false", default))

    def strings(self, name: str, wanted: str, default: Any = _SENTINEL) -> tuple[str, ...]:
        """A string or a list of strings."""
        value = self.take(name, (str, list), wanted, default)
        if isinstance(value, str):
            return (value,)
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise SessionError(f"{self.path(name)}[{index}]: a string is needed, not {_kind(item)}")
        return tuple(value)

    def objects(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, item in enumerate(self.take(name, list, "a list of objects", [])):
            path = f"{self.path(name)}[{index}]"
            if not isinstance(item, dict):
                raise SessionError(f"{path}: an object is needed, not {_kind(item)}")
            yield path, item

    def done(self) -> None:
        for name in self._left:
            if name not in ("comment", "$schema") and not name.startswith("_"):
                self._warnings.append(f"{self.path(name)}: unknown field, left out")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def load(path: Path) -> Session:
    """Read and check a session file; SessionError for one that cannot be run."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SessionError(f"{path}: cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SessionError(f"{path}: not JSON: {error}") from error
    try:
        return parse(data, name=path.stem)
    except SessionError as error:
        raise SessionError(f"{path}: {error}") from None


def parse(data: Any, name: str = "session") -> Session:
    """Check a session given as JSON data; SessionError for one that cannot be run."""
    warnings: list[str] = []
    top = _Fields(data, "", warnings)
    client = _Fields(top.take("client", dict, "an object", {}), "client", warnings)
    defaults = {
        "stream": client.flag("stream", False),
        "drop_reasoning": client.flag("drop_reasoning", True),
        "reserialize_arguments": client.flag("reserialize_arguments", False),
    }
    client.done()
    opening = [{"role": "system", "content": text} for text in top.strings("system", "a string", [])]
    turns: list[Turn] = []
    for path, item in top.objects("turns"):
        turns.append(_turn(_Fields(item, path, warnings), defaults, first=not turns))
    if not turns:
        raise SessionError("turns: missing or empty; a list of at least one turn is needed")
    session = Session(
        name=top.take("name", str, "a string", name),
        model=top.take("model", str, "a model's name", "qwen3.6"),
        opening=tuple(opening),
        tools=tuple(_tool(path, item) for path, item in top.objects("tools")),
        template_kwargs=top.take("template_kwargs", dict, "an object", {}),
        turns=tuple(turns),
        warnings=(),
    )
    top.done()
    return Session(**{**vars(session), "warnings": tuple(warnings)})


def _turn(fields: _Fields, defaults: dict[str, bool], *, first: bool) -> Turn:
    tool_results = fields.strings("tool_results", "a list of strings", [])
    messages = [_message(path, item) for path, item in fields.objects("messages")]
    messages += [{"role": "user", "content": text} for text in fields.strings("user", "a string", [])]
    if first and tool_results:
        raise SessionError(f"{fields.path('tool_results')}: the first turn has no calls before it")
    if not tool_results and not messages:
        raise SessionError(f"{fields.path('user')}: a turn needs something new: user, messages or tool_results")
    cut = fields.flag("cut", False)
    max_tokens = fields.take("max_tokens", (int, type(None)), "a whole number above 0", None)
    if max_tokens is not None and max_tokens < 1:
        raise SessionError(f"{fields.path('max_tokens')}: a whole number above 0 is needed, not {max_tokens}")
    if cut and max_tokens is not None:
        raise SessionError(f"{fields.path('max_tokens')}: not together with cut, which ends the completion where it is")
    stop = fields.take("stop", (str, type(None)), "a stop token's text or null", "")
    completion = fields.strings("completion", "a string or a list of strings")
    if cut and not any(completion):
        raise SessionError(f"{fields.path('completion')}: empty, but a cut completion has at least one token")
    turn = Turn(
        tool_results=tool_results,
        messages=tuple(messages),
        completion=completion,
        stop=None if cut else stop,
        max_tokens=max_tokens,
        **{name: fields.flag(name, default) for name, default in defaults.items()},
    )
    fields.done()
    return turn


def _message(path: str, item: dict[str, Any]) -> dict[str, Any]:
    if item.get("role") not in ("user", "system", "developer"):
        raise SessionError(f'{path}.role: "user", "system" or "developer" is needed, not {item.get("role")!r}')
    if not isinstance(item.get("content"), str | list):
        raise SessionError(f"{path}.content: a string or a list of parts is needed, not {_kind(item.get('content'))}")
    return item


def _tool(path: str, item: dict[str, Any]) -> dict[str, Any]:
    """An OpenAI tool; a bare function object is taken too."""
    tool = item if "function" in item else {"type": "function", "function": item}
    function = tool["function"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SessionError(f"{path}.function.name: a string is needed")
    return {"type": "function", **tool}
