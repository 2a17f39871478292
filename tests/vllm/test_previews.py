"""Routes that show a prompt without generating: they give the ids that the request will get, and leave no trace.

A KV-aware router hashes these ids to find the replica that holds their blocks; a client counts them.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from asking import TOOLS, Chat, call_text
from test_chat import rendered, user

pytestmark = pytest.mark.server


def show(talk: Chat, path: str, messages: list[dict[str, Any]], headers: Any = None, **fields: Any) -> list[int]:
    body = {"model": talk.server.model, "messages": messages, "tools": TOOLS, **fields}
    answer = httpx.post(f"{talk.server.base_url}{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert data.get("kv_transfer_params") is None
    return list(data["tokens"] if path == "/tokenize" else data["token_ids"])


ROUTES = ("/v1/chat/completions/render", "/tokenize")


def state(talk: Chat) -> tuple[float, ...]:
    names = ("prr_turns_total", "prr_records_total", "prr_store_turns", "prr_kept_tokens_total")
    return tuple(talk.counter(name) for name in names)


@pytest.mark.parametrize("path", ROUTES)
def test_the_prompt_to_come(talk: Chat, path: str) -> None:
    messages = user(f"show {path}")
    first = talk.ask(messages, f"so  so\n</think>\n\n I will.{call_text('a', '1e3')}")
    messages += [first.returned(), *first.results()]
    before = state(talk)
    shown = show(talk, path, messages)
    assert state(talk) == before
    second = talk.ask(messages, "x</think>y")
    assert second.prr["outcome"] == "spliced"
    assert shown == second.prompt_ids
    # A prompt that is shown is not a turn: nobody goes on from it.
    assert show(talk, path, [*messages[:1], {"role": "user", "content": "other"}]) == rendered(
        talk, [*messages[:1], {"role": "user", "content": "other"}]
    )


@pytest.mark.parametrize("path", ROUTES)
def test_modes_and_tenants(talk: Chat, path: str) -> None:
    messages = user(f"mine {path}")
    owner = {"X-Tenant": "a"}
    first = talk.ask(messages, "so  so\n</think>\n\n I will.", headers=owner)
    messages += [first.returned(), {"role": "user", "content": "on"}]
    plain = rendered(talk, messages)
    assert show(talk, path, messages, owner)[: len(first.turn)] == first.turn
    assert show(talk, path, messages, {"X-Tenant": "b"}) == plain
    assert show(talk, path, messages) == plain
    assert show(talk, path, messages, owner, prr_splice="off") == plain
    assert show(talk, path, messages, owner, prr_splice="observe") == plain


@pytest.mark.parametrize("path", ROUTES)
def test_hidden_reasoning_is_not_shown(talk: Chat, path: str) -> None:
    messages = user(f"hide {path}")
    first = talk.ask(messages, f"the secret</think>\n\n{call_text('a')}", extra={"include_reasoning": False})
    messages += [first.returned(), *first.results()]
    assert "secret" not in talk.tokenizer.decode(show(talk, path, messages))
    second = talk.ask(messages, "x</think>y")
    assert second.prr["outcome"] == "spliced"


def test_responses(talk: Chat) -> None:
    # On this route vLLM shows us no headers: with PRR_TENANT_HEADER set, the prompt cannot be known.
    body = {"model": talk.server.model, "input": "show", "vllm_xargs": {"script_ids": talk.ids("r </think> ok")}}
    url = f"{talk.server.base_url}/v1/responses"
    first = httpx.post(url, json=body, timeout=60).json()
    items = [{"role": "user", "content": "show"}, *first["output"], {"role": "user", "content": "on"}]
    before = state(talk)
    shown = httpx.post(f"{url}/render", json={"model": talk.server.model, "input": items}, timeout=60)
    assert shown.status_code == 200, shown.text
    assert state(talk) == before
    messages = [
        {"role": "user", "content": "show"},
        {"role": "assistant", "content": " ok", "reasoning_content": "r "},
        {"role": "user", "content": "on"},
    ]
    plain = talk.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert shown.json()["token_ids"] == plain
