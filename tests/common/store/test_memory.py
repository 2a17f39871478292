"""The store: linear memory, an exact bound, leaves first, siblings kept, time-outs, threads."""

from __future__ import annotations

import gc
import os
import random
import threading
import tracemalloc
from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.store.memory import TurnStore
from prr_plugins.common.store.turn import Turn, interned, tenant_tag
from tests.common._turns import stored_turn as turn


def test_found_by_key_and_by_loose_key() -> None:
    store = TurnStore(1 << 20)
    one = turn()
    assert store.put(one)
    assert store.find([one.keys[0], os.urandom(16), one.loose]) == [(one,), (), (one,)]


def test_siblings_are_all_kept() -> None:
    store = TurnStore(1 << 20)
    parent = turn()
    store.put(parent)
    key = os.urandom(16)
    siblings = [turn(parent, key=key) for _ in range(3)]
    assert all(store.put(sibling) for sibling in siblings)
    assert store.find([key]) == [tuple(siblings)]
    assert store.children(parent) == tuple(siblings)


def test_the_same_turn_is_stored_once() -> None:
    store = TurnStore(1 << 20)
    one = turn()
    assert store.put(one)
    size = store.size
    assert store.put(one)
    assert (len(store), store.size) == (1, size)


def test_a_turn_whose_parent_is_gone_is_not_stored() -> None:
    store = TurnStore(1 << 20)
    assert not store.put(turn(turn()))
    assert store.size == 0


def test_least_recently_used_leaf_goes_first_and_never_a_parent() -> None:
    one = turn()
    store = TurnStore(1 << 30)
    store.put(one)
    store.max_bytes = store.size * 6 - 1
    child, other = turn(one), turn()
    store.put(child)
    store.put(other)
    store.touch([one, child])
    grandchild = turn(child)
    store.put(grandchild)
    fifth, sixth = turn(), turn()
    store.put(fifth)
    store.put(sixth)
    assert store.find([other.keys[0]]) == [()]
    assert store.find([one.keys[0]]) == [(one,)]
    assert store.parent(grandchild) == child


def test_a_parent_used_alone_goes_by_its_own_last_use() -> None:
    store = TurnStore(1 << 30)
    one, third, fourth = turn(), turn(), turn()
    child = turn(one)
    for each in (one, child, third, fourth):
        store.put(each)
    store.touch([one])
    store.touch([third])
    gone = []
    for _ in range(4):
        store.max_bytes = store.size
        new = turn(tokens=1)
        store.put(new)
        gone += [t for t in (one, child, third, fourth) if t.id not in map(_id, gone) and store.find(t.keys) == [()]]
    assert list(map(_id, gone)) == list(map(_id, (child, fourth, one, third)))


def _id(of: Turn) -> bytes:
    return of.id


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["root", "child", "touch"])), min_size=1, max_size=40))
def test_what_is_left_is_what_was_used_last(steps: list[tuple[int, str]]) -> None:
    """Time to live and least recently used go by one order; here each step has a time of its own."""
    now, ttl = 0.0, 1000.0
    store = TurnStore(1 << 30, ttl, clock=lambda: now)
    stored: list[Turn] = []
    used: dict[bytes, float] = {}
    for choice, what in steps:
        now += 1
        at: Turn | None = stored[choice % len(stored)] if stored else None
        if what != "touch" or at is None:
            at = turn(at if what == "child" else None, 3)
            assert store.put(at)
            stored.append(at)
        else:
            store.touch([at])
        while at is not None:
            used[at.id] = now
            at = store.parent(at)
    for expired in sorted(set(used.values())):
        now = expired + ttl
        left = {t.id for t in stored if store.find(t.keys) != [()]}
        assert left == {identity for identity, last in used.items() if last > expired}
    assert store.size == 0


