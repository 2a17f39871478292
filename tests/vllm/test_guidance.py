"""Guided decoding, family by family: a request gets from vLLM with our parsers what it gets with vLLM's own.

Every row is a model's own vocabulary and template, or its nearest relative's, and vLLM's names of its parsers. What
`adjust_request` of the composed parsers makes of a request is compared, the grammar in it. Nothing is sampled here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.reasoning import ReasoningParserManager

import prr_plugins.vllm as plugin
from prr_plugins.common.bridge.huggingface import renderer
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.serving.startup import check_template
from prr_plugins.vllm import guidance
from prr_testing.adapters import tokenizer
from prr_testing.vocabularies import vocabulary


@dataclass(frozen=True)
class Row:
    """model: of the corpus. written: the call as its template writes it, where vLLM has no template of it."""

    model: str
    ours: str
    tool: str
    reasoning: str | None
    written: str | None = None
    guided: str = "grammar"  # `grammar`, `json` or `free`: what required calls get


def _fenced(name: str = "prr_probe") -> str:
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n"
        '```json\n{"text": "a b", "number": 7}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )


def _dsml(section: str, blank: str = "") -> str:
    tag = f"｜DSML｜{blank}"
    return (
        f'\n\n<{tag}{section}>\n<{tag}invoke name="prr_probe">\n'
        f'<{tag}parameter name="text" string="true">a b</{tag}parameter>\n'
        f'<{tag}parameter name="number" string="false">7</{tag}parameter>\n</{tag}invoke>\n</{tag}{section}>'
    )


_K3 = (
    '<|open|>tools<|sep|><|open|>call tool="prr_probe" index="1"<|sep|>'
    '<|open|>argument key="text" type="string"<|sep|>a b<|close|>argument<|sep|>'
    '<|open|>argument key="number" type="number"<|sep|>7<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)

_PYTHONIC = '[prr_probe(text="a b", number=7)]'  # vLLM's own template for it; the model's writes JSON

ROWS = (
    Row("Qwen/Qwen3.5-9B", "prr_qwen3", "qwen3_coder", "qwen3"),
    Row("Qwen/Qwen3-0.6B", "prr_hermes", "hermes", "qwen3"),
    Row("zai-org/GLM-4.5", "prr_glm", "glm45", "glm45"),
    Row("zai-org/GLM-4.7", "prr_glm", "glm47", "glm45"),
    Row("moonshotai/Kimi-K2-Instruct-0905", "prr_kimi_k2", "kimi_k2", "kimi_k2"),
    Row("moonshotai/Kimi-K3", "prr_kimi_k3", "kimi_k3", "kimi_k3", written=_K3),
    Row("deepseek-ai/DeepSeek-V3-0324", "prr_deepseek_v3", "deepseek_v3", "deepseek_v3", written=_fenced()),
    Row("deepseek-ai/DeepSeek-V3.1", "prr_deepseek_v3", "deepseek_v31", "deepseek_v3"),
    Row("deepseek-ai/DeepSeek-V3.2", "prr_deepseek_v4", "deepseek_v32", "deepseek_v3", written=_dsml("function_calls")),
    Row("deepseek-ai/DeepSeek-V4-Flash", "prr_deepseek_v4", "deepseek_v4", "deepseek_v4", written=_dsml("tool_calls")),
    Row(
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "prr_deepseek_v4",
        "deepseek_v41",
        "deepseek_v41",
        written=_dsml("calls", " "),
    ),
    Row("openai/gpt-oss-20b", "prr_gpt_oss", "openai", "openai_gptoss", written=""),
    Row("meta-llama/Llama-3.3-70B-Instruct", "prr_llama", "llama3_json", None),
    Row("meta-llama/Llama-4-Scout-17B-16E-Instruct", "prr_llama", "llama4_pythonic", None, _PYTHONIC, guided="json"),
    Row("google/gemma-4-31B-it", "prr_gemma4", "gemma4", "gemma4", guided="free"),
    Row("MiniMaxAI/MiniMax-M2.5", "prr_minimax_m2", "minimax_m2", "minimax_m2"),
    Row("openbmb/MiniCPM5-1B", "prr_minicpm5", "minicpm5", "qwen3", guided="json"),
)

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "n": {"type": "number"}},
    "required": ["path"],
}
TOOLS = [
    {"type": "function", "function": {"name": "edit", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},
]
STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]  # type: ignore[dict-item]
NAMED = {"type": "function", "function": {"name": "edit"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
ONE = {"parallel_tool_calls": False}

REQUESTS: dict[str, dict[str, Any]] = {
    "auto": {"tools": TOOLS},
    "strict": {"tools": STRICT},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "required, strict": {"tools": STRICT, "tool_choice": "required"},
    "named": {"tools": TOOLS, "tool_choice": NAMED},
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "one call": {"tools": TOOLS, **ONE},
    "one call, required": {"tools": TOOLS, "tool_choice": "required", **ONE},
    "schema": {"response_format": SCHEMA},
    "schema, tools": {"tools": TOOLS, "response_format": SCHEMA},
    "schema, strict": {"tools": STRICT, "response_format": SCHEMA},
    "schema, required": {"tools": TOOLS, "tool_choice": "required", "response_format": SCHEMA},
    "schema, none": {"tools": TOOLS, "tool_choice": "none", "response_format": SCHEMA},
}


def _composed(row: Row, tool: str, reasoning: str | None) -> Any:
    return ParserManager._compose_parser(
        tool_parser_name=tool,
        reasoning_parser_name=reasoning,
        enable_auto_tools=True,
        model_name=row.model,
        is_harmony=row.ours == "prr_gpt_oss",
        tool_strict_level="auto",
        tokenizer=tokenizer(row.model),
    )


# those of `make test`: a tag for each call, a marker of several tokens, channels, and JSON instead of a grammar
QUICK = ("prr_qwen3", "prr_kimi_k3", "prr_gpt_oss", "prr_minicpm5")


@pytest.fixture(
    scope="module",
    params=[pytest.param(row, marks=() if row.ours in QUICK else pytest.mark.slow) for row in ROWS],
    ids=[row.model.rpartition("/")[2] for row in ROWS],
)
def pair(request: pytest.FixtureRequest) -> tuple[Row, Any, Any]:
    """A row, our composed parser as a server has it once it has seen the template, and vLLM's."""
    plugin.register()
    row: Row = request.param
    tok = tokenizer(row.model)
    ours = _composed(row, row.ours, row.ours if row.reasoning else None)
    written = row.written
    if written is None:
        written = check_template(get_format(row.ours), renderer(tok), vocabulary(row.model).template)
    found = guidance.layout(row.ours, written, tok)
    if found is not None:
        as_served = {"tool_parser_cls": guidance.guided_as(ours.tool_parser_cls, found)}
        ours = type("Served", (ours,), as_served)
    return row, ours, _composed(row, row.tool, row.reasoning)


