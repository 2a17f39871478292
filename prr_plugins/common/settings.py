"""Every setting is one environment variable, declared once, in the table `SETTINGS` below.

`Settings.from_env` reads them all, once, at start. A value that is not accepted raises `SettingsError`
with one line that names the variable, the value and what is accepted. A `PRR_*` variable that nobody
declared is not an error (an older release may share the environment) but is reported in `warnings`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SpliceMode = Literal["on", "observe", "off"]
Retention = Literal["auto", "all", "template"]
StopSpelling = Literal["template", "sampled"]
StreamArguments = Literal["eager", "complete"]
OnMiss = Literal["render", "error"]
Overflow = Literal["error", "drop_oldest_cycles"]
SpecialTokens = Literal["as_engine", "as_text"]
Fault = Literal["parse", "capture", "store", "bridge", "splice"]

PREFIX = "PRR_"


class SettingsError(ValueError):
    """A `PRR_*` variable holds a value that is not accepted. The message is one line, fit for a user."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: an environment variable, how it is read and what it means."""

    variable: str
    field: str
    default: Any
    read: Callable[[str], Any]
    accepts: str
    help: str


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


def _seconds(text: str) -> float | None:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value or None


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


def _row(variable: str, field_name: str, default: Any, kind: tuple[Callable[[str], Any], str], text: str) -> Setting:
    return Setting(PREFIX + variable, field_name, default, kind[0], kind[1], text)


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
         "forget a turn this long after its last use"),
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
                raise SettingsError(
                    f"{setting.variable}={text!r} is not accepted; it takes {setting.accepts}"
                ) from None
        warnings = _unknown(environ)
        if values.get("fault") and not values.get("test"):
            del values["fault"]
            warnings.append("PRR_FAULT is ignored: it needs PRR_TEST=1")
        return cls(**values, warnings=tuple(warnings))


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