def test_a_tenant_is_forgotten_and_no_other() -> None:
    store = TurnStore(1 << 20)
    mine = [replace(turn(), tenant=b"mine....")]
    for _ in range(3):
        mine.append(replace(turn(mine[-1]), tenant=b"mine...."))
    other = replace(turn(), tenant=b"other...")
    for each in (*mine, other):
        assert store.put(each)
    store.forget(b"mine....")
    assert store.find([t.keys[0] for t in (*mine, other)]) == [(), (), (), (), (other,)]
    assert len(store) == 1


def test_larger_than_the_store() -> None:
    store = TurnStore(2000)
    assert not store.put(turn(tokens=10_000))
    assert (len(store), store.size) == (0, 0)


def test_time_to_live() -> None:
    now = [0.0]
    causes: list[str] = []
    store = TurnStore(1 << 20, ttl=10, clock=lambda: now[0], on_evict=causes.append)
    one, other = turn(), turn()
    store.put(one)
    store.put(other)
    child = turn(one)
    store.put(child)
    now[0] = 8
    store.touch([one, child])
    now[0] = 11
    assert store.find([one.keys[0], other.keys[0], child.keys[0]]) == [(one,), (), (child,)]
    now[0] = 30
    assert store.find([one.keys[0]]) == [()]
    assert (len(store), store.size, causes) == (0, 0, ["ttl"] * 3)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(10, 400), st.booleans()), max_size=60), st.integers(2, 40))
def test_the_bound_holds_and_every_lineage_is_whole(steps: list[tuple[int, int, bool]], thousands: int) -> None:
    store = TurnStore(thousands * 1000)
    stored: list[Turn] = []
    for choice, tokens, child in steps:
        parent = stored[choice % len(stored)] if child and stored else None
        new = turn(parent, tokens)
        if store.put(new):
            stored.append(new)
        assert store.size <= store.max_bytes
        for known in stored:
            while store.find(known.keys) != [()] and known.parent is not None:
                above = store.parent(known)
                assert above is not None
                known = above


def test_size_is_what_the_allocator_says_and_within_the_promise() -> None:
    tokens, count = 50, 3000
    turns = [turn(tokens=tokens)]
    for index in range(1, count):
        turns.append(turn(turns[-1] if index % 20 else None, tokens))
    plain = [(t.keys, t.loose, t.id, t.parent, t.start, t.ids.tolist(), t.path, t.call_ids, t.reasoning) for t in turns]
    del turns
    gc.collect()
    tracemalloc.start()
    store = TurnStore(1 << 30)
    before = tracemalloc.get_traced_memory()[0]
    for keys, loose, identity, parent, start, ids, path, call_ids, reasoning in plain:
        store.put(
            Turn(
                keys=tuple(bytes(bytearray(key)) for key in keys),
                loose=bytes(bytearray(loose)),
                id=bytes(bytearray(identity)),
                parent=parent,
                start=start,
                ids=array("I", ids),
                completion=10,
                path=bytes(bytearray(path)),
                call_ids=tuple("".join(list(call_id or "")) for call_id in call_ids),
                reasoning=bytes(bytearray(reasoning or b"")),
                fingerprint=interned(bytes(16)),
                tenant=tenant_tag("one"),
            )
        )
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(store) == count
    beside_ids = [size / count - 4 * tokens for size in (used, store.size)]
    print("bytes a turn beside its ids: {:.0f}, counted: {:.0f}".format(*beside_ids))
    assert 0.9 * store.size < used < 1.02 * store.size
    assert used <= count * (6 * tokens + 1024)


def test_threads() -> None:
    store = TurnStore(200_000)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            mine: list[Turn] = []
            for _ in range(300):
                new = turn(mine[-1] if mine and random.random() < 0.7 else None, 20)
                if store.put(new):
                    mine.append(new)
                store.find([t.keys[0] for t in mine[-5:]])
                store.touch(mine[-3:])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert 0 < store.size <= store.max_bytes
    store.clear()
    assert store.size == len(store) == 0
