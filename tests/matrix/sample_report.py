"""A report as the workers of the matrix make it, without engines."""

from __future__ import annotations

from typing import Any

from prr_testing.matrix import page
from prr_testing.matrix.turns import ROWS, TITLES


def cell(model: str, row: str, by: str, **fields: Any) -> dict[str, Any]:
    """A cell as a worker writes it: exact unless told otherwise."""
    plain = {
        "model": model, "row": row, "by": by, "reusable": 90, "kept": 90, "exact": True, "respelled_stop": False,
        "retained_reasoning_tokens": 0, "finish_reason": "stop", "reason": "", "possible": True, "cause": None,
        "drift": {"sampled": ["<think>", "\n", "So", "</script>"], "rendered": ["<think>", "\n", "So", "</script>"],
                  "same": 4, "before": 86},
        "follow_up": ["user"],
    }  # fmt: skip
    return {**plain, **fields}


LOST = {
    "kept": 60,
    "exact": False,
    "cause": {"kind": "parser", "what": "reasoning: lost", "place": ["vllm/parser/x.py", 538, "text = text.rstrip()"]},
    "drift": {"sampled": ["a", " b", "\n\n", "</think>"], "rendered": ["a", " b", "</think>", "<|im_end|>"],
              "same": 2, "before": 58},
}  # fmt: skip


def sample_report() -> dict[str, Any]:
    """Everything exact but one cell; one turn that cannot be."""
    cells = []
    for model in TITLES:
        for row in ROWS:
            lost = LOST if (model, row.name) == ("glm-5.1", "reasoning_newlines") else {}
            cells.append(cell(model, row.name, "vllm", **lost))
            impossible = {"possible": False, "exact": False, "reason": "no such turn", "drift": None}
            none = (model, row.name) == ("gpt-oss", "parallel_calls")
            cells.append(cell(model, row.name, "ours_vllm", **(impossible if none else {})))
    return page.report({"vllm": "0.32.0"}, cells, {"sglang": "not set up"})
