"""Every place where the plugin touches SGLang, in one table.

Hooks go through SGLang's own `HookRegistry`. It only logs when a target is gone, so each is looked up and checked here
first (it exists, and takes the parameters we rely on); what is missing is named in the start line and by `prr doctor`,
and what hangs on it stays off. Nothing else in this folder patches SGLang.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Literal

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from prr_plugins.common import hook_state
from prr_plugins.common.hook_state import HookState

# register: in every process. serve: in a process that serves chats, once a prr_* parser is chosen.
# check: only relied upon, not wrapped.
Stage = Literal["register", "serve", "check"]

TRIED = ("0.5.23",)


@dataclass(frozen=True)
class Hook:
    """One place.

    target: dotted path in SGLang.
    stage: when it is put in place.
    loses: what does not work without it.
    wrapper: `module:function` of ours, called with the original and its arguments (SGLang's AROUND).
    parameters: names that the target must take.
    tried: SGLang versions on which the tests ran.
    """

    name: str
    target: str
    stage: Stage
    loses: str
    wrapper: str | None = None
    parameters: tuple[str, ...] = ()
    tried: tuple[str, ...] = TRIED


_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_OURS = "prr_plugins.sglang"

HOOKS: tuple[Hook, ...] = (
    Hook("config", "sglang.srt.runtime_context.publish", "register",
         "everything but the parsers by themselves", f"{_OURS}.startup:publish", ("server_args", "role")),
    Hook("start", f"{_CHAT}.__init__", "serve",
         "the check against the template, splicing", f"{_OURS}.startup:serving_init",
         ("tokenizer_manager", "template_manager")),
    Hook("special_tokens", f"{_CHAT}._patch_reasoning_skip_special_tokens", "serve",
         "markers in the text of chats without tools", f"{_OURS}.serving:show_special_tokens", ("request",)),
    Hook("request", f"{_CHAT}.handle_request", "serve",
         "the request fields of ours", f"{_OURS}.serving:handle_request", ("request", "raw_request")),
    Hook("convert", f"{_CHAT}._convert_to_internal_request", "serve",
         "splicing, capture", f"{_OURS}.serving:convert_to_internal_request", ("request", "raw_request")),
    Hook("prompt", f"{_CHAT}._apply_jinja_template", "serve",
         "splicing", f"{_OURS}.serving:apply_jinja_template", ("request", "tools", "is_multimodal")),
    Hook("output", f"{_CHAT}._encoding_output", "serve",
         "byte-exact content, raw ids, splicing", f"{_OURS}.serving:encoding_output"),
    Hook("response", f"{_CHAT}._build_chat_response", "serve",
         "capture, raw fields", f"{_OURS}.serving:build_chat_response", ("request", "ret", "created")),
    Hook("stream", f"{_CHAT}._generate_chat_stream", "serve",
         "the same for streams", f"{_OURS}.serving:generate_chat_stream",
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

_installed: set[str] = set()
_not_in_place: dict[str, str] = {}  # places that are as we know them and did not take our hook: why


def states() -> list[HookState[Hook]]:
    """Every hook, checked against the installed SGLang."""
    return hook_state.states(HOOKS, _installed, check)


def check(hook: Hook) -> str | None:
    """What is wrong with the target or with our hook on it, None if nothing is."""
    return _not_in_place.get(hook.name) or hook_state.check(hook, lambda: pkgutil.resolve_name(hook.target))


def does_not_load(hook: Hook) -> str | None:
    """Why our side of a hook cannot be imported with this SGLang, None if it can."""
    try:
        if hook.wrapper is not None:
            hook_state.load(hook.wrapper)
    except Exception as e:
        return f"{hook.target}: our hook does not load ({type(e).__name__}: {e})"
    return None


def install(stage: Stage) -> None:
    """Put the hooks of `stage` in place, each once; one that fails its check is left alone."""
    wanted = [h for h in HOOKS if h.stage == stage and h.wrapper and h.name not in _installed and check(h) is None]
    before = {}
    for hook in wanted:
        if problem := does_not_load(hook):
            _not_in_place[hook.name] = problem
            continue
        assert hook.wrapper is not None
        before[hook] = pkgutil.resolve_name(hook.target)
        HookRegistry.register(hook.target, hook_state.load(hook.wrapper), HookType.AROUND)
    HookRegistry.apply_hooks()
    # The registry only logs when it fails, and passes over places that another plugin has hooked before.
    for hook, original in before.items():
        if pkgutil.resolve_name(hook.target) is original:
            _not_in_place[hook.name] = f"{hook.target} did not take our hook (another plugin's is there, or see above)"
        else:
            _installed.add(hook.name)


def problems(stage: Stage | None = None) -> list[str]:
    """What is not in order and what is off without it, a line each. stage: only hooks of that stage are looked at."""
    wanted = [h for h in HOOKS if stage in (None, h.stage)]
    found = hook_state.states(wanted, _installed, check)
    return [f"{state.problem}: off: {state.hook.loses}" for state in found if state.problem is not None]


def missing_for_splice() -> list[str]:
    """Names of the hooks without which nothing is spliced and that are not in order."""
    return hook_state.missing(states(), SPLICE_NEEDS)
