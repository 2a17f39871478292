"""A finished turn as it is stored: its own ids, what finds it again, and what tells it from others. Data only."""

from __future__ import annotations

import functools
from array import array
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Turn:
    """One stored turn. All counts are tokens.

    keys: each finds it (message_keys.turn_key of a form in which a client may have seen its message).
    loose: finds it where the tools, the template, its kwargs or the model changed since.
    id: tells it from other turns with the same key.
    parent: id of the turn whose first `start` ids it begins with; None with `start` 0.
    ids: the ids after those: rest of the prompt, then `completion` sampled ids.
    path: for each message from the parent's turn on, this turn's included, the first 8 bytes of its digest.
    call_ids: as returned to the client; native_call_ids: as the model wrote them, where it did.
    reasoning: hash of the reasoning as returned to the client; None where there was none.
    reasoning_tokens: reasoning in the turn's prompt and completion that was sampled.
    retained_tokens: as many of those in the prompt as the template would have dropped.
    fingerprint: 4 bytes each for template, tools, template kwargs, model and LoRA.
    tenant: `tenant_tag` of whom it belongs to.
    """

    keys: tuple[bytes, ...]
    loose: bytes
    id: bytes
    parent: bytes | None
    start: int
    ids: array[int]
    completion: int
    path: bytes = b""
    call_ids: tuple[str | None, ...] = ()
    native_call_ids: tuple[str | None, ...] = ()
    reasoning: bytes | None = None
    reasoning_tokens: int = 0
    retained_tokens: int = 0
    reasoning_open: bool | None = None
    hidden: bool = False
    dropped_calls: bool = False
    fingerprint: bytes = b""
    tenant: bytes = b""

    @property
    def total(self) -> int:
        """Length of the turn, prompt and completion."""
        return self.start + len(self.ids)


def turn_id(key: bytes, parent: bytes | None, start: int, ids: array[int], completion: int) -> bytes:
    """The identity of a turn: equal for the same key and equal ids with the same split."""
    identity = blake2b(key, key=parent or b"", digest_size=16)
    identity.update(b"%d,%d;" % (start, completion))
    identity.update(ids)
    return identity.digest()


@functools.lru_cache(4096)
def interned(value: bytes) -> bytes:
    """The same object for equal bytes: many turns share their fingerprint and tenant."""
    return value


def tenant_tag(tenant: str | None) -> bytes:
    """Stands for a tenant, whose name may be a secret (`cache_salt`), or for none."""
    name = b"none" if tenant is None else b"=" + tenant.encode(errors="surrogatepass")
    return interned(blake2b(name, digest_size=8).digest())
