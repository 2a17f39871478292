"""Stored turns of random content: what the tests of both stores put in."""

from __future__ import annotations

import os
import random
from array import array

from prr_plugins.common.store.turn import Turn, turn_id


def stored_turn(
    parent: Turn | None = None,
    tokens: int = 50,
    *,
    key: bytes | None = None,
    start: int | None = None,
    fingerprint: bytes | None = None,
    tenant: bytes = b"",
) -> Turn:
    """A turn of `tokens` tokens that goes on from `parent`; what is not given is random, the tenant aside."""
    key = key or os.urandom(16)
    start = (parent.total if parent else 0) if start is None else start
    ids = array("I", (random.randrange(200_000) for _ in range(tokens)))
    return Turn(
        keys=(key,),
        loose=os.urandom(16),
        id=turn_id(key, parent.id if parent else None, start, ids, 10),
        parent=parent.id if parent else None,
        start=start,
        ids=ids,
        completion=10,
        path=os.urandom(16),
        call_ids=("chatcmpl-tool-" + os.urandom(8).hex(),),
        native_call_ids=(None,),
        reasoning=os.urandom(8),
        reasoning_tokens=1000 + tokens,
        fingerprint=fingerprint or os.urandom(16),
        tenant=tenant,
    )
