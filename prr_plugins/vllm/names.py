"""The `prr_*` names, made known to vLLM without importing what stands behind them."""

from __future__ import annotations

from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from prr_plugins.common.parsing.formats import FORMATS

_MODULE = "prr_plugins.vllm.standalone_parsers"


def class_name(name: str, half: str) -> str:
    """`prr_qwen3`, `ToolParser` -> `PrrQwen3ToolParser`."""
    return "".join(part.title() for part in name.split("_")) + half


def register_names() -> None:
    """Make every format's name known for both flags. Idempotent."""
    for name in FORMATS:
        ToolParserManager.register_lazy_module(name, _MODULE, class_name(name, "ToolParser"))
        ReasoningParserManager.register_lazy_module(name, _MODULE, class_name(name, "ReasoningParser"))
