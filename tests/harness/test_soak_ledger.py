"""The soak's own eyes: what a client would notice, and what fails a run."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest

from prr_testing.soak.clients import KINDS, Client, Ledger, Writer
from prr_testing.soak.run import STORE_BYTES, verdict
from prr_testing.talk import Answer


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def client(ledger: Ledger, number: int = 0) -> Client:
    return Client(number, cast(httpx.AsyncClient, None), "m", Writer(Letters(), 0), ledger)


def answer(prompt: str, completion: str = "c", outcome: str = "spliced", reason: str = "", kept: int = 0) -> Answer:
    report = {"outcome": outcome, "reason": reason, "kept_tokens": kept, "retained_reasoning_tokens": 0}
    ids = [ord(character) for character in prompt], [ord(character) for character in completion]
    return Answer({"role": "assistant", "content": completion}, "stop", *ids, prr=report)


@pytest.mark.parametrize(
    ("second", "wrong", "unnamed"),
    [
        (answer("pc+", kept=2), 0, 0),
        (answer("px+", kept=2), 1, 1),
        (answer("pc+", kept=1), 1, 0),
        (answer("pc secret-7. +", kept=2), 1, 0),
        (answer("other", outcome="refused", reason="unknown_turn"), 0, 0),
        (answer("other", outcome="refused"), 0, 1),
        (answer("secret-7.", outcome="refused", reason="unknown_turn"), 1, 0),
    ],
)
def test_a_client_notices(second: Answer, wrong: int, unnamed: int) -> None:
    ledger = Ledger()
    one = client(ledger)
    for each in (answer("p", outcome="first_turn"), second):
        one._check(each)
        one._go_on(each)
    assert (len(ledger.wrong_splices), len(ledger.unnamed_breaks)) == (wrong, unnamed)


def test_an_answer_that_was_broken_off_is_the_clients_own() -> None:
    ledger = Ledger()
    one = client(ledger)
    for each in (answer("p", outcome="first_turn"), answer("px+", kept=2)):
        one.broken_off = [[ord("p"), ord("x")]]
        one._check(each)
        one._go_on(each)
    assert (len(ledger.wrong_splices), len(ledger.unnamed_breaks), ledger.unreceived) == (0, 0, 1)


def test_twins_say_the_same_and_think_otherwise() -> None:
    kind = KINDS.index("twin")
    left, right = client(Ledger(), kind), client(Ledger(), kind + len(KINDS))
    assert left.messages == right.messages
    assert {left.tenant, right.tenant} == {"a", "b"}
    thoughts = [Letters().decode(each._script()) for each in (left, right)]
    assert thoughts[0] != thoughts[1]
    assert thoughts[0].partition("</think>")[2] == thoughts[1].partition("</think>")[2]


def test_what_fails_a_run() -> None:
    fault = {"failed_requests": 0, "store_wait_ms": 5.0, "recovered_after_s": 0.1, "nobody_asked_after": False}
    good: dict[str, Any] = {"wrong_splices": 0, "http_5xx": 0, "unnamed_breaks": 0, "failed_requests": 0,
                            "store_bytes_max": STORE_BYTES, "store_bytes_limit": STORE_BYTES,
                            "redis_faults": {"killed": fault}}  # fmt: skip
    assert verdict(good) == []
    for change in (
        {"wrong_splices": 1},
        {"http_5xx": 1},
        {"unnamed_breaks": 1},
        {"failed_requests": 1},
        {"store_bytes_max": int(1.02 * STORE_BYTES)},
        {"redis_faults": {"killed": {**fault, "failed_requests": 1}}},
        {"redis_faults": {"killed": {**fault, "store_wait_ms": 500.0}}},
        {"redis_faults": {"killed": {**fault, "recovered_after_s": None}}},
    ):
        assert len(verdict({**good, **change})) == 1, change
