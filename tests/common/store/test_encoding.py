"""Stored bytes: every field comes back, nothing that was changed is taken, size as promised."""

from __future__ import annotations

import os
from array import array
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_plugins.common.settings import read_keys
from prr_plugins.common.store.encoding import HEAD_BYTES, Codec, Unusable
from prr_plugins.common.store.turn import Turn, turn_id

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
cryptography = pytest.importorskip("cryptography", reason="cryptography is not installed in this environment")

texts = st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=4).map(tuple)
hashes = st.binary(min_size=16, max_size=16)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    parent = draw(st.one_of(st.none(), hashes.filter(any)))
    ids = array("I", draw(st.lists(st.integers(0, 2**32 - 1), max_size=50)))
    keys = tuple(draw(st.lists(hashes, min_size=1, max_size=4)))
    start, completion = draw(st.integers(0, 2**31)) if parent else 0, draw(st.integers(0, len(ids)))
    return Turn(
        keys=keys,
        loose=draw(hashes),
        id=turn_id(keys[0], parent, start, ids, completion),
        parent=parent,
        start=start,
        ids=ids,
        completion=completion,
        path=draw(st.binary(max_size=80)),
        call_ids=draw(texts),
        native_call_ids=draw(texts),
        reasoning=draw(st.one_of(st.none(), st.binary(min_size=8, max_size=8))),
        reasoning_tokens=draw(st.integers(0, 2**31)),
        retained_tokens=draw(st.integers(0, 2**31)),
        reasoning_open=draw(st.sampled_from([None, False, True])),
        hidden=draw(st.booleans()),
        dropped_calls=draw(st.booleans()),
        fingerprint=draw(hashes),
        tenant=draw(st.binary(min_size=8, max_size=8)),
    )


def test_the_format_knows_every_field() -> None:
    """Who adds a field to `Turn` must add it to the format, as a new version."""
    assert len(fields(Turn)) == 18


@given(turns(), hashes, st.sampled_from([Codec(), Codec([KEY]), Codec([KEY, OTHER_KEY])]))
def test_all_comes_back(turn: Turn, root: bytes, codec: Codec) -> None:
    blob = codec.encode(turn, root)
    assert codec.decode(blob, turn.id, turn.tenant) == turn
    assert blob[4:20] == root
    assert blob[20:36] == (turn.parent or bytes(16))


@given(turns(), st.data(), st.sampled_from([Codec(), Codec([KEY])]))
def test_nothing_changed_is_taken(turn: Turn, data: st.DataObject, codec: Codec) -> None:
    blob = bytearray(codec.encode(turn, turn.id))
    how = data.draw(st.sampled_from(["flip", "cut", "longer", "junk"]))
    if how == "flip":
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    elif how == "longer":
        blob += data.draw(st.binary(min_size=1, max_size=20))
    else:
        blob[HEAD_BYTES:] = data.draw(st.binary(max_size=300))
    with pytest.raises(Unusable) as unusable:
        codec.decode(bytes(blob), turn.id, turn.tenant)
    assert unusable.value.kind in ("version", "corrupt", "key")


@given(turns(), turns())
def test_a_turn_under_another_name_is_not_taken(turn: Turn, other: Turn) -> None:
    with pytest.raises(Unusable):
        Codec().decode(Codec().encode(turn, turn.id), replace(other, id=os.urandom(16)).id, turn.tenant)


@given(turns())
def test_encryption_binds_turn_and_tenant_and_needs_the_key(turn: Turn) -> None:
    blob = Codec([KEY]).encode(turn, turn.id)
    for codec, tenant, kind in (
        (Codec([KEY]), bytes(8) if any(turn.tenant) else b"another!", "corrupt"),
        (Codec([OTHER_KEY]), turn.tenant, "key"),
        (Codec(), turn.tenant, "key"),
    ):
        with pytest.raises(Unusable) as unusable:
            codec.decode(blob, turn.id, tenant)
        assert unusable.value.kind == kind
    assert Codec([OTHER_KEY, KEY]).decode(blob, turn.id, turn.tenant) == turn, "the old key still reads"
    with pytest.raises(Unusable):  # who may write to the store must not put words into prompts
        Codec([KEY]).decode(Codec().encode(turn, turn.id), turn.id, turn.tenant)


def test_another_version_is_named() -> None:
    with pytest.raises(Unusable) as unusable:
        Codec().decode(b"PRR\x02" + bytes(100), bytes(16), bytes(8))
    assert unusable.value.kind == "version"


def test_keys_as_they_are_spelt() -> None:
    import base64

    assert read_keys(KEY.hex()) == (KEY,)
    assert read_keys(f"{base64.b64encode(KEY).decode()}, {base64.urlsafe_b64encode(OTHER_KEY).decode()}") == (
        KEY,
        OTHER_KEY,
    )
    for wrong in ("", "short", base64.b64encode(KEY[:16]).decode(), KEY.hex() + ",", "%" * 44):
        with pytest.raises(ValueError):  # noqa: PT011 - the setting says what is wrong
            read_keys(wrong)