def _adjusted(parser: Any, row: Row, body: dict[str, Any]) -> dict[str, Any]:
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", **copy.deepcopy(body))
    request = parser(tokenizer(row.model), request.tools).adjust_request(request)
    guided = request.structured_outputs
    return {
        "tag": guided and guided.structural_tag,
        "json": guided and guided.json,
        "grammar": guided and guided.grammar,
        "response_format": request.response_format and request.response_format.type,
    }


def test_the_same_attributes(pair: tuple[Row, Any, Any]) -> None:
    _, ours, stock = pair
    for name in ("structural_tag_model", "supports_required_and_named", "default_tool_strict_level"):
        assert getattr(ours.tool_parser_cls, name) == getattr(stock.tool_parser_cls, name), name
    assert ours.tool_strict_level == stock.tool_strict_level


@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_same_grammar(pair: tuple[Row, Any, Any], body: dict[str, Any]) -> None:
    row, ours, stock = pair
    assert _adjusted(ours, row, body) == _adjusted(stock, row, body)


def test_a_required_call_is_guided(pair: tuple[Row, Any, Any]) -> None:
    """So that two parsers without any grammar do not count as alike."""
    row, ours, _ = pair
    made = _adjusted(ours, row, REQUESTS["required"])
    assert {"grammar": made["tag"] is not None, "json": made["json"] is not None, "free": not any(made.values())}[
        row.guided
    ]


