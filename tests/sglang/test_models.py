"""Every model's own template and tokenizer behind SGLang: the promise holds, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_process import STOPS, TOOLS, Chat

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

# (a turn with a call, written as the model may and its template would not; a plain answer)
SCRIPTS = {
    "qwen3.6": (
        " so\n</think>\n\n\nI will.\n\n<tool_call>\n<function=edit>\n<parameter=path>\n /x \n</parameter>\n"
        "<parameter=count>\n1e3\n</parameter>\n</function>\n</tool_call>",
        "</think>Done.  ",
    ),
    "qwen3-coder": (
        "I will. \n\n<tool_call>\n<function=edit>\n<parameter=path>\n /x \n</parameter>\n"
        "<parameter=count>\n1e3\n</parameter>\n</function>\n</tool_call>",
        "Done.  ",
    ),
    "glm-4.7": (
        " so </think> I will.<tool_call>edit<arg_key>path</arg_key><arg_value> /x </arg_value>"
        "<arg_key>count</arg_key><arg_value>1e3</arg_value></tool_call>",
        "</think> Done.",
    ),
    "glm-5.1": (
        " so </think> I will.<tool_call>edit<arg_key>path</arg_key><arg_value> /x </arg_value>"
        "<arg_key>count</arg_key><arg_value>1e3</arg_value></tool_call>",
        "</think> Done.",
    ),
    "kimi-k2.6": (
        " so </think> I will.<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0"
        '<|tool_call_argument_begin|>{"path":  " /x ", "count": 1e3}<|tool_call_end|><|tool_calls_section_end|>',
        "</think> Done.",
    ),
}  # fmt: skip
CALL_STOP = {"glm-4.7": "<|observation|>", "glm-5.1": "<|observation|>"}


@BOTH
@pytest.mark.parametrize("model", SCRIPTS)
def test_every_token_stands_again(chat_of: Callable[..., Chat], model: str, stream: bool) -> None:
    chat = chat_of(model)
    calls, plain = SCRIPTS[model]
    stop = chat.tokenizer.convert_tokens_to_ids(CALL_STOP.get(model, STOPS[model]))
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"go {model} {stream=}"}]
    first = chat.ask(messages, [*chat.ids(calls, stop=False), stop], stream=stream)
    assert [(name, arguments.replace("  ", " ")) for name, arguments, _ in first.calls] == [
        ("edit", '{"path": " /x ", "count": 1e3}')
    ]
    assert first.finish_reason == "tool_calls"
    assert first.raw_text == calls
    messages += [first.returned(), *first.results()]

    second = chat.ask(messages, plain, stream=stream)
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    assert second.prompt_ids[: len(first.turn)] == first.turn
    assert chat.tokenizer.decode(second.prompt_ids).count("done") == 1
    assert second.content == chat.tokenizer.decode(chat.ids(plain, stop=False)).rpartition("</think>")[2]
    messages += [second.returned(), {"role": "user", "content": "and now?"}]

    third = chat.ask(messages, plain, stream=stream)
    if (third.prr or {})["reason"] != "retention_template":
        assert (third.prr or {})["outcome"] == "spliced", third.prr
        assert third.prompt_ids[: len(second.turn) - 1] == second.turn[:-1]


@BOTH
def test_kimi_keeps_the_ids_that_the_model_wrote(chat_of: Callable[..., Chat], stream: bool) -> None:
    chat = chat_of("kimi-k2.6")
    written = SCRIPTS["kimi-k2.6"][0].replace("functions.edit:0", "functions.edit:7")
    answer = chat.ask([{"role": "user", "content": f"ids {stream=}"}], written, stream=stream)
    assert answer.message["tool_calls"][0]["id"] == "functions.edit:7"


@BOTH
def test_gpt_oss_calls_are_read_though_their_stop_is_trimmed(chat_of: Callable[..., Chat], stream: bool) -> None:
    chat = chat_of("gpt-oss")
    call = "<|channel|>commentary to=functions.edit <|constrain|>json<|message|>"
    text = f'<|channel|>analysis<|message|>so<|end|><|start|>assistant{call}{{"path": "/x",  "count": 1e3}}'
    stop = chat.tokenizer.convert_tokens_to_ids("<|call|>")
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"go {stream=}"}]
    first = chat.ask(messages, [*chat.ids(text, stop=False), stop], stream=stream)
    assert first.calls[0][:2] == ("edit", '{"path": "/x",  "count": 1e3}')
    assert first.reasoning == "so"
    second = chat.ask([*messages, first.returned(), *first.results()], "<|channel|>final<|message|>ok", stream=stream)
    assert second.content == "ok"
    assert (second.prr or {})["outcome"] == "spliced", second.prr
    assert second.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_gpt_oss_reasoning_goes_where_a_user_speaks_again(chat_of: Callable[..., Chat], stream: bool) -> None:
    """SGLang shows GPT-OSS no earlier analysis; outside a tool loop we follow (docs/sglang.md)."""
    chat = chat_of("gpt-oss")
    analysis = "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"why {stream=}"}]
    first = chat.ask(messages, f"{analysis}<|channel|>final<|message|>ok", stream=stream)
    messages += [first.returned(), {"role": "user", "content": "and now?"}]
    second = chat.ask(messages, f"{analysis}<|channel|>final<|message|>yes", stream=stream)
    assert ((second.prr or {})["outcome"], (second.prr or {})["reason"]) == ("refused", "retention_template")
    assert "analysis<|message|>so" not in chat.tokenizer.decode(second.prompt_ids)


def test_tools_are_as_sglang_shows_them(chat_of: Callable[..., Chat]) -> None:
    """The prompt of a first turn is SGLang's own."""
    chat = chat_of("qwen3.6")
    messages = [{"role": "user", "content": "first"}]
    tools = [{**tool, "defer_loading": None} for tool in TOOLS]
    expected = chat.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    assert chat.ask(messages).prompt_ids == list(expected)
