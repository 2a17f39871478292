"""Cells of a real engine: vLLM's own renderer, parser and response around scripted ids."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # each loads a vocabulary and vLLM's own stack
vllm = pytest.importorskip("vllm", reason="vLLM is not installed in this environment")

from prr_testing.matrix.cells import Cell, Measure  # noqa: E402
from prr_testing.matrix.turns import ROWS  # noqa: E402
from prr_testing.matrix.vllm_chat import VllmChat  # noqa: E402

_slow = partial(pytest.param, marks=pytest.mark.slow)
_ROWS = {row.name: row for row in ROWS}


def _cells(model: str, row: str) -> tuple[Cell, Cell]:
    root = Path(vllm.__file__).parent
    stock, ours = (Measure(VllmChat(model, ours=ours), root).cell(_ROWS[row]) for ours in (False, True))
    return stock, ours


@pytest.mark.parametrize(
    ("model", "row", "kind", "file"),
    [
        _slow("glm-5.1", "reasoning_newlines", "parser", "vllm/parser/"),
        _slow("qwen3.6", "newlines_after_think", "template", "qwen3.6/chat_template.jinja"),
        ("deepseek-v4", "arguments", "template", "vllm/tokenizers/deepseek_v4_encoding.py"),
        _slow("gpt-oss", "newlines_after_think", "template", "vllm/entrypoints/openai/parser/harmony_utils.py"),
        _slow("kimi-k2.6", "bpe_seam", "encoding", "vllm/renderers/base.py"),
    ],
)
def test_stock_loses_and_ours_keeps(model: str, row: str, kind: str, file: str) -> None:
    stock, ours = _cells(model, row)
    assert not stock.exact
    assert stock.cause is not None
    assert stock.cause.kind == kind
    assert stock.cause.place is not None
    assert stock.cause.place.file.startswith(file)
    assert stock.cause.place.line > 0
    assert stock.cause.place.source
    assert stock.drift is not None
    assert stock.drift.before + stock.drift.same == stock.kept
    assert stock.drift.sampled[stock.drift.same] != stock.drift.rendered[stock.drift.same] or kind == "encoding"
    assert ours.exact
    assert ours.reason == ""
    assert ours.kept >= ours.reusable - 1


@pytest.mark.slow
def test_a_planned_break_has_its_name() -> None:
    _, ours = _cells("gpt-oss", "final_answer")
    assert not ours.exact
    assert ours.reason == "retention_template"
