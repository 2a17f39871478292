"""What `prr doctor` says of the installed SGLang: the checks of `startup`, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from sglang.version import __version__ as sglang_version

from prr_plugins.common.checks import StartupError, model_findings, settings_findings
from prr_plugins.common.finding import Finding
from prr_plugins.common.formats import FORMATS
from prr_plugins.sglang import GROUP, detectors, hooks, startup


def examine(
    model: str | None, tool_parser: str | None, reasoning_parser: str | None, chat_template: str | None
) -> Iterator[Finding]:
    """All findings. The flags mean what they mean to `sglang serve`.

    model: a model's folder or name; without it the tokenizer and template are not looked at.
    chat_template: the text of a template to use instead of the model's own.
    """
    tried = sglang_version.split("+")[0] in hooks.TRIED
    yield Finding(
        "sglang",
        "ok" if tried else "warning",
        f"{sglang_version} ({'tried' if tried else 'not tried; tried: ' + ', '.join(hooks.TRIED)})",
    )
    yield _entry_point()
    for state in hooks.states():
        problem = state.problem or hooks.does_not_load(state.hook)
        if problem is None:
            yield Finding(f"hook {state.hook.name}", "ok", state.hook.target)
        else:
            yield Finding(f"hook {state.hook.name}", "warning", f"{problem}; off: {state.hook.loses}")
    detectors.register_names()
    missing = detectors.missing()
    yield Finding("names", "ok", ", ".join(name for name in FORMATS if name not in missing))
    for name in missing:
        yield Finding("names", "warning", f"{name} is not offered: this SGLang lacks the family's own detectors")
    yield from settings_findings()
    for flag, given in (("--tool-call-parser", tool_parser), ("--reasoning-parser", reasoning_parser)):
        if given is not None and given.startswith(startup.PREFIX) and given not in FORMATS:
            yield Finding("flags", "error", f"{flag} {given}: there is no such parser; there are {', '.join(FORMATS)}")
            return
    try:
        fmt = startup.chosen_format(tool_parser, reasoning_parser)
        yield from model_findings(fmt, model, tool_parser is not None, chat_template, _tokenizer)
    except StartupError as e:
        yield Finding("start", "error", str(e))


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def _entry_point() -> Finding:
    ours = [p for p in entry_points(group=GROUP) if p.value.startswith("prr_plugins.sglang")]
    if not ours:
        return Finding(
            "plugin", "error", "SGLang does not see the plugin: prr-plugins is not installed in this environment"
        )
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and ours[0].name not in allowed:
        return Finding("plugin", "error", f"SGLANG_PLUGINS leaves the plugin out: add {ours[0].name!r} to it")
    return Finding("plugin", "ok", f"{startup.PACKAGE} {startup.version()}, entry point {ours[0].name!r}")
