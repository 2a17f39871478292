"""One spelling for each JSON value, and a hash of it: what cache keys and turn ids are made of.

Promise: two values have the same bytes exactly when they are the same JSON value. Numbers are compared by decimal value
and type (`1.0` and `1`, `1e3` and `1000.0` are equal; `true` and `1` are not), text character by character.
"""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

KEY_BYTES = 16
_LONGEST_INTEGER = 4000
"""Digits; Python writes integers of up to 4300 digits."""


class Malformed(ValueError):
    """A message, or tools or template kwargs, hold what JSON cannot spell, or nest deeper than Python's JSON goes."""


def root_key(*parts: Any) -> bytes:
    """Hash of everything besides the messages that a stored turn depends on (JSON values, else `Malformed`)."""
    return hashlib.blake2b(to_bytes(list(parts)), digest_size=KEY_BYTES).digest()


def to_bytes(value: Any) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_tagged)
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(type(error).__name__) from None
    return text.encode(errors="surrogatepass")


class _Exact:
    """A decimal number that no float spells."""

    def __init__(self, digits: str) -> None:
        self.digits = digits


def exact_number(text: str) -> int | float | _Exact:
    """One spelling for each decimal value: integers as int, others as the float that spells them exactly, if any."""
    number = Decimal(text)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if not number:
        return 0
    written = "".join(map(str, digits))
    significant = written.rstrip("0")
    exponent += len(written) - len(significant)
    significant = "-" * sign + significant
    if exponent >= 0 and exponent + len(significant) <= _LONGEST_INTEGER:
        return int(significant) * int(10**exponent)
    near = float(text)
    if near - near == 0 and Decimal(repr(near)) == number:
        return near
    return _Exact(f"{significant}e{exponent}")


def refuse_constant(constant: str) -> None:
    raise ValueError(constant)


def _tagged(value: Any) -> Any:
    # NaN cannot come out of strict JSON, so this list equals no other value.
    return [float("nan"), value.digits if isinstance(value, _Exact) else repr(value)]
