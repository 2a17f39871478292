"""Cells of the drift matrix on SGLang: its own handler, parsers and templates, and the plugin, around scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
import sglang

from prr_testing.matrix.cells import Measure
from prr_testing.matrix.sglang_chat import SglangChat
from prr_testing.matrix.turns import ROWS

_ROWS = {row.name: row for row in ROWS}


@pytest.mark.parametrize(
    ("model", "row", "kind", "file"),
    [
        ("qwen3.6", "newlines_after_think", "template", "qwen3.6/chat_template.jinja"),
        ("gpt-oss", "arguments", "parser", "sglang/srt/"),
    ],
)
def test_stock_loses_and_ours_keeps(model: str, row: str, kind: str, file: str) -> None:
    root = Path(str(sglang.__file__)).parent
    stock, ours = (Measure(SglangChat(model, ours=ours), root).cell(_ROWS[row]) for ours in (False, True))
    assert (stock.by, stock.exact) == ("sglang", False)
    assert stock.cause is not None
    assert stock.cause.kind == kind
    assert stock.cause.place is not None
    assert stock.cause.place.file.startswith(file)
    assert (ours.by, ours.exact, ours.reason) == ("ours_sglang", True, "")
    assert ours.kept >= ours.reusable - 1
