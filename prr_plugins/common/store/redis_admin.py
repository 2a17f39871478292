"""Looking at a shared store as a whole, and purging it: for `prr store`. Each pass looks at every key once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import redis

from prr_plugins.common.store.redis_store import tenant_base
from prr_plugins.common.store.turn import tenant_tag


@dataclass
class Stats:
    """What the server holds under a prefix. bytes: of memory, as the server reports them for each key."""

    turns: int = 0
    keys: int = 0
    bytes: int = 0
    tenants: set[str] = field(default_factory=set)


def stats(client: redis.Redis, prefix: str) -> Stats:
    """Looks at every key once. What a purge leaves behind, that it has been, holds nothing and does not count."""
    result = Stats()
    for found in _ours(client, prefix):
        keys = [(name, tag) for name, tag in found if name != tenant_base(prefix, tag) + b"e"]
        pipeline = client.pipeline(transaction=False)
        for name, _ in keys:
            pipeline.memory_usage(name)
        result.bytes += sum(size or 0 for size in pipeline.execute())
        for name, tag in keys:
            result.keys += 1
            result.turns += name.startswith(tenant_base(prefix, tag) + b"t:")
            result.tenants.add(tag.hex())
    return result


def purge(client: redis.Redis, prefix: str, tenant: str | None) -> int:
    """Delete all that is kept for a tenant (None: for requests without one); the number of turns that were deleted.

    Processes that hold some of it in memory drop it when they next see a request of that tenant.
    """
    return _purge_tag(client, prefix, tenant_tag(tenant))


def purge_all(client: redis.Redis, prefix: str) -> int:
    """The same for every tenant that the server knows."""
    tags = {tag for keys in _ours(client, prefix) for _, tag in keys}
    return sum(_purge_tag(client, prefix, tag) for tag in tags)


def _ours(client: redis.Redis, prefix: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """All our keys with the tags of their tenants. Others may keep something under the prefix too."""
    name_of_ours = re.compile(rb"%s:\{([0-9a-f]{16})\}:(?:e\Z|[tkl]:)" % re.escape(prefix.encode()))
    for names in _scan(client, f"{prefix}:{{*".encode()):
        found = [(name, match) for name in names if (match := name_of_ours.match(name))]
        yield [(name, bytes.fromhex(match[1].decode("ascii"))) for name, match in found]


def _purge_tag(client: redis.Redis, prefix: str, tag: bytes) -> int:
    base = tenant_base(prefix, tag)
    client.set(base + b"e", os.urandom(8))  # first: from now on nothing is added that began before
    turns = 0
    for names in _scan(client, base + b"[tkl]:*"):
        client.unlink(*names)
        turns += sum(name.startswith(base + b"t:") for name in names)
    return turns


def _scan(client: redis.Redis, pattern: bytes, batch: int = 500) -> Iterator[list[bytes]]:
    cursor = None
    while cursor != 0:
        cursor, names = client.scan(cursor or 0, match=pattern, count=batch)
        if names:
            yield [name for name in names if isinstance(name, bytes)]
