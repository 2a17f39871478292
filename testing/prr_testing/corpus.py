"""Real completions to test and measure parsers with: the fixtures of `canitoolcall`, each with its format here.

Of a format that these have none of, `completions_of` gives what its model's own template writes (`rendered.py`).

A fixture's text ends before the stop token; its `tail` is what the prompt left open (the generation prompt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures

from .rendered import rendered

# family -> (beginning of a model's name, format); the first that fits
_FORMATS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "qwen3-xml": (("", "prr_qwen3"),),
    "qwen3-hermes": (("", "prr_hermes"),),
    "glm": (("", "prr_glm"),),
    "kimi": (("moonshotai/Kimi-K3", "prr_kimi_k3"), ("", "prr_kimi_k2")),
    "deepseek": (
        ("deepseek-ai/DeepSeek-V3.2", "prr_deepseek_v4"),
        ("deepseek-ai/DeepSeek-V4", "prr_deepseek_v4"),
        ("", "prr_deepseek_v3"),
    ),
    "gpt-oss": (("", "prr_gpt_oss"),),
    "llama": (("", "prr_llama"),),
    "mistral": (("", "prr_mistral"),),
    "gemma4": (("", "prr_gemma4"),),
}


def format_of(family: str, model: str) -> str:
    """The `prr_*` name for a model of a `canitoolcall` family.

    Raises:
        KeyError: the family is not known here.
    """
    return next(name for beginning, name in _FORMATS[family] if model.startswith(beginning))


@dataclass(frozen=True)
class Completion:
    """One fixture as a parser sees it."""

    fixture: Fixture
    family: Family
    format: str
    tail: str
    finish_reason: str

    @property
    def text(self) -> str:
        return self.fixture.raw_output

    @property
    def ids(self) -> tuple[int, ...]:
        return self.fixture.output_token_ids or ()

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [dict(tool) for tool in self.fixture.tools]


@cache
def completions() -> tuple[Completion, ...]:
    """Every fixture, in the corpus' order."""
    families = load_families()
    made = []
    for fixture in load_fixtures():
        family = families[fixture.family]
        tail = fixture.generation_prompt
        if tail is None:
            reference = family.reference_for(fixture.reference_model)
            tail = (reference.default_generation_prompt if reference else None) or ""
        made.append(
            Completion(
                fixture,
                family,
                format_of(fixture.family, fixture.reference_model),
                tail,
                "length" if fixture.truncated else "stop",
            )
        )
    return tuple(made)


@cache
def completions_of(format: str) -> tuple[Completion, ...]:
    """The completions of one format."""
    return (
        *(c for c in completions() if c.format == format),
        *(
            Completion(fixture, family, format, fixture.generation_prompt or "", "stop")
            for fixture, family in rendered(format)
        ),
    )
