"""One line of a diagnosis: what was looked at, how it stands, and what that means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """level: `warning` where something is off but the rest works, `error` where a server would refuse to start."""

    check: str
    level: Level
    detail: str
