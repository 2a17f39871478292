"""`/v1/responses` on a real server: loops of several turns, with the whole history or with a `previous_response_id`.

Ids are vLLM's own (`enable_response_messages`): each prompt is the one before, what was sampled, and the new items.
"""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from asking import TOOLS, Chat, call_text
from test_chat import user
from test_surfaces import BOTH, events

pytestmark = pytest.mark.server

THINK = "<|im_start|>assistant\n<think>\n"
RESPONSES_TOOLS = [{"type": "function", **TOOLS[0]["function"]}]
CALLS = f"Hm, \n so. \n</think>\n\n\nBoth.\n\n{call_text('a', '1e3')}{call_text('ü', '1.0')}"
Item = dict[str, Any]


class Response:
    """A response as a client has it, whole or at the end of its stream."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.output: list[Item] = data["output"]
        self.prr: dict[str, Any] = data["prr"]

    @property
    def prompt_ids(self) -> list[int]:
        return list(self.data["input_messages"][0]["tokens"])

    @property
    def turn(self) -> list[int]:
        return self.prompt_ids + list(self.data["output_messages"][0]["tokens"])

    def results(self) -> list[Item]:
        calls = [item for item in self.output if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": "done"} for call in calls]


def ask(
    talk: Any, items: str | list[Item], script: str | list[int], *, stream: bool = False, **fields: Any
) -> Response:
    body = {
        "model": talk.server.model,
        "input": user(items) if isinstance(items, str) and "previous_response_id" not in fields else items,
        "tools": RESPONSES_TOOLS,
        "max_output_tokens": 300,
        "vllm_xargs": {"script_ids": script if isinstance(script, list) else talk.ids(script)},
        "enable_response_messages": True,
        "prr": True,
        "stream": stream,
        **fields,
    }
    answer = httpx.post(f"{talk.server.base_url}/v1/responses", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    if not stream:
        return Response(answer.json())
    told = events(answer)
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    output = told[-1]["response"]["output"]
    # GPT-OSS's reasoning without a text has no events: vLLM's own doing
    assert [item["id"] for item in done] == [
        item["id"] for item in output if item["type"] != "reasoning" or item["content"][0]["text"]
    ]
    return Response(told[-1]["response"])


def assert_goes_on(talk: Chat, before: Response, after: Response, text: str) -> None:
    assert after.prr["outcome"] == "spliced", after.prr
    assert after.prompt_ids == before.turn + talk.ids(text, stop=False)
    assert after.prr["kept_tokens"] == len(before.turn)
    block = talk.server.block_size
    most = block * min((len(before.turn) - 1) // block, (len(after.prompt_ids) - 1) // block)
    assert after.data["usage"]["input_tokens_details"]["cached_tokens"] == most


def tool_turn(*results: str) -> str:
    written = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"\n<|im_start|>user\n{written}<|im_end|>\n{THINK}"


def user_turn(text: str) -> str:
    return f"\n<|im_start|>user\n{text}<|im_end|>\n{THINK}"


def without_reasoning(output: list[Item]) -> list[Item]:
    return [item for item in output if item["type"] != "reasoning"]


@BOTH
@pytest.mark.parametrize("keep", [list, without_reasoning], ids=["reasoning returned", "reasoning dropped"])
def test_the_whole_history(talk: Chat, stream: bool, keep: Any) -> None:
    items: list[Item] = user(f"edit {stream} {keep.__name__}")
    first = ask(talk, items, CALLS, stream=stream)
    assert first.prr["outcome"] == "first_turn"
    items += [*keep(first.output), *first.results()]
    second = ask(talk, items, "ok</think>\n\nDone.  ", stream=stream)
    assert_goes_on(talk, first, second, tool_turn("done", "done"))
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}
    items += [*keep(second.output), question]
    third = ask(talk, items, f"</think>\n\n{call_text('c')}", stream=stream)
    assert_goes_on(talk, second, third, user_turn("?"))
    items += [*keep(third.output), *third.results()]
    assert_goes_on(talk, third, ask(talk, items, "x</think>y", stream=stream), tool_turn("done"))


@BOTH
def test_behind_a_previous_response(talk: Chat, stream: bool) -> None:
    """vLLM itself forgets the calls of a previous response; the spliced prompt has them."""
    first = ask(talk, f"edit {stream}", CALLS, stream=stream)
    second = ask(talk, first.results(), "ok</think>\n\nDone.", stream=stream, previous_response_id=first.data["id"])
    assert_goes_on(talk, first, second, tool_turn("done", "done"))
    third = ask(talk, "and?", "ok</think>\n\nNo.", stream=stream, previous_response_id=second.data["id"])
    assert_goes_on(talk, second, third, user_turn("and?"))
    fork = ask(talk, "or?", "ok</think>\n\nYes.", stream=stream, previous_response_id=second.data["id"])
    assert_goes_on(talk, second, fork, user_turn("or?"))


def test_text_behind_a_call_is_one_turn(talk: Chat) -> None:
    """A stream makes three items of it; vLLM makes two messages of these."""
    items: list[Item] = user("around")
    first = ask(talk, items, f"r</think>\n\nFirst.{call_text('a')}Then.", stream=True)
    assert [item["type"] for item in first.output] == ["reasoning", "message", "function_call", "message"]
    items += [*first.output, *first.results()]
    assert_goes_on(talk, first, ask(talk, items, "x</think>y"), tool_turn("done"))


def test_other_instructions_are_another_conversation(talk: Chat) -> None:
    first = ask(talk, "hello", "r</think>\n\nHi.", instructions="Be kind.")
    again = ask(talk, "go on", "r</think>\n\nHm.", previous_response_id=first.data["id"], instructions="Be kind.")
    assert_goes_on(talk, first, again, user_turn("go on"))
    other = ask(talk, "go on", "r</think>\n\nHm.", previous_response_id=first.data["id"], instructions="Be brief.")
    assert other.prr["outcome"] == "refused"
    assert "Be brief." in talk.tokenizer.decode(other.prompt_ids)


def test_an_edit_is_never_spliced_over(talk: Chat) -> None:
    items: list[Item] = user("edits")
    first = ask(talk, items, CALLS)
    for place, name in ((1, "arguments"), (2, "name")):
        output = [dict(item) for item in without_reasoning(first.output)]
        output[place][name] = '{"path": "b"}' if name == "arguments" else "other"
        assert ask(talk, [*items, *output, *first.results()], "x</think>y").prr["outcome"] == "refused"


@BOTH
def test_cut_by_the_limit(talk: Chat, stream: bool) -> None:
    items: list[Item] = user(f"cut {stream}")
    first = ask(talk, items, "r</think>\n\none two three four five six", stream=stream, max_output_tokens=6)
    assert first.data["status"] == "incomplete"
    items += [*without_reasoning(first.output), {"role": "user", "content": "go on"}]
    for item in items:
        item.pop("status", None)  # else vLLM would go on with the unfinished message
    second = ask(talk, items, "x</think>y", stream=stream)
    assert_goes_on(talk, first, second, f"<|im_end|>{user_turn('go on')}")


@BOTH
def test_hidden_reasoning_stays_hidden(talk: Chat, stream: bool) -> None:
    first = ask(talk, f"secret {stream}", CALLS, stream=stream, include_reasoning=False)
    assert first.data["input_messages"]
    again = ask(talk, first.results(), "x</think>y", stream=stream, previous_response_id=first.data["id"])
    assert again.prr["outcome"] == "spliced", again.prr
    assert again.data["input_messages"] is None


def test_modes_and_refusals_by_name(talk: Chat) -> None:
    items: list[Item] = user("modes")
    first = ask(talk, items, "r</think>\n\nHi.")
    items += [*first.output, {"role": "user", "content": "on"}]
    named: list[tuple[dict[str, Any], str]] = [
        ({"prr_splice": "off"}, "off"),
        ({"prr_splice": "observe"}, "observe"),
        ({"truncation": "auto"}, "truncate_prompt_tokens"),
        ({"cache_salt": "other"}, "unknown_turn"),
        ({"tools": []}, "tools_changed"),
    ]
    for fields, reason in named:
        answer = ask(talk, items, "x</think>y", **fields)
        assert (answer.prr["outcome"], answer.prr["reason"]) == ("refused", reason)
    wrong = httpx.post(
        f"{talk.server.base_url}/v1/responses",
        json={"model": talk.server.model, "input": "x", "prr_splice": "maybe"},
        timeout=60,
    )
    assert wrong.status_code == 400


def test_a_response_read_later(talk: Chat) -> None:
    """`background`: the response is made behind the client's back, and spliced and recorded as ever."""
    body = {
        "model": talk.server.model, "input": user("later"), "tools": RESPONSES_TOOLS, "background": True, "store": True,
        "vllm_xargs": {"script_ids": talk.ids(CALLS)}, "enable_response_messages": True, "prr": True,
        "max_output_tokens": 300,
    }  # fmt: skip
    queued = httpx.post(f"{talk.server.base_url}/v1/responses", json=body, timeout=60).json()
    deadline = time.monotonic() + 60
    while (told := httpx.get(f"{talk.server.base_url}/v1/responses/{queued['id']}").json())["status"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first = Response(told)
    second = ask(talk, first.results(), "x</think>y", previous_response_id=queued["id"])
    assert_goes_on(talk, first, second, tool_turn("done", "done"))
