"""How vLLM guides calls of a format: as it does for its own parser of the same layout.

Promise: for `tool_choice`, strict tools and `parallel_tool_calls` a `prr_*` tool parser says the same of itself as
vLLM's own parser does, so the engine makes the same grammar. Where a format has several layouts (DeepSeek V3 and V3.1),
the one that the chat template writes decides: the one whose stock parser reads the template's own call back, and whose
grammar begins where that call does.

This module holds names of vLLM's, no format knowledge.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParser, ToolParserManager
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from prr_plugins.common.serving.startup import PROBE_TOOLS, is_probe

logger = logging.getLogger(__name__)

# Format -> vLLM's names of its parsers, one for each layout; the first one serves where the template does not tell.
STOCK: dict[str, tuple[str, ...]] = {
    "prr_qwen3": ("qwen3_coder",),
    "prr_hermes": ("hermes",),
    "prr_glm": ("glm47",),
    "prr_gpt_oss": ("openai",),
    "prr_deepseek_v3": ("deepseek_v31", "deepseek_v3"),
    "prr_deepseek_v4": ("deepseek_v4", "deepseek_v32", "deepseek_v41"),
    "prr_kimi_k2": ("kimi_k2",),
    "prr_kimi_k3": ("kimi_k3",),
    "prr_gemma4": ("gemma4",),
    "prr_llama": ("llama3_json", "llama4_pythonic"),
    "prr_minimax_m2": ("minimax_m2",),
    "prr_minicpm5": ("minicpm5",),
    # vLLM's "mistral" guides a Hugging Face tokenizer to an array without its marker, which that parser alone reads;
    # so required and named calls are guided JSON here, as for any parser without a grammar of its own.
    "prr_mistral": (),
}

_SAYS = ("structural_tag_model", "default_tool_strict_level", "supports_required_and_named")


def of_format(name: str) -> dict[str, Any]:
    """The attributes of a tool parser class that say how its calls are guided, for the first layout of a format.

    Empty (vLLM's defaults: guided JSON) where this vLLM has no parser of the family.
    """
    names = STOCK.get(name)
    return of_layout(names[0]) if names else {}


def of_layout(stock: str) -> dict[str, Any]:
    """The same as vLLM's parser `stock` has them."""
    try:
        found = ToolParserManager.get_tool_parser(stock)
    except Exception as e:  # a parser of vLLM's that is gone or cannot load is no reason not to serve
        logger.warning("vLLM has no tool parser %s (%s): required and named calls are guided JSON", stock, e)
        return {}
    return {name: getattr(found, name) for name in _SAYS}


def layout(name: str, written: str, tokenizer: Any) -> str | None:
    """vLLM's name of the parser for `written`, the probe call as the chat template writes it; None: there is none."""
    return next((stock for stock in STOCK.get(name, ()) if _reads(stock, written, tokenizer)), None)


def _reads(stock: str, written: str, tokenizer: Any) -> bool:
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "probe"}], tools=PROBE_TOOLS)
    try:
        parser = ToolParserManager.get_tool_parser(stock)(tokenizer, request.tools)
        tag = parser.get_structural_tag(request, strict_level=ToolStrictLevel.FUNCTION)
        triggers = getattr(getattr(tag, "format", None), "triggers", None)
        if triggers and not any(trigger in written for trigger in triggers):
            return False  # vLLM's parsers of DeepSeek V3.2 and V4 read each other's calls
        calls = parser.extract_tool_calls(written, request).tool_calls
        return len(calls) == 1 and is_probe(calls[0].function.name, json.loads(calls[0].function.arguments))
    except Exception:
        return False


@functools.cache
def guided_as(tool_parser: type[ToolParser], stock: str) -> type[ToolParser]:
    """`tool_parser`, guided as vLLM guides its own parser `stock`."""
    says = of_layout(stock)
    made = type(tool_parser.__name__, (tool_parser,), {"__module__": tool_parser.__module__, **says})
    for name, value in says.items():  # vLLM sets one of them whenever a class is made
        setattr(made, name, value)
    return made
