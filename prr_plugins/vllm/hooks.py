"""Every place where the plugin touches vLLM, in one table; `common.serving.hooks` says what is done with it.

A target is `module:attribute.path`. A wrapper is called with the original and returns what takes its place.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Literal

import vllm

from prr_plugins.common.serving.hooks import Hook, HookTable

# register: in every process. compose: once a prr_* parser is chosen. admin: only where the run-time switch is served.
Stage = Literal["register", "compose", "admin", "check"]

TRIED = ("0.32.0",)


_SERVING = "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat"
_RENDERER = "vllm.renderers.online_renderer:OnlineRenderer"
_RESPONSES = "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses"
_RESPONSES_ITEMS = "vllm.entrypoints.openai.responses.utils"
_ANTHROPIC = "vllm.entrypoints.anthropic.serving:AnthropicServingMessages"
_BATCH = "vllm.entrypoints.openai.chat_completion.batch_serving:OpenAIServingChatBatch"
_RENDER = "vllm.entrypoints.scale_out.render.serving:ServingRender"
_OURS = "prr_plugins.vllm"

HARMONY_FORMAT = Hook(
    "harmony_format", "vllm.parser.harmony:_adjust_output_format", "check",
    "response_format inside GPT-OSS's channels", parameters=("request",),
)  # fmt: skip

ROWS: tuple[Hook, ...] = (
    Hook("tool_names", "vllm.tool_parsers:ToolParserManager.register_lazy_module", "check",
         "names for --tool-call-parser", parameters=("name", "module_path", "class_name"), public=True),
    Hook("reasoning_names", "vllm.reasoning:ReasoningParserManager.register_lazy_module", "check",
         "names for --reasoning-parser", parameters=("name", "module_path", "class_name"), public=True),
    Hook("arguments", "vllm.utils.argparse_utils:FlexibleArgumentParser.parse_args", "register",
         "refusing wrong arguments before the engine starts", f"{_OURS}.startup:wrap_parse_args"),
    Hook("compose", "vllm.parser.parser_manager:ParserManager._compose_parser", "register",
         "byte-exact content, raw ids, splicing", f"{_OURS}.startup:wrap_compose_parser",
         ("tool_parser_name", "reasoning_parser_name", "enable_auto_tools", "tool_strict_level", "tokenizer")),
    Hook("start", f"{_RENDERER}.warmup", "compose",
         "the check against the template, splicing", f"{_OURS}.startup:wrap_warmup"),
    Hook("prompt", f"{_RENDERER}.preprocess_chat", "compose",
         "splicing", f"{_OURS}.chat:wrap_preprocess_chat",
         ("request", "messages", "default_template", "default_template_content_format", "default_template_kwargs",
          "tool_dicts", "parser")),
    Hook("harmony", f"{_RENDERER}.render_chat", "compose",
         "splicing for GPT-OSS", f"{_OURS}.chat:wrap_render_chat", ("request",)),
    Hook("harmony_render", f"{_RENDERER}._make_request_with_harmony", "check",
         "splicing for GPT-OSS", parameters=("request", "should_include_tools")),
    HARMONY_FORMAT,
    Hook("id_reuse", "vllm.renderers.online_renderer:_reused_prompt_token_ids", "check",
         "splicing", parameters=("request", "renderer", "messages")),
    Hook("render", "vllm.renderers.base:BaseRenderer.render_messages", "check",
         "splicing", parameters=("messages", "params")),
    Hook("request", f"{_SERVING}.create_chat_completion", "compose",
         "splicing, capture, the request fields", f"{_OURS}.chat:wrap_create_chat_completion",
         ("request", "raw_request")),
    Hook("response", f"{_SERVING}.chat_completion_full_generator", "compose",
         "capture, raw fields, finish_reason of cut calls", f"{_OURS}.chat:wrap_full_generator",
         ("request", "result_generator")),
    Hook("stream", f"{_SERVING}.chat_completion_stream_generator", "compose",
         "the same for streams", f"{_OURS}.chat:wrap_stream_generator", ("request", "result_generator")),
    Hook("responses", f"{_RESPONSES}.create_responses", "compose",
         "splicing on /v1/responses", f"{_OURS}.responses:wrap_create_responses", ("request", "raw_request")),
    Hook("responses_render", f"{_RENDERER}.render_responses", "compose",
         "splicing on /v1/responses", f"{_OURS}.responses:wrap_render_responses", ("request",)),
    Hook("responses_input", f"{_RESPONSES_ITEMS}:construct_input_messages", "check",
         "splicing on /v1/responses", parameters=("request_instructions", "request_input", "prev_msg")),
    Hook("responses_output", f"{_RESPONSES_ITEMS}:construct_chat_messages_with_tool_call", "check",
         "splicing on /v1/responses", parameters=("input_messages",)),
    Hook("responses_parser", f"{_RESPONSES}._make_response_parser", "compose",
         "/v1/responses of GPT-OSS", f"{_OURS}.responses:wrap_make_response_parser", ("request", "tokenizer")),
    Hook("responses_response", f"{_RESPONSES}.responses_full_generator", "compose",
         "splicing on /v1/responses", f"{_OURS}.responses:wrap_responses_full_generator",
         ("request", "sampling_params", "result_generator", "context")),
    Hook("responses_stream", f"{_RESPONSES}.responses_stream_generator", "compose",
         "splicing on /v1/responses, streamed", f"{_OURS}.responses:wrap_responses_stream_generator",
         ("request", "sampling_params", "result_generator", "context")),
    Hook("anthropic", f"{_ANTHROPIC}.to_chat_completion_request", "compose",
         "late system messages on /v1/messages", f"{_OURS}.anthropic:wrap_to_chat_completion_request",
         ("anthropic_request", "merge_inline_system")),
    Hook("count_tokens", f"{_ANTHROPIC}.count_tokens", "compose",
         "token counts of spliced prompts", f"{_OURS}.anthropic:wrap_count_tokens", ("request", "raw_request")),
    Hook("count_render", f"{_SERVING}.render_chat_request", "compose",
         "token counts of spliced prompts", f"{_OURS}.anthropic:wrap_render_chat_request", ("request",)),
    Hook("batch", f"{_BATCH}.create_batch_chat_completion", "compose",
         "splicing of batches", f"{_OURS}.batches:wrap_create_batch", ("request", "raw_request")),
    Hook("batch_request", "vllm.entrypoints.openai.chat_completion.protocol:BatchChatCompletionRequest"
         ".to_chat_completion_request", "compose",
         "splicing of batches", f"{_OURS}.batches:wrap_to_single_request", ("messages",)),
    Hook("batch_response", f"{_BATCH}.chat_completion_full_generator_batch", "compose",
         "splicing of batches", f"{_OURS}.batches:wrap_batch_generator", ("request", "generators")),
    Hook("render_route", f"{_RENDER}.render_chat_request", "compose",
         "spliced prompts from /render", f"{_OURS}.previews:wrap_preview", ("request", "raw_request")),
    Hook("responses_render_route", f"{_RENDER}.render_responses_request", "compose",
         "spliced prompts from /render", f"{_OURS}.previews:wrap_preview", ("request",)),
    Hook("tokenize", "vllm.entrypoints.serve.tokenize.serving:ServingTokenization.create_tokenize", "compose",
         "spliced prompts from /tokenize", f"{_OURS}.previews:wrap_preview", ("request", "raw_request")),
    Hook("admin", "vllm.entrypoints.serve:register_vllm_serve_api_routers", "admin",
         "the run-time switch", f"{_OURS}.admin:wrap_register_routers", ("app",)),
)  # fmt: skip

# Without one of these a prompt cannot be spliced, or a turn not be captured.
SPLICE_NEEDS = frozenset({"compose", "start", "prompt", "id_reuse", "render", "request", "response", "stream"})

# GPT-OSS does not go through `prompt`.
_HARMONY_NEEDS = frozenset({"harmony", "harmony_render"})


def _owner(hook: Hook) -> tuple[Any, str]:
    module, _, path = hook.target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for name in parents:
        owner = getattr(owner, name)
    return owner, attribute


def _find(hook: Hook) -> Any:
    return getattr(*_owner(hook))


def _put(wrappers: dict[Hook, Callable[..., Any]]) -> dict[str, str]:
    for hook, wrapper in wrappers.items():
        owner, attribute = _owner(hook)
        original = inspect.getattr_static(owner, attribute)
        if isinstance(original, classmethod):
            setattr(owner, attribute, classmethod(wrapper(original.__func__)))
        else:
            setattr(owner, attribute, wrapper(original))
    return {}


HOOKS = HookTable("vLLM", vllm.__version__, TRIED, ROWS, _find, _put)


def install(stage: Stage) -> None:
    """Put the hooks of `stage` in place, each once."""
    HOOKS.install(stage)


def missing_for_splice(harmony: bool = False) -> list[str]:
    """Names of the hooks without which nothing is spliced and that are not in order; `harmony`: for GPT-OSS."""
    return HOOKS.missing(SPLICE_NEEDS | _HARMONY_NEEDS if harmony else SPLICE_NEEDS)
