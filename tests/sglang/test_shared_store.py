"""Turns shared through a real Redis by two SGLang handlers; and nothing kept against a client's wish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Chat

from prr_testing.redis_server import MISSING, PROGRAM, RedisServer, redis_server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Make = Callable[..., Chat]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    with redis_server() as running:
        yield running


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@BOTH
def test_a_conversation_that_changes_its_replica_with_every_turn(
    chat_of: Make, redis: RedisServer, stream: bool
) -> None:
    shared = (("PRR_STORE_URL", redis.unix_url), ("PRR_STORE_TIMEOUT", "5000"))
    replicas = [chat_of("qwen3.6", None, (*shared, ("PRR_VERIFY", verify))) for verify in ("0", "0.0")]
    messages = [user(f"replicas {stream=}")]
    known: list[int] = []
    for number in range(6):
        replica = replicas[number % 2]
        before = replica.counter("prr_store_shared_turns_total")
        answer = replica.ask(messages, f"r {number}</think>answer {number}", stream=stream)
        assert answer.prr is not None
        assert answer.prr["outcome"] == ("spliced" if number else "first_turn"), answer.prr
        assert answer.prompt_ids[: len(known)] == known
        known = answer.turn
        messages += [answer.returned(), user(f"on {number}")]
        deadline = time.monotonic() + 10
        while replica.counter("prr_store_shared_turns_total") == before:  # a thread does it, behind the answer
            assert time.monotonic() < deadline
            time.sleep(0.01)


@BOTH
def test_nothing_is_stored_for_who_does_not_want_it(chat_of: Make, stream: bool) -> None:
    chat = chat_of()
    refused = chat.counter("prr_records_total", "refused", "store_false")
    messages = [user(f"keep nothing {stream=}")]
    first = chat.ask(messages, "so</think>Yes.", stream=stream, store=False)
    second = chat.ask([*messages, first.returned(), user("on")], "</think>No.", stream=stream, store=False)
    assert (second.prr or {})["reason"] == "unknown_turn"
    assert chat.counter("prr_records_total", "refused", "store_false") == refused + 2
