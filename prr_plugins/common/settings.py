"""Every setting is one environment variable, declared once, in the table `SETTINGS` below.

`Settings.from_env` reads them all, once, at start. A value that is not accepted raises `SettingsError`
with one line that names the variable, the value and what is accepted. A `PRR_*` variable that nobody
declared is not an error (an older release may share the environment) but is reported in `warnings`.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

SpliceMode = Literal["on", "observe", "off"]
Retention = Literal["auto", "all", "template"]
StopSpelling = Literal["template", "sampled"]
StreamArguments = Literal["eager", "complete"]
OnMiss = Literal["render", "error"]
Overflow = Literal["error", "drop_oldest_cycles"]
SpecialTokens = Literal["as_engine", "as_text"]
Fault = Literal["parse", "capture", "store", "bridge", "splice"]

PREFIX = "PRR_"
_ENCRYPTION_KEY_BYTES = 32


class SettingsError(ValueError):
    """A `PRR_*` variable holds a value that is not accepted. The message is one line, fit for a user."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is shown nowhere: printed it is `shown`."""

    value: str
    shown: str = "***"

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: an environment variable, how it is read and what it means.

    secret: its value does not appear in messages.
    """

    variable: str
    field: str
    default: Any
    read: Callable[[str], Any]
    accepts: str
    help: str
    secret: bool = False


def _choice(*choices: str) -> tuple[Callable[[str], str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError
        return text.lower()

    return read, " | ".join(choices)


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _size(text: str) -> int:
    """Bytes: a plain number, or one with a binary suffix (`512M`, `2GiB`)."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(number[-1:], 0)
    value = int(number[:-1] if shift else number) << shift
    if value < 0:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _tokens(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _header(text: str) -> str | None:
    if any(not (c.isalnum() or c in "-_") or not c.isascii() for c in text):
        raise ValueError
    return text.lower() or None


def _milliseconds(text: str) -> float:
    """As seconds."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value / 1000


def _url(text: str) -> Secret:
    parts = urlsplit(text)
    if parts.scheme not in ("redis", "rediss", "unix") or not (
        parts.hostname or (parts.scheme == "unix" and parts.path)
    ):
        raise ValueError
    _ = parts.port  # raises where it is no number
    (parts.hostname or "").encode("idna")  # raises where a label is empty or over 63 characters
    secret = parts.netloc.rpartition("@")[0]
    return Secret(text, f"{parts.scheme}://{'***@' if secret else ''}{parts.netloc.rpartition('@')[2]}{parts.path}")


def read_keys(text: str) -> tuple[bytes, ...]:
    """Encryption keys as a setting spells them: base64 (either alphabet) or hex, 32 bytes each, comma-separated.

    Raises ValueError.
    """
    keys = []
    for part in text.split(","):
        part = part.strip()
        try:
            key = (
                bytes.fromhex(part)
                if len(part) == 2 * _ENCRYPTION_KEY_BYTES
                else base64.b64decode(part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4), validate=True)
            )
        except binascii.Error as error:
            raise ValueError from error
        if len(key) != _ENCRYPTION_KEY_BYTES:
            raise ValueError
        keys.append(key)
    return tuple(keys)


# What redis_store.py needs as it is: a query would win over it.
_NOT_IN_THE_URL = {
    "client_name", "connection_class", "credential_provider", "decode_responses", "encoding", "event_dispatcher",
    "parser_class", "retry", "retry_on_error", "socket_connect_timeout", "socket_timeout", "socket_type",
}  # fmt: skip


def check_url(url: str) -> None:
    """Has the client read the whole URL, its query included; nothing is connected.

    Raises:
        ValueError: it does not take it. The message is one line without the URL's secrets.
    """
    import redis  # an optional package, needed by who sets PRR_STORE_URL

    if taken := sorted(_NOT_IN_THE_URL & parse_qs(urlsplit(url).query, keep_blank_values=True).keys()):
        raise ValueError(f"its query sets '{taken[0]}', which is not the URL's to set (time-outs: PRR_STORE_TIMEOUT)")
    try:
        redis.Redis.from_url(url).connection_pool.make_connection()
    except Exception as error:  # of an option that it does not know or cannot use, each in a way of its own
        query = urlsplit(url).query
        named = "" if "@" in query else f" ({error})"  # a password with a bare `?` looks like a query
        raise ValueError(
            f"the client does not take its query{named}; options are those of redis-py, such as db=1 or "
            "ssl_cert_reqs=required (rediss:// only)"
        ) from None


def _keys(text: str) -> Secret:
    read_keys(text)
    return Secret(text)


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", text):
        raise ValueError
    return text


def _row(
    variable: str,
    field_name: str,
    default: Any,
    kind: tuple[Callable[[str], Any], str],
    text: str,
    *,
    secret: bool = False,
) -> Setting:
    return Setting(PREFIX + variable, field_name, default, kind[0], kind[1], text, secret)


SETTINGS: tuple[Setting, ...] = (
    _row("SPLICE", "splice", "on", _choice("on", "observe", "off"),
         "splice prompts; `observe` plans and counts but uses the engine's own render"),
    _row("RETENTION", "retention", "auto", _choice("auto", "all", "template"),
         "which sampled reasoning stays in the next prompt when the template would drop it"),
    _row("STOP", "stop", "template", _choice("template", "sampled"),
         "spelling of a stop token that the template writes differently in history"),
    _row("STORE_BYTES", "store_bytes", 1 << 30, (_size, "bytes, such as 536870912 or 512M"),
         "memory bound of the turn store"),
    _row("STORE_TTL", "store_ttl", None, (_seconds, "seconds, 0 for no limit"),
         "forget a turn this long after its last use (not set: no limit in the process, a day in a shared store)"),
    _row("STORE_URL", "store_url", None, (_url, "redis://HOST:PORT/DB, rediss://... (TLS) or unix:///PATH"),
         "share turns with other processes and replicas through this Redis or Valkey", secret=True),
    _row("STORE_USER", "store_user", None, (str, "a name"),
         "its user, where the URL names none"),
    _row("STORE_PASSWORD", "store_password", None, (Secret, "text"),
         "its password, where the URL holds none", secret=True),
    _row("STORE_CA", "store_ca", None, (str, "the path of a PEM file"),
         "certificate authorities that its TLS certificate is checked against (not set: the system's)"),
    _row("STORE_PREFIX", "store_prefix", "prr", (_prefix, "letters, digits and _ . : -"),
         "what the names of all its keys begin with"),
    _row("STORE_TIMEOUT", "store_timeout", 0.05, (_milliseconds, "milliseconds"),
         "how long a request waits for it (milliseconds)"),
    _row("STORE_TURN_BYTES", "store_turn_bytes", 8 << 20, (_size, "bytes, such as 536870912 or 512M"),
         "a turn that takes more is not shared"),
    _row("STORE_KEY", "store_key", None, (_keys, "32 bytes in base64 or hex; comma-separated, the first encrypts"),
         "encrypt shared turns (AES-256-GCM)", secret=True),
    _row("TENANT_HEADER", "tenant_header", None, (_header, "the name of an HTTP header"),
         "request header that names the tenant where the request has no cache_salt"),
    _row("STREAM_ARGUMENTS", "stream_arguments", "eager", _choice("eager", "complete"),
         "send a call's arguments as they come, or when the call is closed"),
    _row("ON_MISS", "on_miss", "render", _choice("render", "error"),
         "what a request gets whose history holds a turn that cannot be spliced"),
    _row("SPECIAL_TOKENS", "special_tokens", "as_engine", _choice("as_engine", "as_text"),
         "what the text of a special token inside a message becomes in what a splice appends"),
    _row("OVERFLOW", "overflow", "error", _choice("error", "drop_oldest_cycles"),
         "what a conversation gets that does not fit the window: the engine's error, or its oldest messages dropped"),
    _row("OVERFLOW_TARGET", "overflow_target", 0.75, (_share, "a share from 0 to 1"),
         "share of the room for the prompt that is filled after dropping messages"),
    _row("OUTPUT_RESERVE", "output_reserve", 1024, (_tokens, "a number of tokens"),
         "tokens kept free for the completion, with PRR_OVERFLOW, where a request names no limit"),
    _row("VERIFY", "verify", 0.0, (_share, "a share from 0 to 1"),
         "share of spliced requests checked against a full render of their history"),
    _row("ADMIN", "admin", False, (_flag, "1 | 0"),
         "serve the run-time switch under /v1/prr"),
    _row("TEST", "test", False, (_flag, "1 | 0"),
         "allow the test-only settings"),
    _row("FAULT", "fault", None, _choice("parse", "capture", "store", "bridge", "splice"),
         "raise at this stage of every request; honoured only with PRR_TEST=1"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process. Field by field what `SETTINGS` declares."""

    splice: SpliceMode = "on"
    retention: Retention = "auto"
    stop: StopSpelling = "template"
    store_bytes: int = 1 << 30
    store_ttl: float | None = None
    store_url: Secret | None = None
    store_user: str | None = None
    store_password: Secret | None = None
    store_ca: str | None = None
    store_prefix: str = "prr"
    store_timeout: float = 0.05
    store_turn_bytes: int = 8 << 20
    store_key: Secret | None = None
    tenant_header: str | None = None
    stream_arguments: StreamArguments = "eager"
    on_miss: OnMiss = "render"
    special_tokens: SpecialTokens = "as_engine"
    overflow: Overflow = "error"
    overflow_target: float = 0.75
    output_reserve: int = 1024
    verify: float = 0.0
    admin: bool = False
    test: bool = False
    fault: Fault | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read every `PRR_*` variable of `environ`. Raises `SettingsError` on a value that is not accepted.

        An empty value counts as not set. `warnings` holds one line for each unknown variable and for
        a test-only variable that is ignored because `PRR_TEST` is not set.
        """
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            text = environ.get(setting.variable, "").strip()
            if not text:
                continue
            try:
                values[setting.field] = setting.read(text)
            except ValueError:
                shown = "" if setting.secret else f"={text!r}"
                raise SettingsError(f"{setting.variable}{shown} is not accepted; it takes {setting.accepts}") from None
        for variable, name, package, extra in _NEEDS:
            if values.get(name) is not None and importlib.util.find_spec(package) is None:
                raise SettingsError(f"{variable} needs the package {package}: pip install 'prr-plugins[{extra}]'")
        if values.get("store_url") is not None:
            try:
                check_url(values["store_url"].value)
            except ValueError as error:
                raise SettingsError(f"PRR_STORE_URL is not accepted: {error}") from None
        warnings = _unknown(environ)
        if values.get("store_url") is None:
            unused = [s.variable for s in SETTINGS if s.field in values and s.field in _SHARED_ONLY]
            warnings += [f"{variable} does nothing without PRR_STORE_URL" for variable in unused]
        if values.get("fault") and not values.get("test"):
            del values["fault"]
            warnings.append("PRR_FAULT is ignored: it needs PRR_TEST=1")
        return cls(**values, warnings=tuple(warnings))


_NEEDS = (
    ("PRR_STORE_URL", "store_url", "redis", "redis"),
    ("PRR_STORE_KEY", "store_key", "cryptography", "encryption"),
)
_SHARED_ONLY = frozenset({"store_user", "store_password", "store_ca", "store_prefix", "store_timeout",
                          "store_turn_bytes", "store_key"})  # fmt: skip

# Read by other parts of the project (set-up, test and model tools), not by a server.
NOT_SETTINGS = frozenset({"PRR_CACHE", "PRR_MODELS"})


def _unknown(environ: Mapping[str, str]) -> list[str]:
    declared = {setting.variable for setting in SETTINGS}
    lines = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in declared or name in NOT_SETTINGS:
            continue
        near = difflib.get_close_matches(name, declared, n=1)
        lines.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    return lines
