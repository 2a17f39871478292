"""What must fit together before a server starts, the refusal where it does not, and the line that says what is on.

A server that cannot do what its flags ask for refuses to start with one line on stderr. What would merely go unnoticed
gets one warning line.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

from prr_plugins.common.bridge.template_probe import Render
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.reasoning_tokens import token_id
from prr_plugins.common.parsing.stream_parser import parse
from prr_plugins.common.serving.hooks import HookTable
from prr_plugins.common.serving.runtime import BaseRuntime
from prr_plugins.common.settings import Settings, SettingsError

PACKAGE = "prr-plugins"


class StartupError(Exception):
    """The server must not start. The message is one line for a user."""


def version() -> str:
    """Of this package, as it is installed here."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def say_refusal(message: str | Exception) -> None:
    """The one line on stderr with which a server that must not start ends."""
    print(f"ERROR {PACKAGE}: {message}", file=sys.stderr, flush=True)


def start_line(hooks: HookTable, fmt: Format, runtime: BaseRuntime, *, calls: bool, reasoning: bool) -> str:
    """What is active, in one line. calls, reasoning: which halves of a completion are read."""
    halves = [name for name, read in (("calls", calls), ("reasoning", reasoning)) if read]
    # the run-time switch is served only where it is asked for
    states = [s for s in hooks.states() if s.hook.wrapper is not None and (s.installed or s.hook.stage != "admin")]
    return (
        f"{PACKAGE} {version()} on {hooks.engine} {hooks.version}: {fmt.name} for {' and '.join(halves)}, "
        f"splice {runtime.mode(None)}, retention {runtime.settings.retention}, "
        f"store {runtime.settings.store_bytes >> 20} MiB, hooks {sum(s.installed for s in states)}/{len(states)}"
    )


def read_settings() -> Settings:
    """The `PRR_*` variables of this process.

    Raises:
        StartupError: one of them holds a value that is not accepted.
    """
    try:
        return Settings.from_env(os.environ)
    except SettingsError as e:
        raise StartupError(e) from None


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


def _reads_back(fmt: Format, completion: str, tail: str) -> bool:
    calls = parse(fmt, completion, tools=PROBE_TOOLS, prompt_tail=tail).parsed_tool_calls
    return len(calls) == 1 and is_probe(calls[0].name, json.loads(calls[0].arguments))
