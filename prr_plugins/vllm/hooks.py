"""Every place where the plugin touches vLLM, in one table.

Each hook is looked up and checked (it exists, and takes the parameters we rely on) before anything is put in its place;
what is missing is named in the start line and by `prr doctor`, and what hangs on it stays off. Nothing else in this
folder patches vLLM.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Literal

from prr_plugins.common import hook_state
from prr_plugins.common.hook_state import HookState

# register: in every process. compose: once a prr_* parser is chosen. admin: only where the run-time switch is served.
Stage = Literal["register", "compose", "admin", "check"]

TRIED = ("0.32.0",)


@dataclass(frozen=True)
class Hook:
    """One place.

    target: `module:attribute.path` in vLLM.
    public: documented by vLLM for plugins; anything else may move with any release.
    stage: when it is put in place; `check`: it is only relied upon, not replaced.
    wrapper: `module:function` of ours; called with the original, it returns the replacement.
    parameters: names that the target must take.
    loses: what does not work without it.
    tried: vLLM versions on which the tests ran.
    """

    name: str
    target: str
    public: bool
    stage: Stage
    loses: str
    wrapper: str | None = None
    parameters: tuple[str, ...] = ()
    tried: tuple[str, ...] = TRIED


_SERVING = "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat"
_RENDERER = "vllm.renderers.online_renderer:OnlineRenderer"
_RESPONSES = "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses"
_RESPONSES_ITEMS = "vllm.entrypoints.openai.responses.utils"
_ANTHROPIC = "vllm.entrypoints.anthropic.serving:AnthropicServingMessages"
_BATCH = "vllm.entrypoints.openai.chat_completion.batch_serving:OpenAIServingChatBatch"
_RENDER = "vllm.entrypoints.scale_out.render.serving:ServingRender"
_OURS = "prr_plugins.vllm"

HARMONY_FORMAT = Hook(
    "harmony_format", "vllm.parser.harmony:_adjust_output_format", False, "check",
    "response_format inside GPT-OSS's channels", parameters=("request",),
)  # fmt: skip

HOOKS: tuple[Hook, ...] = (
    Hook("tool_names", "vllm.tool_parsers:ToolParserManager.register_lazy_module", True, "check",
         "names for --tool-call-parser", parameters=("name", "module_path", "class_name")),
    Hook("reasoning_names", "vllm.reasoning:ReasoningParserManager.register_lazy_module", True, "check",
         "names for --reasoning-parser", parameters=("name", "module_path", "class_name")),
    Hook("arguments", "vllm.utils.argparse_utils:FlexibleArgumentParser.parse_args", False, "register",
         "refusing wrong arguments before the engine starts", f"{_OURS}.startup:wrap_parse_args"),
    Hook("compose", "vllm.parser.parser_manager:ParserManager._compose_parser", False, "register",
         "byte-exact content, raw ids, splicing", f"{_OURS}.startup:wrap_compose_parser",
         ("tool_parser_name", "reasoning_parser_name", "enable_auto_tools", "tool_strict_level", "tokenizer")),
    Hook("start", f"{_RENDERER}.warmup", False, "compose",
         "the check against the template, splicing", f"{_OURS}.startup:wrap_warmup"),
    Hook("prompt", f"{_RENDERER}.preprocess_chat", False, "compose",
         "splicing", f"{_OURS}.serving:wrap_preprocess_chat",
         ("request", "messages", "default_template", "default_template_content_format", "default_template_kwargs",
          "tool_dicts", "parser")),
    Hook("harmony", f"{_RENDERER}.render_chat", False, "compose",
         "splicing for GPT-OSS", f"{_OURS}.serving:wrap_render_chat", ("request",)),
    Hook("harmony_render", f"{_RENDERER}._make_request_with_harmony", False, "check",
         "splicing for GPT-OSS", parameters=("request", "should_include_tools")),
    HARMONY_FORMAT,
    Hook("id_reuse", "vllm.renderers.online_renderer:_reused_prompt_token_ids", False, "check",
         "splicing", parameters=("request", "renderer", "messages")),
    Hook("render", "vllm.renderers.base:BaseRenderer.render_messages", False, "check",
         "splicing", parameters=("messages", "params")),
    Hook("request", f"{_SERVING}.create_chat_completion", False, "compose",
         "splicing, capture, the request fields", f"{_OURS}.serving:wrap_create_chat_completion",
         ("request", "raw_request")),
    Hook("response", f"{_SERVING}.chat_completion_full_generator", False, "compose",
         "capture, raw fields, finish_reason of cut calls", f"{_OURS}.serving:wrap_full_generator",
         ("request", "result_generator")),
    Hook("stream", f"{_SERVING}.chat_completion_stream_generator", False, "compose",
         "the same for streams", f"{_OURS}.serving:wrap_stream_generator", ("request", "result_generator")),
    Hook("responses", f"{_RESPONSES}.create_responses", False, "compose",
         "splicing on /v1/responses", f"{_OURS}.surfaces:wrap_create_responses", ("request", "raw_request")),
    Hook("responses_render", f"{_RENDERER}.render_responses", False, "compose",
         "splicing on /v1/responses", f"{_OURS}.surfaces:wrap_render_responses", ("request",)),
    Hook("responses_input", f"{_RESPONSES_ITEMS}:construct_input_messages", False, "check",
         "splicing on /v1/responses", parameters=("request_instructions", "request_input", "prev_msg")),
    Hook("responses_output", f"{_RESPONSES_ITEMS}:construct_chat_messages_with_tool_call", False, "check",
         "splicing on /v1/responses", parameters=("input_messages",)),
    Hook("responses_parser", f"{_RESPONSES}._make_response_parser", False, "compose",
         "/v1/responses of GPT-OSS", f"{_OURS}.surfaces:wrap_make_response_parser", ("request", "tokenizer")),
    Hook("responses_response", f"{_RESPONSES}.responses_full_generator", False, "compose",
         "splicing on /v1/responses", f"{_OURS}.surfaces:wrap_responses_full_generator",
         ("request", "sampling_params", "result_generator", "context")),
    Hook("responses_stream", f"{_RESPONSES}.responses_stream_generator", False, "compose",
         "splicing on /v1/responses, streamed", f"{_OURS}.surfaces:wrap_responses_stream_generator",
         ("request", "sampling_params", "result_generator", "context")),
    Hook("anthropic", f"{_ANTHROPIC}.to_chat_completion_request", False, "compose",
         "late system messages on /v1/messages", f"{_OURS}.surfaces:wrap_to_chat_completion_request",
         ("anthropic_request", "merge_inline_system")),
    Hook("count_tokens", f"{_ANTHROPIC}.count_tokens", False, "compose",
         "token counts of spliced prompts", f"{_OURS}.surfaces:wrap_count_tokens", ("request", "raw_request")),
    Hook("count_render", f"{_SERVING}.render_chat_request", False, "compose",
         "token counts of spliced prompts", f"{_OURS}.surfaces:wrap_render_chat_request", ("request",)),
    Hook("batch", f"{_BATCH}.create_batch_chat_completion", False, "compose",
         "splicing of batches", f"{_OURS}.surfaces:wrap_create_batch", ("request", "raw_request")),
    Hook("batch_request", "vllm.entrypoints.openai.chat_completion.protocol:BatchChatCompletionRequest"
         ".to_chat_completion_request", False, "compose",
         "splicing of batches", f"{_OURS}.surfaces:wrap_to_single_request", ("messages",)),
    Hook("batch_response", f"{_BATCH}.chat_completion_full_generator_batch", False, "compose",
         "splicing of batches", f"{_OURS}.surfaces:wrap_batch_generator", ("request", "generators")),
    Hook("render_route", f"{_RENDER}.render_chat_request", False, "compose",
         "spliced prompts from /render", f"{_OURS}.surfaces:wrap_preview", ("request", "raw_request")),
    Hook("responses_render_route", f"{_RENDER}.render_responses_request", False, "compose",
         "spliced prompts from /render", f"{_OURS}.surfaces:wrap_preview", ("request",)),
    Hook("tokenize", "vllm.entrypoints.serve.tokenize.serving:ServingTokenization.create_tokenize", False, "compose",
         "spliced prompts from /tokenize", f"{_OURS}.surfaces:wrap_preview", ("request", "raw_request")),
    Hook("admin", "vllm.entrypoints.serve:register_vllm_serve_api_routers", False, "admin",
         "the run-time switch", f"{_OURS}.admin:wrap_register_routers", ("app",)),
)  # fmt: skip

# Without one of these a prompt cannot be spliced, or a turn not be captured.
SPLICE_NEEDS = frozenset({"compose", "start", "prompt", "id_reuse", "render", "request", "response", "stream"})

# GPT-OSS does not go through `prompt`.
_HARMONY_NEEDS = frozenset({"harmony", "harmony_render"})

_installed: set[str] = set()


def states() -> list[HookState[Hook]]:
    """Every hook, checked against the installed vLLM."""
    return hook_state.states(HOOKS, _installed, check)


def check(hook: Hook) -> str | None:
    """What is wrong with the target, None if nothing is."""
    return hook_state.check(hook, lambda: getattr(*_owner(hook)))


def install(stage: Stage) -> None:
    """Put the hooks of `stage` in place, each once; one that fails its check is left alone."""
    for hook in HOOKS:
        if hook.stage != stage or hook.wrapper is None or hook.name in _installed or check(hook):
            continue
        owner, attribute = _owner(hook)
        original = inspect.getattr_static(owner, attribute)
        wrapper = hook_state.load(hook.wrapper)
        if isinstance(original, classmethod):
            setattr(owner, attribute, classmethod(wrapper(original.__func__)))
        else:
            setattr(owner, attribute, wrapper(original))
        _installed.add(hook.name)


def missing_for_splice(harmony: bool = False) -> list[str]:
    """Names of the hooks without which nothing is spliced and that are not in order; `harmony`: for GPT-OSS."""
    needed = SPLICE_NEEDS | _HARMONY_NEEDS if harmony else SPLICE_NEEDS
    return hook_state.missing(states(), needed)


def _owner(hook: Hook) -> tuple[Any, str]:
    module, _, path = hook.target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    return owner, attribute