def test_special_tokens_are_shown(pair: tuple[Row, Any, Any]) -> None:
    row, ours, _ = pair
    for body in REQUESTS.values():
        request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", **copy.deepcopy(body))
        adjusted = ours(tokenizer(row.model), request.tools).adjust_request(request)
        assert adjusted.skip_special_tokens is False
        assert adjusted.spaces_between_special_tokens is False


SWITCHES: tuple[dict[str, bool], ...] = (
    {},
    {"enable_thinking": True, "thinking": True},
    {"enable_thinking": False, "thinking": False},
)


@pytest.mark.parametrize("switch", SWITCHES, ids=["default", "on", "off"])
def test_where_reasoning_ends_in_a_prompt(pair: tuple[Row, Any, Any], switch: dict[str, bool]) -> None:
    row, ours, stock = pair
    tok = tokenizer(row.model)
    if row.reasoning is None:
        return  # no reasoning to end
    if row.model.endswith("K3"):
        channel = "response" if switch.get("thinking") is False else "think"
        ids = tok.encode(f'<|open|>message role="assistant"<|sep|><|open|>{channel}<|sep|>', add_special_tokens=False)
    else:
        turn = [{"role": "user", "content": "x"}]
        ids = tok.apply_chat_template(turn, add_generation_prompt=True, return_dict=False, **switch)
    ended = [
        parser(tok, None, chat_template_kwargs=switch).reasoning_parser.is_reasoning_end(list(ids))
        for parser in (ours, stock)
    ]
    assert ended[0] == ended[1]


@pytest.mark.parametrize("spelled", ["whole", "odd"])
def test_a_marker_of_several_tokens_ends_reasoning_at_its_last(spelled: str) -> None:
    """Kimi K3's: in one step, or one token a step, however `think` is cut; vLLM's own parser is the measure."""
    plugin.register()
    tok = tokenizer("moonshotai/Kimi-K3")

    def ids(text: str) -> list[int]:
        return [int(i) for i in tok.encode(text, add_special_tokens=False)]

    def parser(name: str) -> Any:
        return ReasoningParserManager.get_reasoning_parser(name)(tok)

    word = ids("think") if spelled == "whole" else ids("th") + ids("ink")
    end = [*ids("<|close|>"), *word, *ids("<|sep|>")]
    prompt = ids("<|open|>think<|sep|>")
    sampled = [*ids("Hm <|close|>"), *ids("response<|sep|> so"), *end, *ids("<|open|>response<|sep|>Hi")]
    ended = [
        at
        for at in range(1, len(sampled) + 1)
        if parser("prr_kimi_k3").is_reasoning_end_streaming([*prompt, *sampled[:at]], sampled[at - 1 : at])
    ]
    last = len(sampled) - len(ids("<|open|>response<|sep|>Hi"))
    assert ended == [last]
    for begin in range(last):  # several tokens a step
        assert parser("prr_kimi_k3").is_reasoning_end_streaming([*prompt, *sampled[:last]], sampled[begin:last])
    assert not parser("prr_kimi_k3").is_reasoning_end(prompt)
    assert parser("prr_kimi_k3").is_reasoning_end([*prompt, *sampled])
    assert parser("prr_kimi_k3").extract_content_ids(sampled) == sampled[last:]
    if spelled == "whole":
        stock = parser("kimi_k3")
        assert stock.is_reasoning_end_streaming([*prompt, *sampled[:last]], sampled[last - 1 : last])
        assert stock.is_reasoning_end([*prompt, *sampled])


def test_every_format_has_a_row() -> None:
    assert set(guidance.STOCK) == set(FORMATS)
    assert {row.ours for row in ROWS} >= {name for name, stock in guidance.STOCK.items() if stock}
