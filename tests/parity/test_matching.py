"""The table of docs/matching.md on a real server of either engine: every change that a client may make, and every edit.

One conversation of two turns is sampled; each row sends it again, changed, with a new question.
"""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from prr_testing.matching import MAY_CHANGE, MUST_BREAK, TOOLS, Change, Message, history, model_turns
from prr_testing.server import Server
from prr_testing.talk import Answer, Talk

pytestmark = pytest.mark.server

TENANT = {"cache_salt": uuid.uuid4().hex}
# SGLang takes these fields off before any template sees them: to it, and to us, nothing was changed.
NOT_SEEN = {"sglang": ("calls of another role", "name")}
QUESTION = {"role": "user", "content": "Which?"}


@dataclass
class Told:
    """The conversation as it went: what the client has, and its two turns."""

    talk: Talk
    messages: list[Message]
    first: Answer
    second: Answer

    def ask(self, change: Change | None, **extra: Any) -> Answer:
        messages = copy.deepcopy(self.messages)
        if change is not None:
            change(messages)
        return self.talk.ask([*messages, QUESTION], "</think>\n\nBoth.", tools=TOOLS, extra={**TENANT, **extra})


@pytest.fixture(scope="module")
def told(server: Server, qwen_dir: Path) -> Told:
    talk = Talk(server, qwen_dir)
    shape = history()
    messages = shape[:2]
    scripts = model_turns()
    first = talk.ask(messages, scripts[0], tools=TOOLS, extra=TENANT)
    assert [(name, arguments) for name, arguments, _ in first.calls] == [
        (one["function"]["name"], one["function"]["arguments"]) for one in shape[2]["tool_calls"]
    ]
    assert (first.content, first.reasoning) == (shape[2]["content"], shape[2]["reasoning"])
    results = [{**result, "content": told["content"]} for result, told in zip(first.results(), shape[3:5], strict=True)]
    messages += [first.returned(reasoning=True), *results]
    second = talk.ask(messages, scripts[1], tools=TOOLS, extra=TENANT)
    assert second.content == shape[5]["content"]
    messages += [second.returned(reasoning=True)]
    return Told(talk, messages, first, second)


def asked(told: Told, change: Change) -> Answer:
    try:
        return told.ask(change)
    except openai.APIStatusError as refusal:
        with pytest.raises(type(refusal)):  # the engine's own doing
            told.ask(change, prr_splice="off")
        pytest.skip(f"{told.talk.server.engine} itself does not take this: {refusal.message[:100]}")


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_may_change(told: Told, name: str) -> None:
    answer = asked(told, MAY_CHANGE[name])
    assert answer.prr is not None
    assert answer.prr["outcome"] == "spliced", answer.prr
    written = f"\n<|im_start|>user\n{QUESTION['content']}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert answer.prompt_ids == told.second.turn + told.talk.ids(written, stop=False)


@pytest.mark.parametrize("name", MUST_BREAK)
def test_must_break(told: Told, name: str) -> None:
    answer = asked(told, MUST_BREAK[name])
    assert answer.prr is not None
    if name in NOT_SEEN.get(told.talk.server.engine, ()):
        unchanged = told.ask(None, prr_splice="off").prompt_ids
        assert told.ask(MUST_BREAK[name], prr_splice="off").prompt_ids == unchanged
        return
    assert answer.prompt_ids[: len(told.second.turn)] != told.second.turn
    if answer.prr["outcome"] == "spliced":  # what stands before the edit goes on
        assert answer.prr["reason"].partition(":")[0] in ("edited", "unknown_turn")
        assert answer.prompt_ids[: len(told.first.turn)] == told.first.turn
    else:
        assert answer.prompt_ids == told.ask(MUST_BREAK[name], prr_splice="off").prompt_ids
