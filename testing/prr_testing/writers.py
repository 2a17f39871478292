"""Completions of any length in every format: reasoning, then one `write_file` call with a text as its argument."""

from __future__ import annotations

import inspect
import json
import pydoc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string", "description": "The text."}},
            "required": ["content"],
        },
    },
}


@dataclass(frozen=True)
class Writer:
    """One format.

    family, model: a corpus model that writes it; engines choose their parsers by these.
    tail: what the prompt left open.
    write: reasoning and argument -> completion. Where `reasons` is false the first part is content.
    """

    family: str
    model: str
    tail: str
    write: Callable[[str, str], str]
    reasons: bool = True


def _arguments(value: str) -> str:
    return json.dumps({"content": value}, ensure_ascii=False)


def _call(value: str, key: str = "arguments") -> str:
    return f'{{"name": "write_file", "{key}": {_arguments(value)}}}'


WRITERS = {
    "prr_qwen3": Writer(
        "qwen3-xml",
        "Qwen/Qwen3.8-27B",
        "<|im_start|>assistant\n<think>\n",
        lambda r, v: (
            f"{r}\n</think>\n\n<tool_call>\n<function=write_file>\n<parameter=content>\n{v}\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
    ),
    "prr_hermes": Writer(
        "qwen3-hermes",
        "Qwen/Qwen3-0.6B",
        "<|im_start|>assistant\n",
        lambda r, v: f"<think>\n{r}\n</think>\n\n<tool_call>\n{_call(v)}\n</tool_call>",
    ),
    "prr_glm": Writer(
        "glm",
        "zai-org/GLM-4.7",
        "<|assistant|><think>",
        lambda r, v: (
            f"{r}</think><tool_call>write_file<arg_key>content</arg_key><arg_value>{v}</arg_value></tool_call>"
        ),
    ),
    "prr_kimi_k2": Writer(
        "kimi",
        "moonshotai/Kimi-K2.6",
        "<|im_assistant|>assistant<|im_middle|><think>",
        lambda r, v: (
            f"{r}</think><|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
            f"<|tool_call_argument_begin|>{_arguments(v)}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "prr_kimi_k3": Writer(
        "kimi",
        "moonshotai/Kimi-K3",
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        lambda r, v: (
            f'{r}<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="write_file" index="1"<|sep|>'
            f'<|open|>argument key="content" type="string"<|sep|>{v}<|close|>argument<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|>"
        ),
    ),
    "prr_deepseek_v3": Writer(
        "deepseek",
        "deepseek-ai/DeepSeek-V3.1",
        "<｜Assistant｜><think>",
        lambda r, v: (
            f"{r}</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{_arguments(v)}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    "prr_deepseek_v4": Writer(
        "deepseek",
        "deepseek-ai/DeepSeek-V4-Flash",
        "<｜Assistant｜><think>",
        lambda r, v: (
            f'{r}</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write_file">\n'
            f'<｜DSML｜parameter name="content" string="true">{v}</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        ),
    ),
    "prr_gpt_oss": Writer(
        "gpt-oss",
        "openai/gpt-oss-20b",
        "<|start|>assistant",
        lambda r, v: (
            f"<|channel|>analysis<|message|>{r}<|end|><|start|>assistant<|channel|>commentary "
            f"to=functions.write_file <|constrain|>json<|message|>{_arguments(v)}<|call|>"
        ),
    ),
    "prr_llama": Writer(
        "llama",
        "meta-llama/Llama-3.3-70B-Instruct",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        lambda r, v: f"{r}<|python_tag|>{_call(v, 'parameters')}",
        reasons=False,
    ),
    "prr_mistral": Writer(
        "mistral",
        "mistralai/Ministral-3-14B-Reasoning-2512",
        "[/INST]",
        lambda r, v: f"[THINK]{r}[/THINK][TOOL_CALLS]write_file[ARGS]{_arguments(v)}",
    ),
    "prr_gemma4": Writer(
        "gemma4",
        "google/gemma-4-31B-it",
        "<|turn>model\n",
        lambda r, v: (
            f'<|channel>thought\n{r}<channel|><|tool_call>call:write_file{{content:<|"|>{v}<|"|>}}<tool_call|>'
        ),
    ),
}


@cache
def code() -> str:
    """Program text, some 100,000 tokens: modules of the standard library."""
    import _pydecimal
    import argparse
    import dataclasses
    import decimal
    import tarfile
    import typing

    modules = (argparse, typing, _pydecimal, tarfile, dataclasses, decimal)
    return "\n".join(inspect.getsource(module) for module in modules)


@cache
def prose() -> str:
    """English, some 60,000 tokens: the standard library's manual pages."""
    text = pydoc.TextDoc()
    names = (
        "argparse",
        "logging",
        "subprocess",
        "decimal",
        "typing",
        "random",
        "datetime",
        "asyncio",
        "pathlib",
        "ssl",
    )
    return "\n".join(pydoc.plain(text.docmodule(__import__(name))) for name in names)
