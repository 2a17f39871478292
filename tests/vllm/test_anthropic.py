"""`/v1/messages` on a real server, as Anthropic's clients use it: Claude Code's late system messages, token counts.

This surface returns no ids. Each prompt is read from the render route just before, and the engine's own counts of the
request (input tokens, cached tokens, tokens kept) are held against it.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from asking import TOOLS, Chat, call_text
from test_chat import user
from test_previews import state
from test_responses import tool_turn, user_turn
from test_surfaces import BOTH, events

pytestmark = pytest.mark.server

FUNCTION = TOOLS[0]["function"]
ANTHROPIC_TOOLS = [{"name": "edit", "description": "Edit.", "input_schema": FUNCTION["parameters"]}]
CALLS = f"Hm, \n so. \n</think>\n\n\nBoth.\n\n{call_text('a', '1e3')}{call_text('ü', '0.1000000000000000055')}"
Block = dict[str, Any]


class Answer:
    def __init__(self, blocks: list[Block], usage: dict[str, Any], prompt_ids: list[int], sampled: list[int]) -> None:
        self.blocks = blocks
        self.usage = usage
        self.prompt_ids = prompt_ids
        self.turn = prompt_ids + sampled

    def returned(self, *, thinking: bool = True) -> dict[str, Any]:
        kept = [block for block in self.blocks if thinking or block["type"] != "thinking"]
        return {"role": "assistant", "content": kept}

    def results(self, *more: Block) -> dict[str, Any]:
        calls = [block for block in self.blocks if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "done"} for call in calls]
        return {"role": "user", "content": [*results, *more]}


def body_of(talk: Chat, messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": talk.server.model, "messages": messages, "tools": ANTHROPIC_TOOLS, "max_tokens": 300, **fields}


def post(talk: Chat, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(f"{talk.server.base_url}/v1/messages{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def rendered(talk: Chat, body: dict[str, Any]) -> list[int]:
    return list(post(talk, "/render", body).json()["token_ids"])


def ask(talk: Chat, messages: list[Any], text: str, *, stream: bool = False, **fields: Any) -> Answer:
    body = body_of(talk, messages, **fields)
    prompt_ids = rendered(talk, body)
    script = talk.ids(text)
    answer = post(talk, "", {**body, "vllm_xargs": {"script_ids": script}, "stream": stream})
    if not stream:
        data = answer.json()
        return Answer(data["content"], data["usage"], prompt_ids, script)
    blocks, usage = _accumulated(events(answer))
    return Answer(blocks, usage, prompt_ids, script)


def _accumulated(told: list[dict[str, Any]]) -> tuple[list[Block], dict[str, Any]]:
    blocks: list[Block] = []
    usage: dict[str, Any] = {}
    for event in told:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            for name in ("text", "thinking", "partial_json"):
                if name in event["delta"]:
                    blocks[-1][name] = blocks[-1].get(name, "") + event["delta"][name]
        usage = event.get("usage") or usage
    for block in blocks:
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json"))
    return blocks, usage


def asked_on(talk: Chat, before: Answer, messages: list[Any], text: str, added: str, **options: Any) -> Answer:
    """The next answer, whose prompt is the turn before and `added`; the engine's counts say so too."""
    kept, spliced = talk.counter("prr_kept_tokens_total"), talk.turns("spliced")
    answer = ask(talk, messages, text, **options)
    assert answer.prompt_ids == before.turn + talk.ids(added, stop=False)
    assert talk.turns("spliced") == spliced + 1
    assert talk.counter("prr_kept_tokens_total") == kept + len(before.turn)
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(answer.usage.get(part, 0) for part in parts) == len(answer.prompt_ids)
    cached = answer.usage.get("cache_read_input_tokens", 0)
    block = talk.server.block_size
    assert cached == block * min((len(before.turn) - 1) // block, (len(answer.prompt_ids) - 1) // block)
    return answer


@BOTH
@pytest.mark.parametrize("thinking", [True, False], ids=["thinking returned", "thinking dropped"])
def test_a_tool_loop(talk: Chat, stream: bool, thinking: bool) -> None:
    messages: list[Any] = user(f"edit {stream} {thinking}")
    first = ask(talk, messages, CALLS, stream=stream)
    inputs = [block["input"] for block in first.blocks if block["type"] == "tool_use"]
    assert inputs == [{"path": "a", "count": 1000.0}, {"path": "ü", "count": 0.1}]
    messages += [first.returned(thinking=thinking), first.results()]
    second = asked_on(talk, first, messages, "ok</think>\n\nDone.  ", tool_turn("done", "done"), stream=stream)
    messages += [second.returned(thinking=thinking), {"role": "user", "content": [{"type": "text", "text": "and?"}]}]
    third = asked_on(talk, second, messages, f"</think>\n\n{call_text('c')}", user_turn("and?"), stream=stream)
    messages += [third.returned(thinking=thinking), third.results({"type": "text", "text": "by the way"})]
    added = tool_turn("done").replace("<|im_start|>assistant\n<think>\n", "") + user_turn("by the way").lstrip("\n")
    asked_on(talk, third, messages, "x</think>y", added, stream=stream)


def _late(text: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text}]}


