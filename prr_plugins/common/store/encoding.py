"""A `Turn` as bytes, for a store outside the process: one version, checked on reading, encrypted where a key is set.

Layout, version 1 (little-endian). The head stays readable, so that a shared store can walk a lineage:

    4  magic "PRR" and the version          16  id of the conversation's first turn
    16 id of the parent, zeros for none      4  id of the encryption key, zeros for none

then the body: the fields of the turn in the order of `_body`, a CRC-32 of head and body; or, encrypted (AES-256-GCM),
a nonce of 12 bytes and the ciphertext of the body, authenticated together with head, turn id and tenant.

Reading never trusts: lengths are bounded by the bytes there are, and a turn's id is the hash of its ids (`turn_id`), so
bytes that were stored under another name are noticed even where their checksum is right. Anything unusable raises
`Unusable` with a word for the counter.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

from prr_plugins.common.canonical_json import root_key
from prr_plugins.common.store.turn import Turn, interned, turn_id

MAGIC = b"PRR\x01"
HEAD_BYTES = 40
ID_BYTES = 16
_NONE = bytes(ID_BYTES)
_PLAIN = bytes(4)
_FIXED = struct.Struct("<IIIIB16s16s8sBI")
_HIDDEN, _DROPPED, _OPEN_KNOWN, _OPEN, _REASONING = 1, 2, 4, 8, 16
_NO_TEXT = 0xFFFF


class Unusable(Exception):
    """Bytes that are no turn of ours. `kind`: version | corrupt | key."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Codec:
    """keys: none for plain bytes; else the first encrypts, all of them decrypt (so that keys can be replaced).

    With keys, plain bytes are not accepted: whoever can write to the store could otherwise put words into prompts.
    Needs the package `cryptography` then.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._ciphers: dict[bytes, Any] = {}
        if keys:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            # A key's id tells nothing about the key.
            self._ciphers = {hashlib.sha256(b"prr key id" + key).digest()[:4]: AESGCM(key) for key in keys}

    def encode(self, turn: Turn, root: bytes) -> bytes:
        """`root`: the id of the first turn of its lineage (its own where it has no parent)."""
        key_id = next(iter(self._ciphers), _PLAIN)
        head = MAGIC + root + (turn.parent or _NONE) + key_id
        body = _body(turn)
        if not self._ciphers:
            return b"".join((head, body, zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little")))
        nonce = os.urandom(12)
        sealed: bytes = self._ciphers[key_id].encrypt(nonce, body, head + turn.id + turn.tenant)
        return head + nonce + sealed

    def decode(self, blob: bytes, identity: bytes, tenant: bytes) -> Turn:
        """The turn stored under `identity` for `tenant` (`tenant_tag`). Raises Unusable."""
        head, rest = blob[:HEAD_BYTES], blob[HEAD_BYTES:]
        if head[: len(MAGIC)] != MAGIC:
            raise Unusable("version" if head[:3] == MAGIC[:3] and head[3:4] else "corrupt")
        if len(head) < HEAD_BYTES:
            raise Unusable("corrupt")
        key_id = head[-4:]
        if self._ciphers:
            body = self._open(head, key_id, rest, identity + tenant)
        else:
            if key_id != _PLAIN:
                raise Unusable("key")
            body, checksum = rest[:-4], rest[-4:]
            if zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "little") != checksum:
                raise Unusable("corrupt")
        parent = head[20:36]
        try:
            turn = _turn(body, identity, None if parent == _NONE else parent, tenant)
        except (struct.error, IndexError, ValueError) as error:
            raise Unusable("corrupt") from error
        expected = turn_id(turn.keys[0], turn.parent, turn.start, turn.ids, turn.completion)
        # One that holds what its client never got is also told apart by its call ids (splicer.py).
        if identity not in (expected, root_key(expected.hex(), turn.call_ids) if turn.hidden else expected):
            raise Unusable("corrupt")
        return turn

    def _open(self, head: bytes, key_id: bytes, sealed: bytes, owner: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise Unusable("key")
        try:
            body: bytes = cipher.decrypt(sealed[:12], sealed[12:], head + owner)
        except (InvalidTag, ValueError) as error:
            raise Unusable("corrupt") from error
        return body


def _body(turn: Turn) -> bytes:
    flags = _HIDDEN * turn.hidden + _DROPPED * turn.dropped_calls + _REASONING * (turn.reasoning is not None)
    if turn.reasoning_open is not None:
        flags += _OPEN_KNOWN + _OPEN * turn.reasoning_open
    fixed = _FIXED.pack(turn.start, turn.completion, turn.reasoning_tokens, turn.retained_tokens, flags, turn.loose,
                        turn.fingerprint, turn.reasoning or b"", len(turn.keys), len(turn.path))  # fmt: skip
    parts = [fixed, *turn.keys, turn.path, _texts(turn.call_ids), _texts(turn.native_call_ids)]
    return b"".join((*parts, _little(turn.ids).tobytes()))


def _texts(texts: Sequence[str | None]) -> bytes:
    parts = [len(texts).to_bytes(2, "little")]
    for text in texts:
        data = b"" if text is None else text.encode(errors="surrogatepass")
        if len(data) >= _NO_TEXT:
            raise ValueError("a call id is too long")
        parts += [(_NO_TEXT if text is None else len(data)).to_bytes(2, "little"), data]
    return b"".join(parts)


def _little(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids = array("I", ids)
        ids.byteswap()
    return ids


class _Bytes:
    """Reads from the front; asks for more than there is: ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("cut short")
        self._at += count
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(2), "little")

    def texts(self) -> tuple[str | None, ...]:
        lengths = (self.number() for _ in range(self.number()))
        return tuple(None if n == _NO_TEXT else self.take(n).decode(errors="surrogatepass") for n in lengths)

    def rest(self) -> bytes:
        return self._data[self._at :]


def _turn(body: bytes, identity: bytes, parent: bytes | None, tenant: bytes) -> Turn:
    data = _Bytes(body)
    start, completion, reasoning_tokens, retained_tokens, flags, loose, fingerprint, reasoning, keys, path = (
        _FIXED.unpack(data.take(_FIXED.size))
    )
    if not keys:
        raise ValueError("no key")
    turn_keys = tuple(data.take(ID_BYTES) for _ in range(keys))
    path_bytes, call_ids, native_call_ids = data.take(path), data.texts(), data.texts()
    ids = array("I")
    ids.frombytes(data.rest())
    if completion > len(ids) or (parent is None and start):
        raise ValueError("lengths disagree")
    return Turn(
        keys=turn_keys,
        loose=loose,
        id=identity,
        parent=parent,
        start=start,
        ids=_little(ids),
        completion=completion,
        path=path_bytes,
        call_ids=call_ids,
        native_call_ids=native_call_ids,
        reasoning=reasoning if flags & _REASONING else None,
        reasoning_tokens=reasoning_tokens,
        retained_tokens=retained_tokens,
        reasoning_open=bool(flags & _OPEN) if flags & _OPEN_KNOWN else None,
        hidden=bool(flags & _HIDDEN),
        dropped_calls=bool(flags & _DROPPED),
        fingerprint=interned(fingerprint),
        tenant=tenant,
    )
