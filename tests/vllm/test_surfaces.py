"""Other API surfaces on a server with our parsers: they parse as chat does, and nothing of ours breaks them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from asking import TOOLS, Chat, call_text
from test_chat import user

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
TEXT = f"Hm \n</think>\n\n I will. {call_text('a', '1e3')}"
ARGUMENTS = '{"path": "a", "count": 1e3}'


def post(talk: Chat, path: str, body: dict[str, Any], text: str = TEXT) -> httpx.Response:
    body = {"model": talk.server.model, "vllm_xargs": {"script_ids": talk.ids(text)}, **body}
    response = httpx.post(f"{talk.server.base_url}{path}", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@BOTH
def test_responses(talk: Chat, stream: bool) -> None:
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    body = {"input": "edit", "tools": tools, "max_output_tokens": 200, "stream": stream}
    response = post(talk, "/v1/responses", body)
    done = events(response)[-1]["response"] if stream else response.json()
    calls = [item for item in done["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("edit", ARGUMENTS)]
    reasoning = [item for item in done["output"] if item["type"] == "reasoning"]
    assert reasoning[0]["content"][0]["text"] == "Hm "


@BOTH
def test_anthropic_messages(talk: Chat, stream: bool) -> None:
    function = TOOLS[0]["function"]
    tools = [{"name": "edit", "description": "Edit.", "input_schema": function["parameters"]}]
    user = [{"role": "user", "content": "edit"}]
    body = {"messages": user, "tools": tools, "max_tokens": 200, "stream": stream}
    response = post(talk, "/v1/messages", body)
    if stream:
        parts = [e["delta"].get("partial_json", "") for e in events(response) if e["type"] == "content_block_delta"]
        assert "".join(parts) == ARGUMENTS
    else:
        blocks = response.json()["content"]
        assert [b["input"] for b in blocks if b["type"] == "tool_use"] == [{"path": "a", "count": 1000.0}]


def test_batch(talk: Chat) -> None:
    conversations = [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]
    response = post(talk, "/v1/chat/completions/batch", {"messages": conversations, "max_tokens": 50}, "Hm </think> ok")
    messages = [choice["message"] for choice in response.json()["choices"]]
    assert [(m["reasoning"], m["content"]) for m in messages] == [("Hm ", " ok")] * 2


def test_batches_go_on(talk: Chat) -> None:
    """Each conversation of a batch from its own turn."""
    conversations: list[list[dict[str, Any]]] = [user("one, batched"), user("two, batched")]
    text = "so  so\n</think>\n\n ok "
    fields = {"max_tokens": 50, "return_token_ids": True, "prr": True}
    before: list[list[int]] = []
    for round_number in range(3):
        prompts = [show(talk, conversation) for conversation in conversations]
        answer = post(talk, "/v1/chat/completions/batch", {"messages": conversations, **fields}, text).json()
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
        for number, choice in enumerate(answer["choices"]):
            assert choice["raw_completion_ids"] == choice["token_ids"] == talk.ids(text)
            assert choice["prr"]["outcome"] == ("spliced" if round_number else "first_turn")
            if round_number:
                assert choice["prr"]["kept_tokens"] == len(before[number])
                assert prompts[number][: len(before[number])] == before[number]
            content = choice["message"]["content"]
            conversations[number] += [{"role": "assistant", "content": content}, *user(f"on {round_number}")]
        before = [prompt + talk.ids(text) for prompt in prompts]
    # A conversation goes on from a batch to the chat route.
    reply = talk.ask(conversations[1], tools=None)
    assert reply.prompt_ids[: len(before[1])] == before[1]


def show(talk: Chat, messages: list[dict[str, Any]]) -> list[int]:
    return list(post(talk, "/v1/chat/completions/render", {"messages": messages}).json()["token_ids"])


def test_an_image_is_for_the_engine_to_take_or_to_refuse(talk: Chat) -> None:
    """This model sees none: vLLM says so, to us and without us in the same words."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    told = []
    for mode in ("on", "off"):
        body = {"messages": [{"role": "user", "content": [image]}], "model": talk.server.model, "prr_splice": mode}
        answer = httpx.post(f"{talk.server.base_url}/v1/chat/completions", json=body, timeout=60)
        told.append((answer.status_code, answer.json()["error"]["message"]))
    assert told[0] == told[1]
    assert told[0][0] == 400


def test_tokenize_renders_the_template(talk: Chat) -> None:
    messages = [{"role": "user", "content": "how long"}]
    counted = post(talk, "/tokenize", {"messages": messages}).json()
    assert counted["tokens"] == talk.ask(messages, tools=None).prompt_ids


def test_content_parts_are_read_once_only(talk: Chat) -> None:
    """Validation may leave parts as an iterator; looking at them must not leave the engine without."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]
    first = talk.ask(messages, "r</think>\n\nyes")
    assert "in parts" in talk.tokenizer.decode(first.prompt_ids)
    answer = {"role": "assistant", "content": [{"type": "text", "text": first.message["content"]}]}
    second = talk.ask([*messages, answer, {"role": "user", "content": [{"type": "text", "text": "more parts"}]}])
    assert second.prr["outcome"] == "spliced"
    assert second.prompt_ids[: len(first.turn)] == first.turn
    assert "more parts" in talk.tokenizer.decode(second.prompt_ids)


@BOTH
def test_continuous_usage_counts_reasoning(talk: Chat, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 50, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    response = post(talk, "/v1/chat/completions", body, "one two three</think>ok")
    usage = events(response)[-1]["usage"] if stream else response.json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(talk.ids("one two three", stop=False))
