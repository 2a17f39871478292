"""What `prr doctor` says of the installed SGLang: the checks of `startup`, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from prr_plugins.common.parsing.formats import FORMATS
from prr_plugins.common.serving.doctor import (
    Finding,
    engine_findings,
    model_findings,
    plugin_finding,
    settings_findings,
)
from prr_plugins.common.serving.startup import StartupError
from prr_plugins.sglang import GROUP, detectors, hooks, startup


def examine(
    model: str | None, tool_parser: str | None, reasoning_parser: str | None, chat_template: str | None
) -> Iterator[Finding]:
    """All findings. The flags mean what they mean to `sglang serve`.

    model: a model's folder or name; without it the tokenizer and template are not looked at.
    chat_template: the text of a template to use instead of the model's own.
    """
    yield from engine_findings(hooks.HOOKS)
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    yield plugin_finding("SGLang", GROUP, "SGLANG_PLUGINS", allowed or None)
    detectors.register_names()
    missing = detectors.missing()
    yield Finding("names", "ok", ", ".join(name for name in FORMATS if name not in missing))
    for name in missing:
        yield Finding("names", "warning", f"{name} is not offered: this SGLang lacks the family's own detectors")
    yield from settings_findings()
    try:
        fmt = startup.chosen_format(tool_parser, reasoning_parser)
        yield from model_findings(fmt, model, tool_parser is not None, chat_template, _tokenizer)
    except StartupError as e:
        yield Finding("start", "error", str(e))


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
