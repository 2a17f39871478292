"""What `prr doctor` says of the installed vLLM: the checks of `startup`, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import vllm
import vllm.envs as envs

from prr_plugins.common.checks import StartupError, model_findings, settings_findings
from prr_plugins.common.finding import Finding
from prr_plugins.common.formats import FORMATS
from prr_plugins.vllm import hooks, startup


def examine(
    model: str | None, tool_parser: str | None, reasoning_parser: str | None, chat_template: str | None
) -> Iterator[Finding]:
    """All findings. The flags mean what they mean to `vllm serve`; auto tool choice is taken as given.

    model: a model's folder or name; without it the tokenizer and template are not looked at.
    chat_template: the text of a template to use instead of the model's own.
    """
    tried = vllm.__version__.split("+")[0] in hooks.TRIED
    yield Finding(
        "vllm",
        "ok" if tried else "warning",
        f"{vllm.__version__} ({'tried' if tried else 'not tried; tried: ' + ', '.join(hooks.TRIED)})",
    )
    yield _entry_point()
    for state in hooks.states():
        kind = "public" if state.hook.public else "private"
        if state.problem is None:
            yield Finding(f"hook {state.hook.name}", "ok", f"{kind}: {state.hook.target}")
        else:
            yield Finding(f"hook {state.hook.name}", "warning", f"{kind}: {state.problem}; off: {state.hook.loses}")
    yield Finding("names", "ok", ", ".join(FORMATS))
    yield from settings_findings()
    chosen = startup.Chosen(tool_parser, reasoning_parser, auto_tools=True)
    for line in chosen.warnings():
        yield Finding("flags", "warning", line)
    if not chosen.ours and envs.VLLM_USE_RUST_FRONTEND:
        yield Finding("flags", "warning", "VLLM_USE_RUST_FRONTEND=1: the Rust front end would bypass prr_* parsers")
    try:
        fmt = chosen.format()
        yield from model_findings(fmt, model, tool_parser is not None, chat_template, _tokenizer)
    except StartupError as e:
        yield Finding("start", "error", str(e))


def _tokenizer(model: str) -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(model)


def _entry_point() -> Finding:
    ours = [p for p in entry_points(group="vllm.general_plugins") if p.value.startswith("prr_plugins.vllm")]
    if not ours:
        return Finding(
            "plugin", "error", "vLLM does not see the plugin: prr-plugins is not installed in this environment"
        )
    allowed = envs.VLLM_PLUGINS
    if allowed is not None and ours[0].name not in allowed:
        return Finding("plugin", "error", f"VLLM_PLUGINS leaves the plugin out: add {ours[0].name!r} to it")
    return Finding("plugin", "ok", f"{startup.PACKAGE} {startup.version()}, entry point {ours[0].name!r}")
