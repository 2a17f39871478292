"""What `prr doctor` says of the installed vLLM: the checks of `startup`, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import vllm.envs as envs

from prr_plugins.common.parsing.formats import FORMATS
from prr_plugins.common.serving.doctor import (
    Finding,
    engine_findings,
    model_findings,
    plugin_finding,
    settings_findings,
)
from prr_plugins.common.serving.startup import StartupError
from prr_plugins.vllm import hooks, startup


def examine(
    model: str | None, tool_parser: str | None, reasoning_parser: str | None, chat_template: str | None
) -> Iterator[Finding]:
    """All findings. The flags mean what they mean to `vllm serve`; auto tool choice is taken as given.

    model: a model's folder or name; without it the tokenizer and template are not looked at.
    chat_template: the text of a template to use instead of the model's own.
    """
    yield from engine_findings(hooks.HOOKS)
    yield plugin_finding("vLLM", "vllm.general_plugins", "VLLM_PLUGINS", envs.VLLM_PLUGINS)
    yield Finding("names", "ok", ", ".join(FORMATS))
    yield from settings_findings()
    chosen = startup.Chosen(tool_parser, reasoning_parser, auto_tools=True)
    for line in chosen.warnings():
        yield Finding("flags", "warning", line)
    if not chosen.ours and envs.VLLM_USE_RUST_FRONTEND:
        yield Finding("flags", "warning", "VLLM_USE_RUST_FRONTEND=1: the Rust front end would bypass prr_* parsers")
    try:
        fmt = chosen.format()
        yield from model_findings(fmt, model, tool_parser is not None, chat_template, _tokenizer)
    except StartupError as e:
        yield Finding("start", "error", str(e))


def _tokenizer(model: str) -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(model)
