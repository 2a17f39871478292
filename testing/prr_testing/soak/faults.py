"""What is done to the shared store while the clients talk, and what must come of it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..redis_server import LinkProcess, RedisServer


@dataclass
class Store:
    """The Redis of a run, and the link over which the server reaches it."""

    redis: RedisServer
    link: LinkProcess


@asynccontextmanager
async def killed(store: Store) -> AsyncIterator[None]:
    """Gone, as by a crash; it comes back empty."""
    store.redis.kill()
    yield
    await asyncio.to_thread(store.redis.start)


@asynccontextmanager
async def slow(store: Store) -> AsyncIterator[None]:
    """Every piece of data is half a second late: ten time-outs."""
    store.link.delay = 0.5
    yield
    store.link.delay = 0.0


@asynccontextmanager
async def full(store: Store) -> AsyncIterator[None]:
    """No memory left, and told to throw nothing away."""
    client = store.redis.client()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "100kb")
    yield
    client.config_set("maxmemory", 0)


@asynccontextmanager
async def flushed(store: Store) -> AsyncIterator[None]:
    """Emptied every now and then, scripts included."""

    async def flush() -> None:
        client = store.redis.client()
        while True:
            client.flushall()
            client.script_flush()
            await asyncio.sleep(0.5)

    async with _meanwhile(flush):
        yield


@asynccontextmanager
async def corrupted(store: Store) -> AsyncIterator[None]:
    """Turns are overwritten as they come: bytes flipped, cut, other bytes, the next version's, another turn's."""

    async def corrupt() -> None:
        client, draw = store.redis.client(), random.Random(0)
        while True:
            names = [name for name in client.scan(match=b"*}:t:*", count=300)[1] if isinstance(name, bytes)]
            blobs = client.mget(names) if names else []
            for name, blob in zip(names, blobs, strict=True):
                if isinstance(blob, bytes) and blob:  # else cut to nothing before
                    client.set(name, draw.choice(_DAMAGES)(bytearray(blob), draw), keepttl=True, xx=True)
            await asyncio.sleep(0.05)

    async with _meanwhile(corrupt):
        yield
    store.redis.client().flushall()


def _flip(blob: bytearray, draw: random.Random) -> bytes:
    blob[draw.randrange(len(blob))] ^= draw.randint(1, 255)
    return bytes(blob)


_DAMAGES: tuple[Callable[[bytearray, random.Random], bytes], ...] = (
    _flip,
    lambda blob, draw: bytes(blob[: draw.randrange(len(blob))]),
    lambda blob, draw: os.urandom(draw.randint(1, 400)),
    lambda blob, draw: b"PRR\x02" + bytes(blob[4:]),  # the next version
    lambda blob, draw: bytes(blob[:40]) + bytes(reversed(blob[40:])),
)


@asynccontextmanager
async def poisoned(store: Store) -> AsyncIterator[None]:
    """Keys of one conversation point to turns of others, of other tenants too, as no server of ours would write it."""

    async def poison() -> None:
        client, draw = store.redis.client(), random.Random(1)
        while True:
            turns = [name for name in client.scan(match=b"*}:t:*", count=300)[1] if isinstance(name, bytes)]
            keys = [name for name in client.scan(match=b"*}:k:*", count=300)[1] if isinstance(name, bytes)]
            for key in keys if turns else ():
                other = draw.choice(turns)
                client.set(key, other[-16:], keepttl=True, xx=True)
                base = key[: key.index(b"}:") + 2]
                blob = client.get(other)
                if blob is not None:
                    client.set(base + b"t:" + other[-16:], blob, px=60_000)
            await asyncio.sleep(0.05)

    async with _meanwhile(poison):
        yield
    store.redis.client().flushall()


FAULTS: dict[str, Callable[[Store], AbstractAsyncContextManager[None]]] = {
    "killed": killed,
    "slow": slow,
    "full": full,
    "flushed": flushed,
    "corrupted": corrupted,
    "poisoned": poisoned,
}


@asynccontextmanager
async def _meanwhile(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
