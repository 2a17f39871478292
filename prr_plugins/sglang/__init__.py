"""The SGLang plugin: `--tool-call-parser prr_*`, `--reasoning-parser prr_*`, and spliced prompts for their chats."""

from __future__ import annotations

GROUP = "sglang.srt.plugins"


def register() -> None:
    """Entry point of `sglang.srt.plugins`. SGLang calls it once in every process, before it reads its arguments."""
