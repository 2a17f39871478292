"""What the parser flags choose."""

from __future__ import annotations

import pytest

from prr_plugins.common.serving.flags import chosen_format
from prr_plugins.common.serving.startup import StartupError


@pytest.mark.parametrize(
    ("tool", "reasoning", "chosen"),
    [
        ("prr_qwen3", "prr_qwen3", "prr_qwen3"),
        ("prr_qwen3", None, "prr_qwen3"),
        (None, "prr_glm", "prr_glm"),
        ("qwen3_coder", "qwen3", None),
        (None, None, None),
    ],
)
def test_one_format_or_none(tool: str | None, reasoning: str | None, chosen: str | None) -> None:
    fmt = chosen_format({"--tool-call-parser": tool, "--reasoning-parser": reasoning})
    assert (fmt and fmt.name) == chosen


@pytest.mark.parametrize(
    ("tool", "reasoning", "says"),
    [
        ("prr_qwen9", None, "--tool-call-parser prr_qwen9: there is no such parser; there are prr_"),
        ("prr_qwen3", "qwen3", "do not go together"),
        ("prr_qwen3", "prr_glm", "do not go together"),
    ],
)
def test_what_a_server_refuses_to_start_with(tool: str | None, reasoning: str | None, says: str) -> None:
    with pytest.raises(StartupError, match=says):
        chosen_format({"--tool-call-parser": tool, "--reasoning-parser": reasoning})
