"""The shared store on a real Redis: one round trip finds a turn with all it stands on; nobody waits for it in vain."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Secret, Settings
from prr_plugins.common.store.interface import Lookup
from prr_plugins.common.store.turn import Turn, tenant_tag
from prr_testing.redis_server import HAS_TLS, MISSING, PROGRAM, Link, RedisServer, redis_server
from tests.common._turns import stored_turn
from tests.common.prompts._engine import NEXT, SYSTEM, USER, Engine, call, results

redis = pytest.importorskip("redis", reason="the package redis is not installed")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

from prr_plugins.common.store.redis_admin import purge, purge_all, stats  # noqa: E402
from prr_plugins.common.store.redis_store import SharedStore, connect, error_kind  # noqa: E402

FINGERPRINT = bytes(range(16))
TENANT = tenant_tag("header:one")

turn = partial(stored_turn, fingerprint=FINGERPRINT, tenant=TENANT)


def lookup(*turns: Turn) -> Lookup:
    """For a history that ends with the last of these turns."""
    last = turns[-1]
    return Lookup(tuple(t.keys[0] for t in reversed(turns)), last.loose, last.tenant, FINGERPRINT)


def conversation(length: int, tokens: int = 20, tenant: bytes = TENANT) -> list[Turn]:
    turns = [turn(tokens=tokens, tenant=tenant)]
    for _ in range(length - 1):
        turns.append(turn(turns[-1], tokens, tenant=tenant))
    return turns


class Process:
    """A store as one API process has it."""

    def __init__(self, url: str, **settings: object) -> None:
        self.metrics = Metrics()
        self.settings = Settings(**{"store_url": Secret(url), "store_timeout": 5.0, **settings})  # type: ignore[arg-type]
        self.store = SharedStore(self.settings, self.metrics)

    def record(self, *turns: Turn) -> None:
        for each in turns:
            assert self.store.put(each)
            self.store.share(each).result(10)

    def has(self, *turns: Turn) -> bool:
        """Whether a request with this history finds its last turn, with all of its ids."""
        self.store.fetch(lookup(*turns))
        (found,) = self.store.find(turns[-1].keys)
        if turns[-1] not in found:
            return False
        at: Turn | None = turns[-1]
        while at is not None and at.parent is not None:
            at = self.store.parent(at)
        return at is not None

    def errors(self, kind: str) -> float:
        return self.metrics.get("prr_store_errors_total", kind)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    if server.process is None:
        server.start()
    server.client().config_set("maxmemory", 0)
    server.client().flushall()


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_another_process_finds_a_conversation(server: RedisServer, scheme: str) -> None:
    url = server.url if scheme == "tcp" else server.unix_url
    turns = conversation(12)
    Process(url).record(*turns)
    other = Process(url)
    assert other.has(*turns)
    assert other.metrics.get("prr_store_fetched_turns_total") == 12
    assert other.metrics.get("prr_store_errors_total") == 0


def test_one_round_trip_each_and_nothing_twice(server: RedisServer) -> None:
    one, other = Process(server.url), Process(server.url)
    turns = conversation(30, 500)
    one.record(*turns)
    assert other.has(*turns[:-1])

    def calls() -> int:
        return int(server.client().info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    before, received = calls(), server.client().info("stats")["total_net_output_bytes"]
    assert other.has(*turns)
    assert calls() == before + 1
    sent = server.client().info("stats")["total_net_output_bytes"] - received
    assert sent < 500 * 4 + 20_000, "only the turn that was not here (and the answers to these questions)"
    before = calls()
    one.record(turn(turns[-1]))
    assert calls() == before + 1


def test_a_fork_and_siblings(server: RedisServer) -> None:
    one, other = Process(server.url), Process(server.url)
    stem = conversation(3)
    key = os.urandom(16)
    siblings = [turn(stem[-1], key=key) for _ in range(3)]
    one.record(*stem, *siblings)
    assert other.has(*stem, siblings[0])
    assert {t.id for t in other.store.find([key])[0]} == {t.id for t in siblings}
    assert other.has(*stem[:2])


def test_the_deepest_known_turn_is_found_behind_an_edit(server: RedisServer) -> None:
    turns = conversation(4)
    Process(server.url).record(*turns)
    other = Process(server.url)
    assert not other.has(*turns, turn(turns[-1]))
    assert other.store.find(turns[-1].keys) == [(turns[-1],)]


def test_what_changed_is_known(server: RedisServer) -> None:
    turns = conversation(2)
    Process(server.url).record(*turns)
    question = replace(lookup(*turns), keys=(os.urandom(16),))
    assert Process(server.url).store.fetch(question) == (FINGERPRINT,)


def test_tenants_do_not_meet(server: RedisServer) -> None:
    turns = conversation(2)
    Process(server.url).record(*turns)
    stranger = Process(server.url)
    assert stranger.store.fetch(replace(lookup(*turns), tenant=tenant_tag("header:two"))) == ()
    assert len(stranger.store) == 0


def test_both_stores_hold_the_promise_of_their_size(server: RedisServer) -> None:
    client = server.client()
    tokens, conversations, length = 300, 40, 10
    process = Process(server.url)
    process.record(turn(tenant=tenant_tag("warm-up")))
    before = client.info("memory")["used_memory"]
    started = process.store.size
    for _ in range(conversations):
        process.record(*conversation(length, tokens))
    used = client.info("memory")["used_memory"] - before
    promised = conversations * length * (6 * tokens + 1024)
    assert used <= promised
    assert process.store.size - started <= promised


@pytest.mark.parametrize("ttl", [1.5])
def test_time_to_live_counts_from_the_last_use_for_all_that_is_stood_on(server: RedisServer, ttl: float) -> None:
    turns = conversation(3)
    Process(server.url, store_ttl=ttl).record(*turns)
    used_until = time.monotonic() + 2 * ttl
    while time.monotonic() < used_until:
        assert Process(server.url, store_ttl=ttl).has(*turns)
        time.sleep(ttl / 4)
    names = server.client().keys()
    assert all(0 < server.client().pttl(name) <= ttl * 1000 for name in names)
    time.sleep(ttl + 0.2)
    assert not Process(server.url, store_ttl=ttl).has(*turns)
    assert server.client().dbsize() == 0


def test_without_a_setting_a_turn_stays_a_day_and_with_zero_for_ever(server: RedisServer) -> None:
    Process(server.url).record(first := turn())
    Process(server.url, store_ttl=0.0).record(second := turn(tenant=tenant_tag("two")))
    client = server.client()
    (kept_a_day,) = client.keys(b"prr:{%s}:t:*" % first.tenant.hex().encode())
    (kept,) = client.keys(b"prr:{%s}:t:*" % second.tenant.hex().encode())
    assert 86_000 < client.ttl(kept_a_day) <= 86_400
    assert client.ttl(kept) == -1


def test_purge_reaches_redis_and_every_process(server: RedisServer) -> None:
    one, other = Process(server.url), Process(server.url)
    mine, others = conversation(3), conversation(3, tenant=tenant_tag(None))
    one.record(*mine, *others)
    assert other.has(*mine)
    assert purge(server.client(), "prr", "header:one") == 3
    late = turn(mine[-1])  # its completion was under way
    one.store.put(late)
    one.store.share(late).result(10)
    for process in (one, other):
        assert not process.has(*mine)
        assert not process.has(*mine, late)
    assert one.has(*others)
    assert not Process(server.url).has(*mine, late)
    assert stats(server.client(), "prr").turns == 3
    again = conversation(2)
    one.record(*again)
    assert other.has(*again), "the tenant may go on"
    assert purge_all(server.client(), "prr") == 5
    assert not Process(server.url).has(*others)


def test_what_was_recorded_while_the_server_was_away_is_purged_too(server: RedisServer) -> None:
    process = Process(server.url, store_timeout=0.1)
    turns = conversation(2)
    server.kill()
    process.record(*turns)
    server.start()
    purge(server.client(), "prr", "header:one")
    deadline = time.monotonic() + 10
    while process.has(*turns):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(process.store) == 0


def test_encrypted(server: RedisServer) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed in this environment")
    old, new = os.urandom(32).hex(), os.urandom(32).hex()
    turns = conversation(3, 1000)
    Process(server.url, store_key=Secret(old)).record(*turns)
    names = server.client().keys(b"*}:t:*")
    plain = turns[0].ids.tobytes()
    assert all(plain[:64] not in server.client().get(name) for name in names)
    assert Process(server.url, store_key=Secret(f"{new},{old}")).has(*turns)
    for wrong in (None, Secret(new)):
        stranger = Process(server.url, store_key=wrong)
        assert not stranger.has(*turns)
        assert stranger.errors("key") > 0


def _rewrite(server: RedisServer, change: Callable[[bytes], bytes]) -> None:
    client = server.client()
    for name in client.keys(b"*}:t:*"):
        client.set(name, change(client.get(name)))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("version", lambda blob: b"PRR\x02" + blob[4:]),
        ("corrupt", lambda blob: blob[:60] + bytes([blob[60] ^ 1]) + blob[61:]),
        ("corrupt", lambda blob: b"\x80\x04junk" * 20),
        ("corrupt", lambda blob: blob[:-5]),
        ("corrupt", lambda blob: blob[:20]),
    ],
)
def test_poison_is_ignored_and_counted(server: RedisServer, kind: str, change: Callable[[bytes], bytes]) -> None:
    turns = conversation(3)
    Process(server.url).record(*turns)
    _rewrite(server, change)
    other = Process(server.url)
    assert not other.has(*turns)
    assert other.errors(kind) > 0
    assert len(other.store) == 0
    more = conversation(2)
    other.record(*more)
    assert Process(server.url).has(*more)


def test_another_templates_turn_under_our_key_is_ignored_and_counted(server: RedisServer) -> None:
    foreign = replace(turn(), fingerprint=os.urandom(16))
    Process(server.url).record(foreign)
    other = Process(server.url)
    assert not other.has(foreign)
    assert other.errors("foreign") == 1


def test_a_circle_of_parents_does_not_hold_the_server(server: RedisServer) -> None:
    turns = conversation(2)
    Process(server.url).record(*turns)
    _rewrite(server, lambda blob: blob[:20] + turns[1].id + blob[36:])
    began = time.monotonic()
    assert not Process(server.url).has(*turns)
    assert time.monotonic() - began < 1


def test_indexes_of_another_kind_fail_that_request_alone(server: RedisServer) -> None:
    turns = conversation(2)
    process = Process(server.url)
    process.record(*turns)
    (index, *_) = server.client().keys(b"*}:k:" + turns[-1].keys[0].replace(b"\\", b"\\\\")) or server.client().keys(
        b"*}:k:*"
    )
    server.client().delete(index)
    server.client().hset(index, "a", "b")
    Process(server.url).has(*turns)
    assert process.has(*turns), "here it is still"


def test_too_large_is_not_shared(server: RedisServer) -> None:
    process = Process(server.url, store_turn_bytes=2000)
    process.record(turn(tokens=5000))
    assert process.errors("too_large") == 1
    assert server.client().dbsize() == 0
    Process(server.url).record(large := turn(tokens=5000))
    assert not process.has(large)
    assert process.errors("too_large") == 2


def test_full(server: RedisServer) -> None:
    process = Process(server.url)
    kept = conversation(3)
    process.record(*kept)
    client = server.client()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "100kb")  # less than an empty server of any version holds
    lost = turn()
    process.record(lost)
    assert process.errors("full") == 1
    assert Process(server.url).has(*kept), "what is there can still be read"
    client.config_set("maxmemory", 0)
    process.record(new := turn(lost))
    assert Process(server.url).has(lost, new), "what it stands on came along"


def test_flushed(server: RedisServer) -> None:
    process = Process(server.url)
    turns = conversation(4)
    process.record(*turns)
    server.client().flushall()
    server.client().script_flush()
    assert process.has(*turns), "it is still here"
    process.record(new := turn(turns[-1]))
    assert Process(server.url).has(*turns, new)


def test_killed_and_back(server: RedisServer) -> None:
    process = Process(server.url, store_timeout=0.1)
    turns = conversation(3)
    process.record(*turns)
    server.kill()
    began = time.monotonic()
    for _ in range(200):
        assert process.has(*turns)
    assert time.monotonic() - began < 1.0, "a dead server costs next to nothing"
    assert process.errors("unreachable") >= 1
    assert process.errors("skipped") > 100
    server.start()
    deadline = time.monotonic() + 10
    more = conversation(2)
    while not Process(server.url).has(*more):
        assert time.monotonic() < deadline, "back without a restart"
        process.record(*more)
        time.sleep(0.05)


def test_slow(server: RedisServer) -> None:
    link = Link(server.port)
    process = Process(link.url, store_timeout=0.05)
    turns = conversation(3)
    process.record(*turns)
    link.delay = 1.0
    longest = 0.0
    for _ in range(50):
        began = time.monotonic()
        assert process.has(*turns)
        longest = max(longest, time.monotonic() - began)
    assert longest < 0.25
    assert process.errors("late") + process.errors("timeout") >= 1
    assert process.errors("skipped") > 40
    link.delay = 0.0
    deadline = time.monotonic() + 10
    more = conversation(2)
    while not Process(server.url).has(*more):
        assert time.monotonic() < deadline
        process.record(*more)
        time.sleep(0.05)
    link.close()


def test_the_same_work_is_done_once_at_a_time(server: RedisServer) -> None:
    link = Link(server.port)
    process = Process(link.url, store_timeout=5)
    turns = conversation(3)
    process.record(*turns)
    other = Process(link.url, store_timeout=5)
    link.delay = 0.1
    questions = [other.store.begin_fetch(lookup(*turns)) for _ in range(20)]
    assert len({id(question) for question in questions}) == 1
    questions[0].result(10)
    assert other.metrics.get("prr_store_fetched_turns_total") == 3
    new = turn(turns[-1])
    process.store.put(new)
    assert process.store.share(new) is process.store.share(new)
    link.close()


def test_passwords_come_from_the_environment_and_are_not_shown() -> None:
    with redis_server("--requirepass", "s3cret") as closed:
        settings = Settings.from_env({"PRR_STORE_URL": closed.url, "PRR_STORE_PASSWORD": "s3cret"})
        assert connect(settings).ping()
        assert "s3cret" not in repr(settings)
        with_user = closed.url.replace("redis://", "redis://default:s3cret@")
        settings = Settings.from_env({"PRR_STORE_URL": with_user})
        assert connect(settings).ping()
        assert "s3cret" not in repr(settings)
        process = Process(closed.url)
        process.record(turn())
        assert process.errors("auth") == 1
        commands = "evalsha script|load get set getrange strlen exists pttl pexpire client hello"
        redis.Redis(port=closed.port, password="s3cret").acl_setuser(
            "prr", enabled=True, passwords=["+pw"], keys=["prr:*"], commands=[f"+{c}" for c in commands.split()]
        )
        url = closed.url.replace("redis://", "redis://prr:pw@")
        Process(url).record(*(turns := conversation(2)))
        assert Process(url).has(*turns), "the commands that docs/store.md names are enough"


@pytest.mark.skipif(not HAS_TLS, reason="the wheel's redis-server has no TLS (Debian: apt-get install redis-server)")
def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"openssl made no certificate: {made.stderr.decode()[-200:]}")
    with redis_server() as plain:
        port = plain.port
    arguments = ["--tls-port", str(port), "--tls-cert-file", str(key.parent / "cert.pem"), "--tls-key-file", str(key)]
    with redis_server(*arguments, "--tls-auth-clients", "no") as closed:
        url = f"rediss://127.0.0.1:{port}/0"
        turns = conversation(2)
        Process(url, store_ca=str(certificate)).record(*turns)
        assert Process(url, store_ca=str(certificate)).has(*turns)
        strict = Process(url)
        strict.record(turn())
        assert strict.errors("unreachable") == 1, "an unknown authority is not trusted"
        assert closed.client().dbsize() > 0


def test_a_conversation_that_changes_its_replica_with_every_turn(
    real: Callable[[str], Any], server: RedisServer
) -> None:
    replicas = [_replica(real("qwen3.6"), server.url) for _ in range(3)]
    messages: list[Any] = [SYSTEM, USER]
    turn_ids: list[int] = []
    for number in range(7):
        replica = replicas[number % 3]
        answer = replica.ask(messages, content=f"n {number}", calls=[call(n=number)] if number % 2 else None)
        assert replica.plan.outcome == ("spliced" if number else "first_turn"), replica.plan.reason
        assert replica.prompt[: len(turn_ids)] == turn_ids
        turn_ids = replica.turn
        messages += [answer, *(results(answer, "ok") if number % 2 else [NEXT])]
    other = _replica(real("qwen3.6"), server.url)
    other.ask(messages, tools=[{"type": "function", "function": {"name": "new", "parameters": {"type": "object"}}}])
    assert other.outcome() == ("refused", "tools_changed")
    assert all(replica.metrics.get("prr_store_errors_total") == 0 for replica in replicas)
    server.kill()
    messages = [SYSTEM, USER]
    for number in range(3):
        messages += [replicas[0].ask(messages, content=f"alone {number}"), NEXT]
        assert replicas[0].plan.outcome == ("spliced" if number else "first_turn"), replicas[0].plan.reason


def _replica(model: Any, url: str) -> Engine:
    """An engine that is one of several."""
    metrics = Metrics()
    settings = Settings(store_url=Secret(url), store_timeout=0.5)
    store = SharedStore(settings, metrics)
    engine = Engine(model, settings, metrics, store)
    record = engine.splicer.record

    def record_and_share(*args: Any, **kwargs: Any) -> None:
        stored = record(*args, **kwargs)
        assert stored is not None
        store.share(stored).result(10)

    engine.splicer.record = record_and_share  # type: ignore[method-assign]
    return engine


def test_kinds_of_errors() -> None:
    assert error_kind(redis.TimeoutError()) == "timeout"
    assert error_kind(redis.ConnectionError()) == "unreachable"
    assert error_kind(redis.AuthenticationError()) == "auth"
    assert error_kind(redis.ResponseError("OOM command not allowed")) == "full"
    assert error_kind(redis.ResponseError("WRONGTYPE")) == "server"
    assert error_kind(ValueError()) == "internal"
