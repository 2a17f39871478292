"""A conversation in the shape of OpenAI's chat API, as engines hand it to a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None

SYSTEM_ROLES = ("system", "developer")


def opening(messages: Sequence[Message]) -> int:
    """How many system and developer messages open the conversation."""
    return next((at for at, message in enumerate(messages) if message.get("role") not in SYSTEM_ROLES), len(messages))
