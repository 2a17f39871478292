"""Turns shared through a real Redis: between API processes, over a restart, and never against a client's wish."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import PARSER, Chat, Reply, call_text

from prr_testing.redis_server import MISSING, PROGRAM, RedisServer, redis_server
from prr_testing.server import Server, serve

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason=MISSING),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def settings(redis: RedisServer) -> dict[str, str]:
    # The machine of the tests may be busy: what is tested here is not the time-out.
    return {"PRR_STORE_URL": redis.unix_url, "PRR_STORE_TIMEOUT": "5000", "PRR_TENANT_HEADER": "X-Tenant"}


@pytest.fixture(scope="module")
def two(redis: RedisServer, qwen_dir: Path) -> Iterator[Server]:
    """One server with two API processes."""
    both = {"tool_parser": PARSER, "reasoning_parser": PARSER}
    with serve(qwen_dir, "--api-server-count", "2", env=settings(redis), **both) as server:
        yield server


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{text} [{uuid.uuid4().hex}]"}]


def say(talk: Chat, messages: list[dict[str, Any]], text: str, **options: Any) -> Reply:
    """One turn over a connection of its own: any of the processes may get it."""
    talk.client.close()
    talk.client = talk.server.client()
    return talk.ask(messages, text, **options)


def goes_on(before: Reply, after: Reply) -> None:
    assert after.prr is not None
    assert after.prr["outcome"] == "spliced", after.prr
    assert after.turn[: len(before.turn)] == before.turn


def converse(talk: Chat, turns: int, **options: Any) -> tuple[list[dict[str, Any]], Reply]:
    messages = user("edit some files")
    reply = say(talk, messages, f"so\n</think>\n\n{call_text('/a', '1.0')}", **options)
    for number in range(turns - 1):
        messages += [reply.returned(), *reply.results(f"result {number}")]
        before, reply = reply, say(talk, messages, f"n {number}\n</think>\n\n{call_text('/b', '1e3')}", **options)
        goes_on(before, reply)
    return messages, reply


@pytest.fixture(scope="module")
def begun(two: Server, qwen_dir: Path, redis: RedisServer) -> tuple[list[dict[str, Any]], Reply]:
    """A conversation that both processes have had turns of."""
    return converse(Chat(two, qwen_dir), 16)


def test_two_api_processes_share_and_their_metrics_add_up(
    two: Server, qwen_dir: Path, begun: tuple[list[dict[str, Any]], Reply]
) -> None:
    before = two.metrics()
    talk = Chat(two, qwen_dir)
    for stream in (False, True):
        converse(talk, 8, stream=stream)
    after = two.metrics()
    assert after.total("prr_store_fetched_turns_total") > 0, "one process got what the other had recorded"
    assert after.total("prr_store_errors_total") == 0

    def grown(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert grown("prr_turns_total") == 16
    assert grown("prr_turns_total", outcome="spliced") == 14
    assert grown("prr_records_total", outcome="stored") == 16
    assert grown("prr_store_shared_turns_total") == 16
    assert len({*two.metrics().by_label("prr_turns_total", "outcome")} - {"spliced", "first_turn"}) == 0
    # the gauges are sums over the processes: each holds some of the 32 turns
    assert 16 < after.total("prr_store_turns") <= 64
    assert {sample[1].get("pid") for sample in after.samples if sample[0] == "prr_store_bytes"} == {None}


def test_nothing_is_stored_for_who_does_not_want_it(two: Server, qwen_dir: Path, redis: RedisServer) -> None:
    talk = Chat(two, qwen_dir)
    messages = user("keep nothing")
    keys = redis.client().dbsize()
    for stream in (False, True):
        reply = say(talk, messages, "so\n</think>\n\nYes.", stream=stream, store=False)
        after = say(talk, [*messages, reply.returned(), *user("and now?")], "</think>No.", stream=stream, store=False)
        assert after.prr is not None
        assert (after.prr["outcome"], after.prr["reason"]) == ("refused", "unknown_turn")
    response = talk.client.responses.create(
        model=two.model, input="keep nothing either", store=False, max_output_tokens=64,
        extra_body={"vllm_xargs": {"script_ids": talk.ids("so\n</think>\n\nYes.")}},
    )  # fmt: skip
    assert response.output_text
    assert redis.client().dbsize() == keys
    assert two.metrics().total("prr_records_total", outcome="refused", reason="store_false") == 5


def test_purge_ends_a_tenants_turns_in_redis_and_in_the_processes(
    two: Server, qwen_dir: Path, redis: RedisServer
) -> None:
    talk = Chat(two, qwen_dir)
    mine, theirs = {"X-Tenant": "mine"}, {"X-Tenant": "theirs"}
    conversations = {name: converse(talk, 4, headers=headers) for name, headers in (("a", mine), ("b", theirs))}
    command = [sys.executable, "-m", "prr_plugins.cli", "store", "purge", "--tenant", "mine", "--json"]
    done = subprocess.run(command, env=settings(redis), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"turns": 4}
    for name, headers in (("a", mine), ("b", theirs)):
        messages, reply = conversations[name]
        for _ in range(4):
            after = say(talk, [*messages, reply.returned(), *reply.results()], "</think>Go on.", headers=headers)
            assert after.prr is not None
            if name == "b":
                goes_on(reply, after)
            else:
                assert (after.prr["outcome"], after.prr["reason"]) == ("refused", "unknown_turn")


def test_a_conversation_outlives_its_server(
    redis: RedisServer, qwen_dir: Path, begun: tuple[list[dict[str, Any]], Reply]
) -> None:
    """Another server, as after a restart, or as the other replica behind a load balancer."""
    messages, reply = begun
    with serve(qwen_dir, env=settings(redis), tool_parser=PARSER, reasoning_parser=PARSER) as server:
        talk = Chat(server, qwen_dir)
        after = say(talk, [*messages, reply.returned(), *reply.results()], "</think>Still here.")
        goes_on(reply, after)
        again = say(
            talk, [*messages, reply.returned(), *reply.results(), after.returned(), *user("and?")], "</think>Yes."
        )
        goes_on(after, again)
