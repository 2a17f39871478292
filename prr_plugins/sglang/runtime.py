"""What one API process of SGLang holds for a served model.

One `Runtime` belongs to one chat handler of SGLang (attribute `prr_runtime`) and is made when that one is. Requests are
converted in a thread pool: all of it may be used from several threads at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from prr_plugins.common.bridge.template_probe import Render
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.reasoning_tokens import ReasoningMarkers
from prr_plugins.common.serving.prometheus import PrometheusMetrics
from prr_plugins.common.serving.runtime import BaseRuntime, ids_among
from prr_plugins.common.settings import Settings
from prr_plugins.sglang import hooks

if TYPE_CHECKING:
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

logger = logging.getLogger(__name__)


RUNTIME = "prr_runtime"
"""The attribute of a chat handler, and of its tokenizer manager, that holds its runtime."""


class Runtime(BaseRuntime):
    """See the module."""

    def __init__(self, serving: OpenAIServingChat, fmt: Format, settings: Settings) -> None:
        manager = serving.tokenizer_manager
        tokenizer = manager.tokenizer
        super().__init__(settings, PrometheusMetrics(), hooks.missing_for_splice(), logger)
        self.format = fmt
        self.tokenizer = tokenizer
        self.reasoning = ReasoningMarkers(tokenizer, fmt)
        self._manager = manager
        self.serve(
            engine_render(serving),
            tokenizer,
            stop_ids(serving),
            manager.model_path,
            _template(serving),
            reasoning_end=fmt.reasoning_end,
        )

    def room(self, new_tokens: int | None) -> int:
        """Most tokens of a prompt whose completion may have `new_tokens` (None: the request names no limit)."""
        manager = self._manager
        window: int = manager.context_len - manager.num_reserved_tokens
        if new_tokens is None:
            new_tokens = min(self.settings.output_reserve, window // 4)
        longest = window if manager.max_req_input_len is None else manager.max_req_input_len
        return min(window - max(1, new_tokens), longest - 1)

    def fits(self, prompt_tokens: int, new_tokens: int | None) -> bool:
        """Whether SGLang takes a prompt of that many tokens with a completion of (up to) that many.

        new_tokens: the limit that the request names, None where it names none. SGLang refuses a request whose limit
        does not fit, not only one whose prompt does not.
        """
        manager = self._manager
        window: int = manager.context_len - manager.num_reserved_tokens
        longest = manager.max_req_input_len
        if longest is not None and prompt_tokens >= longest:
            return False
        counted = manager.validate_total_tokens and not manager.allow_auto_truncate
        return prompt_tokens < window and (not counted or prompt_tokens + (new_tokens or 0) <= window)


def engine_render(serving: OpenAIServingChat) -> Render:
    """The engine's own path from messages to prompt text, whichever way the model's prompts are made.

    SGLang's way ends in ids (some encoders never make a text); the text is what they decode to.
    """
    tokenizer = serving.tokenizer_manager.tokenizer

    def render(
        messages: list[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        kwargs = dict(template_kwargs)
        request = ChatCompletionRequest(
            messages=messages, tools=tools or None, reasoning_effort=kwargs.get("reasoning_effort")
        )
        request.chat_template_kwargs = kwargs
        # Set at all, it also keeps SGLang from turning a last assistant message into a user's.
        request._format_add_generation_prompt = add_generation_prompt
        result = serving._apply_jinja_template(request, list(tools) if tools else None, False)
        return str(tokenizer.decode(list(result.prompt_ids), skip_special_tokens=False))

    return render


def stop_ids(serving: OpenAIServingChat) -> set[int]:
    """The ids that end generation on this server."""
    tokenizer = serving.tokenizer_manager.tokenizer
    config = serving.tokenizer_manager.model_config
    return ids_among(
        config.hf_eos_token_id,
        tokenizer.eos_token_id,
        getattr(tokenizer, "additional_stop_token_ids", None),
        (serving.default_sampling_params or {}).get("stop_token_ids"),
    )


def template_kwargs(request: ChatCompletionRequest) -> dict[str, Any]:
    """What the request and the server's defaults hand to the template (SGLang has merged them by now)."""
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    return kwargs


def copy_messages(messages: Sequence[Any]) -> list[Message]:
    """The messages as the client sent them, as far as SGLang keeps them: plain dicts without what was not set."""
    return [message.model_dump(exclude_none=True) for message in messages]


def _template(serving: OpenAIServingChat) -> tuple[object, ...]:
    template = getattr(serving.tokenizer_manager.tokenizer, "chat_template", None) or serving.chat_encoding_spec
    return repr(template), serving.template_manager.jinja_template_content_format