@BOTH
def test_late_system_messages_of_claude_code(talk: Chat, stream: bool) -> None:
    """Each turn appends one, and bills itself in the system text. Qwen's template wants system messages in front: vLLM
    moves them there, and every prompt changes from its start on. Here they stand where they were written."""

    def system(number: int) -> list[Block]:
        return [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.0; cch={number:05x}"},
            {"type": "text", "text": f"You are a careful editor {stream}.", "cache_control": {"type": "ephemeral"}},
        ]

    def late_turn(results: int, text: str) -> str:
        written = tool_turn(*["done"] * results).removesuffix("<|im_start|>assistant\n<think>\n")
        return written + user_turn(text).lstrip("\n")

    messages: list[Any] = user("edit")
    first = ask(talk, messages, CALLS, stream=stream, system=system(1))
    assert "x-anthropic" not in talk.tokenizer.decode(first.prompt_ids)
    before, results = first, 2
    for number in range(3):
        text = f"{1000 - number} tokens left"
        messages += [before.returned(), before.results(), _late(text)]
        script = f"more</think>\n\n{call_text(f'file {number}', '1.0')}"
        options: dict[str, Any] = {"stream": stream, "system": system(number + 2)}
        before = asked_on(talk, before, messages, script, late_turn(results, text), **options)
        results = 1
    assert talk.turns("spliced", "late_system_as_user") >= 3
    messages += [before.returned(), before.results(), {"role": "user", "content": "thanks"}]
    added = late_turn(1, "thanks")
    asked_on(talk, before, messages, "x</think>y", added, stream=stream, system=system(9))


def test_an_edited_late_system_message(talk: Chat) -> None:
    """vLLM's own render, with all of them in front: as if we were not there."""
    messages: list[Any] = user("edit, late")
    first = ask(talk, messages, CALLS)
    messages += [first.returned(), first.results(), _late("1000 tokens left")]
    second = ask(talk, messages, f"more</think>\n\n{call_text('b')}")
    messages += [second.returned(), second.results(), _late("900 tokens left")]
    messages[3] = _late("1 token left")
    refused = talk.turns("refused")
    third = ask(talk, messages, "x</think>y")
    text = talk.tokenizer.decode(third.prompt_ids)
    if talk.turns("refused") == refused:  # spliced up to the edit: the edited text stands, the other nowhere
        assert third.prompt_ids[: len(first.turn)] == first.turn
    assert "1 token left" in text
    assert "1000 tokens" not in text


def test_edits_are_never_spliced_over(talk: Chat) -> None:
    messages: list[Any] = user("edit, edited")
    first = ask(talk, messages, CALLS)
    changed = first.returned()
    for block in changed["content"]:
        if block["type"] == "tool_use":
            block["input"]["count"] = True
    refused = talk.turns("refused", "unknown_turn")
    other = ask(talk, [*messages, changed, first.results()], "x</think>y")
    assert talk.turns("refused", "unknown_turn") == refused + 1
    assert other.prompt_ids[: len(first.turn)] != first.turn


def test_token_counts(talk: Chat) -> None:
    """What the next prompt really takes, and nothing of it is recorded or counted as a turn."""
    messages: list[Any] = user("count")
    first = ask(talk, messages, "so  so\n\n</think>\n\nOne.")
    messages += [first.returned(thinking=False), {"role": "user", "content": "two"}]
    before = state(talk)
    body = {name: value for name, value in body_of(talk, messages).items() if name != "max_tokens"}
    counted = post(talk, "/count_tokens", body).json()["input_tokens"]
    assert state(talk) == before
    assert counted == len(first.turn) + len(talk.ids(user_turn("two"), stop=False))
    second = asked_on(talk, first, messages, "x</think>y", user_turn("two"))
    assert counted == len(second.prompt_ids)
