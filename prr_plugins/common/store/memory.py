"""The in-process store: finished turns, found again by key; bounded by bytes.

A turn stores its own ids only: what its prompt added to an earlier turn, and the completion. A conversation costs its
length once, at four bytes a token, and forks share their stem. Turns form a tree; what is dropped first is the
least recently used turn, and to use a turn is to use all that it stands on: no stored turn ever loses those.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prr_plugins.common.store.interface import SIBLINGS, Lookup
from prr_plugins.common.store.turn import Turn


@dataclass(slots=True)
class _Entry:
    turn: Turn
    used: float
    children: tuple[bytes, ...] = ()


class TurnStore:
    """The in-process store: at most `max_bytes`, and with `ttl` no turn unused for longer than that many seconds.

    `size` is the sum of what the interpreter reports for each stored object, indexes included.
    """

    def __init__(
        self,
        max_bytes: int,
        ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_evict: Callable[[str], None] | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self.ttl = ttl or None
        self.size = 0
        self._clock = clock
        self._on_evict = on_evict or (lambda cause: None)
        self._lock = threading.RLock()
        # Least recently used first. A turn is used with all that it stands on, and each of those is moved behind it:
        # so the first one is always a leaf.
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._index: dict[bytes, bytes | tuple[bytes, ...]] = {}  # key to turn id, or ids where there are several

    def __len__(self) -> int:
        return len(self._entries)

    def fetch(self, lookup: Lookup) -> tuple[bytes, ...]:
        """See `Store`."""
        return tuple(dict.fromkeys(turn.fingerprint for turn in self.find([lookup.loose])[0]))

    def find(self, keys: Sequence[bytes]) -> list[tuple[Turn, ...]]:
        """See `Store`."""
        with self._lock:
            self._expire()
            return [tuple(self._entries[found].turn for found in self._under(key)) for key in keys]

    def parent(self, turn: Turn) -> Turn | None:
        """See `Store`."""
        with self._lock:
            entry = self._entries.get(turn.parent) if turn.parent is not None else None
            return entry.turn if entry else None

    def children(self, turn: Turn) -> tuple[Turn, ...]:
        """See `Store`."""
        with self._lock:
            entry = self._entries.get(turn.id)
            return tuple(self._entries[child].turn for child in entry.children) if entry else ()

    def touch(self, lineage: Sequence[Turn]) -> None:
        """See `Store`."""
        with self._lock:
            for turn in lineage[-1:]:
                self._use(turn.id)

    def put(self, turn: Turn) -> bool:
        """See `Store`."""
        cost = _cost(turn)
        with self._lock:
            self._expire()
            if turn.id in self._entries:
                self._use(turn.id)
                return True
            if cost > self.max_bytes:
                return False
            parent = None
            if turn.parent is not None:
                parent = self._entries.get(turn.parent)
                if parent is None or parent.turn.total < turn.start:
                    return False
                parent.children = (*parent.children[1 - SIBLINGS :], turn.id)
            self._entries[turn.id] = _Entry(turn, self._clock())
            for key in (*turn.keys, turn.loose):
                self._put_under(key, (*self._under(key)[1 - SIBLINGS :], turn.id))
            self._use(turn.id)
            self.size += cost
            while self.size > self.max_bytes:
                self._drop(next(iter(self._entries)), "bytes")
            return turn.id in self._entries

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._index.clear()
            self.size = 0

    def forget(self, tenant: bytes) -> None:
        """Drop every turn of a tenant (`tenant_tag`)."""
        with self._lock:
            # In this order no turn stands on one that comes before it: children go first.
            for found in [found for found, entry in self._entries.items() if entry.turn.tenant == tenant]:
                self._drop(found, "purge")

    def _use(self, found: bytes | None) -> None:
        now = self._clock()
        while found is not None and (entry := self._entries.get(found)) is not None:
            entry.used = now
            self._entries.move_to_end(found)
            found = entry.turn.parent

    def _under(self, key: bytes) -> tuple[bytes, ...]:
        found = self._index.get(key, ())
        return (found,) if isinstance(found, bytes) else found

    def _put_under(self, key: bytes, ids: tuple[bytes, ...]) -> None:
        if ids:
            self._index[key] = ids[0] if len(ids) == 1 else ids
        else:
            self._index.pop(key, None)

    def _expire(self) -> None:
        if self.ttl is None:
            return
        oldest = self._clock() - self.ttl
        while self._entries:
            found, entry = next(iter(self._entries.items()))
            if entry.used > oldest:
                return
            self._drop(found, "ttl")

    def _drop(self, leaf: bytes, cause: str) -> None:
        entry = self._entries.pop(leaf)
        self.size -= _cost(entry.turn)
        for key in (*entry.turn.keys, entry.turn.loose):
            self._put_under(key, tuple(found for found in self._under(key) if found != leaf))
        if entry.turn.parent is not None and leaf in (parent := self._entries[entry.turn.parent]).children:
            parent.children = tuple(child for child in parent.children if child != leaf)
        self._on_evict(cause)


# What the entry and two places in the index take beside the parts of the turn (64-bit CPython;
# a test compares the sum with what the allocator says).
_BOOKKEEPING_BYTES = 345


def _cost(turn: Turn) -> int:
    parts: list[object] = [turn, turn.ids, turn.keys, *turn.keys, turn.loose, turn.id, turn.path]
    parts += [turn.call_ids, *turn.call_ids, turn.reasoning]
    if turn.native_call_ids and turn.native_call_ids != turn.call_ids:
        parts += [turn.native_call_ids, *turn.native_call_ids]
    return _BOOKKEEPING_BYTES + sum(sys.getsizeof(part) for part in parts if part is not None)
