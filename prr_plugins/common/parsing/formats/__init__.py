"""The formats: one file a model family, one row here.

A format is its markers and a grammar (see `source.py`); reasoning and calls stand together since they share a text.
What several families have in common: `_shared` (reasoning between two markers, values), `_json_call` (calls as JSON),
`_section` (calls in a section of their own).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from prr_plugins.common.parsing.format import Format


class UnknownFormat(ValueError):
    """No format has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown format {name!r}; accepted are: {', '.join(sorted(FORMATS))}")


# name -> the module here whose FORMAT it is
FORMATS: dict[str, str] = {
    "prr_qwen3": "qwen3",
    "prr_hermes": "hermes",
    "prr_glm": "glm",
    "prr_gpt_oss": "gpt_oss",
    "prr_deepseek_v3": "deepseek_v3",
    "prr_deepseek_v4": "deepseek_v4",
    "prr_kimi_k2": "kimi_k2",
    "prr_kimi_k3": "kimi_k3",
    "prr_gemma4": "gemma4",
    "prr_mistral": "mistral",
    "prr_llama": "llama",
    "prr_minimax_m2": "minimax",
    "prr_minicpm5": "minicpm5",
}


@cache
def get_format(name: str) -> Format:
    """The format called `name`.

    Raises:
        UnknownFormat: there is none.
    """
    if name not in FORMATS:
        raise UnknownFormat(name)
    module = import_module(f"{__name__}.{FORMATS[name]}")
    found: Format = module.FORMAT
    return found
