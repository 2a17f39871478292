"""What `prr doctor` says: would a server here do what its flags ask for? The checks of a start, without a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any, Literal

from prr_plugins.common.bridge.huggingface import renderer
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.serving.hooks import HookTable
from prr_plugins.common.serving.startup import (
    PACKAGE,
    StartupError,
    check_markers,
    check_template,
    read_settings,
    version,
)
from prr_plugins.common.settings import Settings

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis: what was looked at, how it stands, and what that means.

    level: `warning` where something is off but the rest works, `error` where a server would refuse to start.
    """

    check: str
    level: Level
    detail: str


def engine_findings(hooks: HookTable) -> Iterator[Finding]:
    """The engine's version, and each hook on it."""
    tried = ", ".join(hooks.tried)
    yield Finding(
        hooks.engine.lower(),
        "ok" if hooks.was_tried else "warning",
        f"{hooks.version} ({'tried' if hooks.was_tried else f'not tried; tried: {tried}'})",
    )
    for state in hooks.states():
        hook = state.hook
        kind = "public" if hook.public else "private"
        problem = state.problem or hooks.does_not_load(hook)
        if problem is None:
            yield Finding(f"hook {hook.name}", "ok", f"{kind}: {hook.target}")
        else:
            yield Finding(f"hook {hook.name}", "warning", f"{kind}: {problem}; off: {hook.loses}")


def plugin_finding(engine: str, group: str, variable: str, allowed: Collection[str] | None) -> Finding:
    """Whether the engine sees the plugin.

    group: of the engine's entry points. variable: the one that lists plugins to load, `allowed` its value (None: all).
    """
    package = __name__.partition(".")[0]
    ours = [point for point in entry_points(group=group) if point.value.startswith(f"{package}.")]
    if not ours:
        return Finding(
            "plugin", "error", f"{engine} does not see the plugin: {PACKAGE} is not installed in this environment"
        )
    name = ours[0].name
    if allowed is not None and name not in allowed:
        return Finding("plugin", "error", f"{variable} leaves the plugin out: add {name!r} to it")
    return Finding("plugin", "ok", f"{PACKAGE} {version()}, entry point {name!r}")


def settings_findings() -> Iterator[Finding]:
    """What a diagnosis says of them, the shared store that they name included."""
    try:
        settings = read_settings()
    except StartupError as e:
        yield Finding("settings", "error", str(e))
        return
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "warnings"}
    yield Finding("settings", "ok", ", ".join(f"{name}={value}" for name, value in values.items()))
    for line in settings.warnings:
        yield Finding("settings", "warning", line)
    if settings.store_url is not None:
        yield _store_finding(settings)


def _store_finding(settings: Settings) -> Finding:
    """Whether the shared store can be reached."""
    import redis  # an optional package, which `read_settings` has found

    from prr_plugins.common.store.redis_store import connect, error_kind

    try:
        version = connect(settings, timeout=5.0).info("server").get("redis_version", "?")
    except (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError):
        version = "version not told"  # a user who may do only what the scripts need
    except (redis.RedisError, OSError) as error:
        return Finding(
            "store", "warning", f"{settings.store_url}: {error_kind(error)}: a server would go on without it"
        )
    return Finding("store", "ok", f"{settings.store_url} ({version})")


def model_findings(
    fmt: Format | None, model: str | None, calls: bool, chat_template: str | None, read: Callable[[str], Any]
) -> Iterator[Finding]:
    """What a diagnosis says of the format that the flags choose (None: of none of ours) and of the model to serve.

    model: its folder or name; without it nothing is read.
    calls: whether the format is to read calls.
    chat_template: the text of a template to use instead of the model's own.
    read: the engine's own loader of a tokenizer. It reaches into several libraries, each with errors of its own.

    Raises:
        StartupError: they do not fit together.
    """
    if fmt is None:
        said = "no prr_* parser is chosen: requests pass as without the plugin"
        if model is None:
            yield Finding("flags", "ok", said)
        else:
            yield Finding("flags", "warning", f"{said}, and nothing of {model!r} was checked")
        return
    yield Finding("flags", "ok", f"format {fmt.name}")
    if model is None:
        return
    try:
        tokenizer = read(model)
    except Exception as e:
        words = (str(e).strip().splitlines() or ["no message"])[0]
        yield Finding("tokenizer", "error", f"that of {model!r} cannot be read ({type(e).__name__}: {words})")
        return
    check_markers(fmt, tokenizer, repr(model))
    yield Finding("tokenizer", "ok", f"has {' '.join(fmt.markers)}")
    if calls:
        check_template(fmt, renderer(tokenizer, chat_template), repr(model))
        yield Finding("template", "ok", "a call that it writes is read back")
