"""What the splicer needs of a store.

All keys of a request are known before it looks anything up (`Lookup`), so a shared store answers in one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prr_plugins.common.store.turn import Turn


@dataclass(frozen=True, slots=True)
class Lookup:
    """All that one request asks of the store.

    keys: of the turns in its history, the deepest first. loose: the loose key of the deepest.
    tenant, fingerprint: what a turn must have to be one of these (see `Turn`).
    """

    keys: tuple[bytes, ...]
    loose: bytes
    tenant: bytes
    fingerprint: bytes


SIBLINGS = 32
"""Turns kept under one key, and children told of one turn; with more, older ones are no longer found."""


class Store(Protocol):
    """Where turns are kept. Implementations are thread-safe and may drop any turn that no other one stands on."""

    def fetch(self, lookup: Lookup) -> tuple[bytes, ...]:
        """Bring near what `find` will be asked for; the fingerprints of turns under the loose key."""

    def find(self, keys: Sequence[bytes]) -> list[tuple[Turn, ...]]:
        """The turns under each key (or loose key), oldest first. Does not count as use."""

    def parent(self, turn: Turn) -> Turn | None:
        """The turn that `turn` begins with; None where it has none or it is gone."""

    def children(self, turn: Turn) -> tuple[Turn, ...]:
        """Turns that begin with `turn`, as far as the store can tell."""

    def touch(self, lineage: Sequence[Turn]) -> None:
        """Note that these turns were used."""

    def put(self, turn: Turn) -> bool:
        """Store a turn; False where it cannot be kept (too large, its parent is gone)."""
