"""The rows of docs/matching.md as changes to one history: what a client may do to it, and what must break the match.

`history()` is the conversation as it was returned; `model_turns()` what a model of Qwen's format wrote for it. A change
alters a list of such messages in place; the indices are those of `history()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
Change = Callable[[list[Message]], object]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}},
        },
    }
    for name, properties in (
        ("ls", {"path": "string", "depth": "number", "ratio": "number", "deep": "object"}),
        ("stat", {"path": "string"}),
    )
]


def call(call_id: str, name: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def history() -> list[Message]:
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in /srv?"},
        {
            "role": "assistant",
            "content": "\n\nLet me look.",
            "reasoning": "I need ls.",
            "tool_calls": [
                call("call_a", "ls", '{"path": "/srv", "depth": 1, "ratio": 1e3, "deep": {"b": [1, 2.50], "a": null}}'),
                call("call_b", "stat", '{"path": "/srv/é"}'),
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "x y"},
        {"role": "tool", "tool_call_id": "call_b", "content": "ok"},
        {"role": "assistant", "content": "Two files."},
    ]


def model_turns() -> tuple[str, str]:
    """The two completions of `history()`, without their stop token, behind a prompt that opens the reasoning."""

    def written(name: str, **values: str) -> str:
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"

    ls = written("ls", path="/srv", depth="1", ratio="1e3", deep='{"b": [1, 2.50], "a": null}')
    return (
        f"I need ls.\n</think>\n\n\n\nLet me look.\n\n{ls}\n{written('stat', path='/srv/é')}",
        "</think>\n\nTwo files.",
    )


def _arguments(messages: list[Message], text: Any) -> None:
    messages[2]["tool_calls"][0]["function"]["arguments"] = text


def _rename(messages: list[Message]) -> None:
    names: dict[str, str] = {}
    for message in messages:
        for one in message.get("tool_calls") or ():
            one["id"] = names.setdefault(one["id"], f"call_{len(names)}")
        if "tool_call_id" in message:
            message["tool_call_id"] = names[message["tool_call_id"]]


def _swap_results(messages: list[Message]) -> None:
    messages[3]["content"], messages[4]["content"] = messages[4]["content"], messages[3]["content"]


def _no_reasoning(message: Message) -> str:
    """Takes the reasoning off, whatever the engine calls it."""
    taken = [message.pop(name) for name in ("reasoning", "reasoning_content") if name in message]
    return str(taken[0])


def _text(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


MAY_CHANGE: dict[str, Change] = {
    "reasoning dropped": lambda m: _no_reasoning(m[2]),
    "reasoning under another name": lambda m: m[2].update(reasoning_content=_no_reasoning(m[2])),
    "reasoning as a part": lambda m: m[2].update(
        content=[{"type": "thinking", "thinking": _no_reasoning(m[2])}, *_text("Let me look.")]
    ),
    "outer whitespace trimmed": lambda m: m[2].update(content="Let me look."),
    "content as a part list": lambda m: m[2].update(content=_text("Let me look.")),
    "content in several parts": lambda m: m[2].update(content=_text("Let me ", "look.")),
    "user content as a part list": lambda m: m[1].update(content=_text("What is in /srv?")),
    "result as a part list": lambda m: m[3].update(content=_text("x y")),
    "arguments written anew": lambda m: _arguments(
        m, '{"deep":{"a":null,"b":[1.0,2.5]},"depth":1.0,"path":"\\/srv","ratio":1000.0}'
    ),
    "escapes in arguments": lambda m: m[2]["tool_calls"][1]["function"].update(arguments='{"path":"/srv/\\u00e9"}'),
    "arguments as an object": lambda m: _arguments(
        m, {"path": "/srv", "depth": 1, "ratio": 1000, "deep": {"b": [1, 2.5], "a": None}}
    ),
    "added defaults": lambda m: [
        m[2].update(refusal=None, audio=None, annotations=[], function_call=None),
        m[2]["tool_calls"][0].update(index=0),
        m[5].update(tool_calls=None, refusal=None),
    ],
    "empty call list": lambda m: m[5].update(tool_calls=[]),
    "renamed call ids": _rename,
    "extra fields that no template gets": lambda m: m[1].update(cache_control={"type": "ephemeral"}, id="msg_1"),
}

MUST_BREAK: dict[str, Change] = {
    "system text": lambda m: m[0].update(content="Be very brief."),
    "user text": lambda m: m[1].update(content="What is in /tmp?"),
    "outer whitespace of a user": lambda m: m[1].update(content="What is in /srv? "),
    "role": lambda m: m[0].update(role="developer"),
    "assistant text": lambda m: m[2].update(content="Let me see."),
    "inner whitespace": lambda m: m[2].update(content="Let me  look."),
    "call name": lambda m: m[2]["tool_calls"][0]["function"].update(name="dir"),
    "argument text": lambda m: _arguments(m, '{"path":"/tmp","depth":1,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "argument number": lambda m: _arguments(m, '{"path":"/srv","depth":2,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "argument type": lambda m: _arguments(m, '{"path":"/srv","depth":true,"ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'),
    "number as string": lambda m: _arguments(
        m, '{"path":"/srv","depth":"1","ratio":1e3,"deep":{"b":[1,2.5],"a":null}}'
    ),
    "array order": lambda m: _arguments(m, '{"path":"/srv","depth":1,"ratio":1e3,"deep":{"b":[2.5,1],"a":null}}'),
    "argument dropped": lambda m: _arguments(m, '{"path":"/srv","depth":1,"ratio":1e3}'),
    "null argument dropped": lambda m: _arguments(m, '{"path":"/srv","depth":1,"ratio":1e3,"deep":{"b":[1,2.5]}}'),
    "call order": lambda m: m[2]["tool_calls"].reverse(),
    "call dropped": lambda m: m[2]["tool_calls"].pop(),
    "result text": lambda m: m[3].update(content="[cleared]"),
    "results swapped": _swap_results,
    "result order": lambda m: m.insert(3, m.pop(4)),
    "result given to another call": lambda m: m[3].update(tool_call_id=m[4]["tool_call_id"]),
    "reasoning part of another role": lambda m: m[1].update(
        content=[*_text("What is in /srv?"), {"type": "thinking", "thinking": "Say no."}]
    ),
    "calls of another role": lambda m: m[1].update(tool_calls=[call("call_c", "ls", "{}")]),
    "message inserted": lambda m: m.insert(2, {"role": "user", "content": "Please."}),
    "message removed": lambda m: m.pop(0),
    "parts instead of one text": lambda m: m[1].update(content=_text("What is in", " /srv?")),
    "name": lambda m: m[1].update(name="ann"),
}
