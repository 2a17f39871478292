"""What in a template makes prefix caches miss, whatever the model writes: found by rendering, not by reading."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from prr_plugins.cli.survival import TOOLS
from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError, Traced
from prr_plugins.common.messages import Message

_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "First question?"}
_TURN = {"role": "assistant", "content": "First answer."}
_NEXT = {"role": "user", "content": "Second question?"}


def lint(template: ChatTemplate, kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings: `{lint, level, message, line}`; a `warning` costs cache by itself, a `note` with some clients."""
    found = []
    for check in (_volatile, _tools_move, _tools_order, _late_system):
        try:
            finding = check(template, lambda m, t=None: template.trace(m, t, True, kwargs))
        except TemplateError:
            continue  # the template does not take such a conversation
        if finding:
            found.append(finding)
    return found


_Trace = Callable[..., Traced]


def _volatile(template: ChatTemplate, trace: _Trace) -> dict[str, Any] | None:
    """A date or a random value in the prompt."""
    first = trace([_USER], TOOLS)
    again = trace([_USER], TOOLS)
    kept_clock = template.now
    try:
        template.now = (kept_clock or datetime.datetime(2026, 1, 1)) + datetime.timedelta(days=400, hours=7, minutes=9)
        later = trace([_USER], TOOLS)
    finally:
        template.now = kept_clock
    other, what = (again, "a random value") if again.text != first.text else (later, "the date or time")
    if other.text == first.text:
        return None
    at = next((i for i, (a, b) in enumerate(zip(first.text, other.text, strict=False)) if a != b), len(first.text))
    share = round(100 * at / max(1, len(first.text)))
    message = f"{what} is written {share} % into a first prompt: all behind it is lost when it changes"
    return {"lint": "volatile_value", "level": "warning", "message": message, "line": first.line(at)}


def _tools_move(template: ChatTemplate, trace: _Trace) -> dict[str, Any] | None:
    """Tools that stand before the last user message move with every turn (Mistral's older templates)."""
    name = TOOLS[0]["function"]["name"]
    once, twice = trace([_USER], TOOLS), trace([_USER, _TURN, _NEXT], TOOLS)
    question = _USER["content"]
    if 0 <= once.text.find(name) < once.text.rfind(question) and 0 <= twice.text.find(question) < twice.text.find(name):
        message = "tools are written beside the last user message: they move with every turn"
        return {
            "lint": "tools_move",
            "level": "warning",
            "message": message,
            "line": twice.line(twice.text.index(name)),
        }
    return None


def _tools_order(template: ChatTemplate, trace: _Trace) -> dict[str, Any] | None:
    """Tools as the client orders them: its keys, its list."""
    turned: list[Message] = [
        {"type": t["type"], "function": dict(reversed(list(t["function"].items())))} for t in TOOLS
    ]
    plain, other = trace([_USER], TOOLS), trace([_USER], turned)
    if plain.text == other.text:
        return None
    at = next((i for i, (a, b) in enumerate(zip(plain.text, other.text, strict=False)) if a != b), 0)
    message = "tools are written in the client's key order: a client that does not fix it loses the whole prompt"
    return {"lint": "tools_unstable_order", "level": "note", "message": message, "line": plain.line(at)}


def _late_system(template: ChatTemplate, trace: _Trace) -> dict[str, Any] | None:
    """A system message in mid-conversation (Claude Code sends one a turn): refused, or moved to the front."""
    late = {"role": "system", "content": "Late note."}
    trace([_SYSTEM, _USER, _TURN, _NEXT])  # the plain conversation must work, else this says nothing
    try:
        text = trace([_SYSTEM, _USER, _TURN, _NEXT, late]).text
    except TemplateError:
        message = "a system message in mid-conversation is refused: engines merge it into the first one, which changes"
        return {"lint": "late_system_refused", "level": "note", "message": message, "line": None}
    if 0 <= text.find(late["content"]) < text.find(_USER["content"]):
        message = "a system message in mid-conversation is moved to the front: everything behind it changes"
        return {"lint": "late_system_moved", "level": "note", "message": message, "line": None}
    return None
