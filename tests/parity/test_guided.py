"""Guided decoding on a real server of either engine: calls that a client demands and JSON that it describes, as the
model writes them.

The scripted sampler ignores the grammar's mask, and both engines fail a request whose token the grammar does not take.
So a script within the grammar passes, and one that leaves it must fail, which it does only where a grammar is in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from prr_testing.models import model_dir
from prr_testing.server import ENGINE, serve_engine
from prr_testing.talk import Talk
from prr_testing.vocabularies import folder

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "number"}}},
        },
    }
    for name in ("edit", "look")
]
NAMED = {"type": "function", "function": {"name": "edit"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@dataclass(frozen=True)
class Model:
    """call: a call of a tool (its path is `a`, its count 1.5) as the family's grammar takes it behind the reasoning."""

    name: str
    parser: str
    call: str
    stop: str
    reasoning: str  # with its end, as the prompt leaves it open
    switch: dict[str, Any]  # turns reasoning on


V3_1 = '<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{{"path": "a", "count": 1.5}}<｜tool▁call▁end｜>'
if ENGINE == "vllm":  # SGLang's grammar leaves the section's markers out
    V3_1 = f"<｜tool▁calls▁begin｜>{V3_1}<｜tool▁calls▁end｜>"
QWEN = (
    "<tool_call>\n<function={}>\n<parameter=path>\na\n</parameter>\n<parameter=count>\n1.5\n</parameter>\n</function>\n"
    "</tool_call>"
)
MODELS = (
    Model("qwen3.6", "prr_qwen3", QWEN, "<|im_end|>", "r\n</think>", {}),
    Model(
        "deepseek-ai/DeepSeek-V3.1", "prr_deepseek_v3", V3_1, "<｜end▁of▁sentence｜>", "r</think>",
        {"chat_template_kwargs": {"thinking": True}},
    ),
)  # fmt: skip


@dataclass
class Served:
    model: Model
    talk: Talk

    def ask(self, text: str, **options: Any) -> Any:
        extra = {**self.model.switch, **options.pop("extra", {})}
        return self.talk.ask([{"role": "user", "content": "go"}], self.model.reasoning + text, extra=extra, **options)


@pytest.fixture(
    scope="module",
    params=[MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.slow)],
    ids=[model.parser for model in MODELS],
)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    model: Model = request.param
    if model.name == "qwen3.6":  # the server that everybody uses
        yield Served(model, Talk(request.getfixturevalue("server"), model_dir(model.name)))
        return
    path = folder(model.name)
    parsers = {"tool_parser": model.parser, "reasoning_parser": model.parser}
    with serve_engine(ENGINE, path, ready_within=600.0, **parsers) as server:
        yield Served(model, Talk(server, path, stop=model.stop))


def _skip_where_the_grammar_is_wide(served: Served) -> None:
    if ENGINE == "sglang" and served.model.parser == "prr_deepseek_v3":
        pytest.skip("SGLang's grammar of this family takes any offered tool, any number of times")


@BOTH
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_demanded_call_is_guided(served: Served, choice: Any, stream: bool) -> None:
    answer = served.ask(served.model.call.format("edit"), tools=TOOLS, tool_choice=choice, stream=stream)
    assert [(name, arguments) for name, arguments, _ in answer.calls] == [("edit", '{"path": "a", "count": 1.5}')]
    assert answer.reasoning.strip() == "r"
    assert answer.content == ""
    # OpenAI and vLLM end a named call with `stop`
    assert answer.finish_reason == ("stop" if choice == NAMED and ENGINE == "vllm" else "tool_calls")
    for breaks in ("No.", served.model.call.format("other")):
        with pytest.raises(openai.APIError):
            served.ask(breaks, tools=TOOLS, tool_choice=choice, stream=stream)
    # It is the grammar that failed them:
    assert served.ask("No.", tools=TOOLS, stream=stream).content == "No."


@BOTH
def test_a_named_call_is_of_that_tool(served: Served, stream: bool) -> None:
    _skip_where_the_grammar_is_wide(served)
    look = served.model.call.format("look")
    assert [name for name, _, _ in served.ask(look, tools=TOOLS, tool_choice="required", stream=stream).calls] == [
        "look"
    ]
    with pytest.raises(openai.APIError):
        served.ask(look, tools=TOOLS, tool_choice=NAMED, stream=stream)


@BOTH
def test_none_is_free_text(served: Served, stream: bool) -> None:
    call = served.model.call.format("edit")
    answer = served.ask(call, tools=TOOLS, tool_choice="none", stream=stream)
    assert (answer.content, answer.calls, answer.finish_reason) == (call, [], "stop")


@BOTH
def test_json_by_its_schema(served: Served, stream: bool) -> None:
    answer = served.ask('{"n": 7}', response_format=FORMAT, stream=stream)
    assert (answer.content, answer.finish_reason) == ('{"n": 7}', "stop")
    with pytest.raises(openai.APIError):
        served.ask('{"n": "7"}', response_format=FORMAT, stream=stream)


@BOTH
def test_one_call_at_a_time(served: Served, stream: bool) -> None:
    """`parallel_tool_calls=false` is in the grammar."""
    _skip_where_the_grammar_is_wide(served)
    call = served.model.call.format("edit")
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "stream": stream}
    assert len(served.ask(call, parallel_tool_calls=False, **options).calls) == 1
    with pytest.raises(openai.APIError):
        served.ask(call + call, parallel_tool_calls=False, **options)
