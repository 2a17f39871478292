"""Places of SGLang that the plugin hangs on: one that moved is named, and requests are answered all the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from prr_plugins.sglang import hooks, register

HANDLER = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
CHUNKS = "sglang.srt.entrypoints.openai.chat_encoding_adapters.token_output_sse_chunks"


def _run(*moved: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("moved_target.py")), *moved]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    "moved",
    [
        [f"{HANDLER}._apply_jinja_template"],
        [f"{HANDLER}._build_chat_response"],
        [f"{HANDLER}._generate_chat_stream", f"{HANDLER}._encoding_output"],
        [CHUNKS],
    ],
    ids=["prompt", "response", "stream and output", "a function of SGLang's that ours calls"],
)
def test_a_place_that_moved(moved: list[str]) -> None:
    told = _run(*moved)
    for path in moved:  # a line each in the log, and `prr doctor` says so
        assert len([line for line in told["lines"] if f"{path} is not there" in line and "off: " in line]) == 1
        findings = [f for f in told["doctor"]["findings"] if f["check"].startswith("hook ") and path in f["detail"]]
        assert [f["level"] for f in findings] == ["warning"]
    assert told["doctor"]["level"] == "warning"
    # the parsers go on
    for choice in (told["whole"]["choices"][0]["message"], _message(told["events"])):
        assert choice["reasoning_content"].strip() == "so"
        assert choice["content"].strip() == "I will."
        assert [c["function"] for c in _plain(choice["tool_calls"])] == [
            {"name": "edit", "arguments": '{"path": "/x", "count": 1e3}'}
        ]
    assert told["second"]["choices"][0]["finish_reason"] == "tool_calls"
    assert (told["second"].get("prr") or {"outcome": "refused"})["outcome"] == "refused"


def _plain(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"function": {name: call["function"][name] for name in ("name", "arguments")}} for call in calls]


def _message(events: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for part in delta.get("tool_calls") or ():
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"function": {"name": part["function"]["name"], "arguments": ""}})
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"] or ""
    return message


def test_a_place_with_other_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = hooks.Hook("stream", "sglang.srt.runtime_context.publish", "serve", "streams", "a:b", ("another",))
    monkeypatch.setattr(hooks.HOOKS, "rows", (*hooks.ROWS[:2], moved))
    monkeypatch.setattr(hooks.HOOKS, "installed", set())
    assert hooks.missing_for_splice() == ["stream"]
    hooks.install("serve")  # leaves it alone
    assert any("publish no longer takes another: off: streams" in line for line in hooks.HOOKS.warnings())


def test_without_the_first_hook_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = hooks.Hook("config", "sglang.srt.runtime_context.announce", "register", "all but the parsers", "a:b")
    monkeypatch.setattr(hooks.HOOKS, "rows", (gone, *hooks.ROWS[1:]))
    monkeypatch.setattr(hooks.HOOKS, "installed", set())
    register()
    lines = [r.getMessage() for r in caplog.records if "runtime_context.announce is not there" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].endswith("off: all but the parsers")


def test_the_document_names_every_hook() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    rows = [
        line.split("|")[1] for line in text.partition("## Hooks on SGLang")[2].splitlines() if line.startswith("| `")
    ]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(hook.name for hook in hooks.ROWS)


class Place:
    """What two plugins want."""

    @staticmethod
    def ask() -> str:
        return "asked"


def test_a_place_that_another_plugin_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang then passes over our hook without a word."""
    target = f"{__name__}.Place.ask"
    HookRegistry.register(target, lambda original: original() + " twice", HookType.AROUND)
    HookRegistry.apply_hooks()
    wanted = hooks.Hook("prompt", target, "serve", "splicing", f"{__name__}:ours")
    monkeypatch.setattr(hooks.HOOKS, "rows", (wanted,))
    monkeypatch.setattr(hooks.HOOKS, "installed", set())
    monkeypatch.setattr(hooks.HOOKS, "not_in_place", {})
    hooks.install("serve")
    assert Place.ask() == "asked twice"
    assert hooks.missing_for_splice() == ["prompt"]
    assert "did not take our hook" in hooks.HOOKS.warnings()[0]


def ours(original: Any) -> str:
    return "ours"
