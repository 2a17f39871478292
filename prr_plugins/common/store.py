"""Finished turns, found again by chain key; bounded by bytes."""

from __future__ import annotations


class TurnStore:
    """In-process store of turns (`Splicer` reads and writes it)."""

    def __init__(self, max_bytes: int, ttl: float | None = None) -> None:
        self.max_bytes = max_bytes
        self.ttl = ttl
