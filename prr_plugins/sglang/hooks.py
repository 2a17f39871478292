"""Every place where the plugin touches SGLang, in one table; `common.serving.hooks` says what is done with it.

A target is a dotted path. A wrapper is called with the original and its arguments, by SGLang's own `HookRegistry`
(AROUND), which only logs when a target is gone: hence the checks.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Literal

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.version import __version__

from prr_plugins.common.serving.hooks import Hook, HookTable

# register: in every process. serve: in a process that serves chats, once a prr_* parser is chosen.
# check: only relied upon, not wrapped.
Stage = Literal["register", "serve", "check"]

TRIED = ("0.5.23",)


_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_OURS = "prr_plugins.sglang"

ROWS: tuple[Hook, ...] = (
    Hook("config", "sglang.srt.runtime_context.publish", "register",
         "everything but the parsers by themselves", f"{_OURS}.startup:publish", ("server_args", "role")),
    Hook("start", f"{_CHAT}.__init__", "serve",
         "the check against the template, splicing", f"{_OURS}.startup:serving_init",
         ("tokenizer_manager", "template_manager")),
    Hook("special_tokens", f"{_CHAT}._patch_reasoning_skip_special_tokens", "serve",
         "markers in the text of chats without tools", f"{_OURS}.chat:show_special_tokens", ("request",)),
    Hook("request", f"{_CHAT}.handle_request", "serve",
         "the request fields of ours", f"{_OURS}.chat:handle_request", ("request", "raw_request")),
    Hook("convert", f"{_CHAT}._convert_to_internal_request", "serve",
         "splicing, capture", f"{_OURS}.chat:convert_to_internal_request", ("request", "raw_request")),
    Hook("prompt", f"{_CHAT}._apply_jinja_template", "serve",
         "splicing", f"{_OURS}.chat:apply_jinja_template", ("request", "tools", "is_multimodal")),
    Hook("output", f"{_CHAT}._encoding_output", "serve",
         "byte-exact content, raw ids, splicing", f"{_OURS}.chat:encoding_output"),
    Hook("response", f"{_CHAT}._build_chat_response", "serve",
         "capture, raw fields", f"{_OURS}.chat:build_chat_response", ("request", "ret", "created")),
    Hook("stream", f"{_CHAT}._generate_chat_stream", "serve",
         "the same for streams", f"{_OURS}.chat:generate_chat_stream",
         ("adapted_request", "request", "raw_request")),
    Hook("chunks", "sglang.srt.entrypoints.openai.chat_encoding_adapters.token_output_sse_chunks", "check",
         "streams", parameters=("chunk_id", "created", "model", "index", "usage", "logprobs", "reasoning", "content",
                                "tool_calls")),
    Hook("tool_names", "sglang.srt.function_call.function_call_parser.FunctionCallParser.ToolCallParserEnum", "check",
         "names for --tool-call-parser"),
    Hook("reasoning_names", "sglang.srt.parser.reasoning_parser.ReasoningParser.DetectorMap", "check",
         "names for --reasoning-parser"),
)  # fmt: skip

# Without one of these a prompt cannot be spliced, or a turn not be captured.
SPLICE_NEEDS = frozenset({"config", "start", "convert", "prompt", "output", "response", "stream", "chunks"})

# One reading of the output hangs on all of these: with one gone SGLang reads it alone, with our detectors.
READING = frozenset({"output", "response", "stream", "chunks"})


def _find(hook: Hook) -> Any:
    return pkgutil.resolve_name(hook.target)


def _put(wrappers: dict[Hook, Callable[..., Any]]) -> dict[str, str]:
    before = {hook: _find(hook) for hook in wrappers}
    for hook, wrapper in wrappers.items():
        HookRegistry.register(hook.target, wrapper, HookType.AROUND)
    HookRegistry.apply_hooks()
    # The registry only logs when it fails, and passes over places that another plugin has hooked before.
    taken = "did not take our hook (another plugin's is there, or see above)"
    return {hook.name: f"{hook.target} {taken}" for hook, original in before.items() if _find(hook) is original}


HOOKS = HookTable("SGLang", __version__, TRIED, ROWS, _find, _put)


def install(stage: Stage) -> None:
    """Put the hooks of `stage` in place, each once."""
    HOOKS.install(stage)


def missing_for_splice() -> list[str]:
    """Names of the hooks without which nothing is spliced and that are not in order."""
    return HOOKS.missing(SPLICE_NEEDS)
