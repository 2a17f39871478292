"""How many tokens a prompt may have, and the error that says by how much what must stay is too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Room for one prompt, in tokens.

    window: of the model; output_reserve: kept free of it for the completion.
    system, tools, last_user: most that this part may take; None: as much as there is.
    target: share of the room that is filled once messages have to go.

    Raises ValueError where there is no room at all, and for what is no count of tokens.
    """

    window: int
    output_reserve: int = 0
    system: int | None = None
    tools: int | None = None
    last_user: int | None = None
    target: float = 1.0

    def __post_init__(self) -> None:
        for name in ("window", "output_reserve", "system", "tools", "last_user"):
            size = getattr(self, name)
            if size is None and name not in ("window", "output_reserve"):
                continue
            if not isinstance(size, SupportsIndex) or size.__index__() < 0:
                raise ValueError(f"{name} is a count of tokens, not {size!r}")
        if self.room < 1 or not 0 <= self.target <= 1:
            raise ValueError(f"no room for a prompt: {self}")

    @property
    def room(self) -> int:
        """Most tokens of a prompt."""
        return self.window - self.output_reserve


class OverBudget(ValueError):
    """What must stay does not fit.

    over: tokens too many. parts: tokens of each part ("system", "tools", "last_user", "last_cycle") that is there.
    """

    def __init__(self, over: int, parts: Mapping[str, int], room: int) -> None:
        sizes = ", ".join(f"{name} {size}" for name, size in parts.items())
        super().__init__(
            f"the prompt is {over} tokens over its {room} without all that may be dropped ({sizes} tokens)"
        )
        self.over = over
        self.parts = dict(parts)
