"""The harness itself on the real server: what is scripted is what the engine samples, and nothing outlives a block."""

from __future__ import annotations

import os
import random
from pathlib import Path

import openai
import pytest

from prr_testing.chat import chat
from prr_testing.sampler import SEPARATOR, select_script
from prr_testing.server import Metrics, Server, ServerFailed, serve
from prr_testing.tokens import Vocabulary

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "list the files"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "description": "List a folder",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
TEXT = (
    "Let me look.\n</think>\n\n<tool_call>\n<function=ls>\n<parameter=path>\n/srv/日本\n</parameter>\n"
    "</function>\n</tool_call><|im_end|>"
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_engine_samples_the_script(stock_server: Server, qwen: Vocabulary, stream: bool, seed: int | None) -> None:
    script = qwen.encode(TEXT, rng=None if seed is None else random.Random(seed))
    reply = chat(stock_server.client(), stock_server.model, USER, tools=TOOLS, script_ids=script, stream=stream)
    assert reply.completion_ids == script
    assert reply.completion_tokens == len(script)
    rendered = qwen.tokenizer.apply_chat_template(USER, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert qwen.text_of(reply.prompt_ids) == rendered
    assert reply.prompt_tokens == len(reply.prompt_ids)
    assert reply.message["reasoning"].strip() == "Let me look."
    assert reply.message["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/srv/日本"}'}
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_max_tokens_cuts_the_script(stock_server: Server, qwen: Vocabulary, stream: bool) -> None:
    script = qwen.encode(TEXT)
    reply = chat(stock_server.client(), stock_server.model, USER, script_ids=script, stream=stream, max_tokens=3)
    assert reply.completion_ids == script[:3]
    assert reply.finish_reason == "length"


def test_behind_a_script_comes_the_end(stock_server: Server, qwen: Vocabulary) -> None:
    script = qwen.encode("Hm")
    reply = chat(stock_server.client(), stock_server.model, USER, script_ids=script, max_tokens=20)
    assert reply.completion_ids == [*script, qwen.added["<|im_end|>"]]
    assert reply.finish_reason == "stop"


def test_every_choice_has_its_script(stock_server: Server, qwen: Vocabulary) -> None:
    one, two = qwen.encode("one</think>1<|im_end|>"), qwen.encode("two</think>2<|im_end|>")
    response = stock_server.client().chat.completions.create(
        model=stock_server.model,
        messages=USER,  # type: ignore[arg-type]
        n=2,
        seed=0,
        extra_body={"return_token_ids": True, "vllm_xargs": {"script_ids": [*one, SEPARATOR, *two]}},
    )
    assert [choice.token_ids for choice in response.choices] == [one, two]  # type: ignore[attr-defined]
    assert select_script([1, SEPARATOR, 2], None) == [1]


def test_a_bad_script_fails_only_its_request(stock_server: Server, qwen: Vocabulary) -> None:
    client = stock_server.client()
    with pytest.raises(openai.BadRequestError, match="script_ids must be a list of token ids"):
        chat(client, stock_server.model, USER, body={"vllm_xargs": {"script_ids": "no"}})
    reply = chat(client, stock_server.model, USER, script_ids=[qwen.encode("a")[0], 99_999_999])
    assert reply.completion_ids == [qwen.encode("a")[0], qwen.added["<|im_end|>"]]


def test_usage_and_counters_tell_the_same_hits(stock_server: Server, qwen: Vocabulary) -> None:
    messages = [{"role": "user", "content": "the same long question, again and again. " * 20}]
    script = qwen.encode("ok</think>ok<|im_end|>")
    client = stock_server.client()
    chat(client, stock_server.model, messages, script_ids=script)
    before = stock_server.metrics().total("vllm:prefix_cache_hits_total")
    reply = chat(client, stock_server.model, messages, script_ids=script)
    after = stock_server.metrics().total("vllm:prefix_cache_hits_total")
    block = stock_server.block_size
    assert reply.cached_tokens == after - before == block * ((reply.prompt_tokens - 1) // block) > 0


def test_metrics_are_summed_by_label() -> None:
    metrics = Metrics.parse(
        '# TYPE x counter\nx_total{a="1",b="2"} 3\nx_total{a="1",b="4"} 5\nx_total{a="2",b="2"} 7\n'
    )
    assert metrics.total("x_total") == 15
    assert metrics.total("x_total", a="1") == 8
    assert metrics.by_label("x_total", "b") == {"2": 10, "4": 5}


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why_and_is_gone(qwen_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with (
        pytest.raises(ServerFailed, match="no_such_parser"),
        serve(qwen_dir, tool_parser="no_such_parser", plugins="", log=log),
    ):
        pass
    assert log.stat().st_size > 0


def test_the_server_is_a_process_group_of_its_own(stock_server: Server) -> None:
    assert os.getpgid(stock_server.pid) == stock_server.pid != os.getpgid(0)
