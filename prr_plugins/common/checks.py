"""What must fit together before a server starts: settings, format and tokenizer, format and chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from prr_plugins.common.bridge import Message, Render, Tools
from prr_plugins.common.finding import Finding
from prr_plugins.common.formats import FORMATS, Format, get_format
from prr_plugins.common.machine import parse
from prr_plugins.common.settings import Settings, SettingsError
from prr_plugins.common.turn_view import token_id


class StartupError(Exception):
    """The server must not start. The message is one line for a user."""


def read_settings() -> Settings:
    """The `PRR_*` variables of this process.

    Raises:
        StartupError: one of them holds a value that is not accepted.
    """
    try:
        return Settings.from_env(os.environ)
    except SettingsError as e:
        raise StartupError(e) from None


def settings_findings() -> Iterator[Finding]:
    """What a diagnosis says of them, the shared store that they name included."""
    try:
        settings = read_settings()
    except StartupError as e:
        yield Finding("settings", "error", str(e))
        return
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "warnings"}
    yield Finding("settings", "ok", ", ".join(f"{name}={value}" for name, value in values.items()))
    for line in settings.warnings:
        yield Finding("settings", "warning", line)
    if settings.store_url is not None:
        from prr_plugins.common import redis_store

        yield redis_store.examine(settings)


def model_findings(
    fmt: Format | None, model: str | None, calls: bool, chat_template: str | None, read: Callable[[str], Any]
) -> Iterator[Finding]:
    """What a diagnosis says of the format that the flags choose (None: of none of ours) and of the model to serve.

    model: its folder or name; without it nothing is read.
    calls: whether the format is to read calls.
    chat_template: the text of a template to use instead of the model's own.
    read: the engine's own loader of a tokenizer. It reaches into several libraries, each with errors of its own.

    Raises:
        StartupError: they do not fit together.
    """
    if fmt is None:
        said = "no prr_* parser is chosen: requests pass as without the plugin"
        if model is None:
            yield Finding("flags", "ok", said)
        else:
            yield Finding("flags", "warning", f"{said}, and nothing of {model!r} was checked")
        return
    yield Finding("flags", "ok", f"format {fmt.name}")
    if model is None:
        return
    try:
        tokenizer = read(model)
    except Exception as e:
        words = (str(e).strip().splitlines() or ["no message"])[0]
        yield Finding("tokenizer", "error", f"that of {model!r} cannot be read ({type(e).__name__}: {words})")
        return
    check_markers(fmt, tokenizer, repr(model))
    yield Finding("tokenizer", "ok", f"has {' '.join(fmt.markers)}")
    if calls:
        check_template(fmt, tokenizer_render(tokenizer, chat_template), repr(model))
        yield Finding("template", "ok", "a call that it writes is read back")


def check_markers(fmt: Format, tokenizer: Any, where: str) -> None:
    """Raises `StartupError` where the tokenizer lacks a marker that the format needs as one token."""
    lacking = [text for text in fmt.markers if token_id(tokenizer, text) is None]
    if lacking:
        raise StartupError(f"{fmt.name} does not fit the tokenizer of {where}: it has no token {', '.join(lacking)}")


_PROBE = "prr_probe"
_PROBE_ARGUMENTS = {"text": "a b", "number": 7}
PROBE_TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": _PROBE,
            "description": "Checks that calls are read as the template writes them.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["text", "number"],
            },
        },
    }
]


def is_probe(name: str, arguments: Any) -> bool:
    """Whether a call is the one that `check_template` has the template write."""
    return name == _PROBE and bool(arguments == _PROBE_ARGUMENTS)


def check_template(fmt: Format, render: Render, where: str) -> str:
    """Render a call and read it back; the call as the template writes it, behind the generation prompt.

    Raises:
        StartupError: the format is not what the template writes.
    """
    user: Message = {"role": "user", "content": "probe"}
    function = {"name": _PROBE, "arguments": json.dumps(_PROBE_ARGUMENTS)}
    # Kimi and Mistral templates look at the id; this one is fine with all of them.
    call = {"id": f"functions.{_PROBE}:0", "type": "function", "function": function}
    turn: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        prompt = render([user], PROBE_TOOLS, True, {})
        history = render([user, turn], PROBE_TOOLS, False, {})
    except Exception as e:
        raise StartupError(
            f"{fmt.name}: the chat template of {where} does not render a tool call ({type(e).__name__}: {e})"
        ) from e
    common = next((i for i, (a, b) in enumerate(zip(prompt, history, strict=False)) if a != b), len(prompt))
    # Two markers may begin alike (Gemma's `<|channel>` of the prompt and `<|tool_call>`): do not cut one.
    common -= max(
        (n for text in fmt.markers for n in range(1, len(text)) if history.endswith(text[:n], 0, common)), default=0
    )
    opener = max((history.rfind(text, 0, common) for text in fmt.turn_openers), default=-1)
    tail = history[max(opener, 0) : common]
    if _reads_back(fmt, history[common:], tail):
        return history[common:]
    others = [n for n in sorted(FORMATS) if n != fmt.name and _reads_back(get_format(n), history[common:], tail)]
    hint = f"; {' or '.join(others)} does" if others else ""
    raise StartupError(f"{fmt.name} does not read the calls that the chat template of {where} writes{hint}")


def tokenizer_render(tokenizer: Any, chat_template: str | None = None) -> Render:
    """A Jinja template rendered by the tokenizer itself, arguments parsed as engines do.

    chat_template: the text of a template to use instead of the tokenizer's own.
    """

    def render(
        messages: list[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        parsed = [
            {**m, "tool_calls": [_parsed(c) for c in m["tool_calls"]]} if "tool_calls" in m else m for m in messages
        ]
        kwargs = {**template_kwargs, **({"chat_template": chat_template} if chat_template else {})}
        text: str = tokenizer.apply_chat_template(
            parsed, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False, **kwargs
        )
        return text

    return render


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def _reads_back(fmt: Format, completion: str, tail: str) -> bool:
    calls = parse(fmt, completion, tools=PROBE_TOOLS, prompt_tail=tail).parsed_tool_calls
    return len(calls) == 1 and is_probe(calls[0].name, json.loads(calls[0].arguments))
