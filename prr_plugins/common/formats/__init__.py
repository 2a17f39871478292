"""The formats: one file a model family, one row here.

A format is its markers and a grammar (see `machine.py`); reasoning and calls stand together since they share a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from prr_plugins.common.machine import Source


@dataclass(frozen=True)
class Format:
    """What a model family writes.

    Attributes:
        name: the `prr_*` name that both engine flags take.
        grammar: reads a completion; see `machine.Source`.
        markers: texts that the tokenizer must have as one token each (a model without them does not write this format).
        turn_openers: texts of the tokens that open a turn: the prompt's tail begins at the last one.
        reasoning_start, reasoning_end: the markers around reasoning, None where the family has none.
    """

    name: str
    grammar: Callable[[Source], Iterator[None]]
    markers: tuple[str, ...]
    turn_openers: tuple[str, ...]
    reasoning_start: str | None = None
    reasoning_end: str | None = None


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
