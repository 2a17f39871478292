"""What one API process of vLLM holds for a served model.

One `Runtime` belongs to one `OnlineRenderer` (attribute `prr_runtime`) and is made when that one is warmed up.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import ChatParams

from prr_plugins.common.bridge.template_probe import Render
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.prompts import overflow
from prr_plugins.common.prompts.plan import Context, Conversation, Plan
from prr_plugins.common.serving.prometheus import PrometheusMetrics
from prr_plugins.common.serving.runtime import BaseRuntime, ids_among
from prr_plugins.common.settings import Settings, SpliceMode
from prr_plugins.vllm import hooks

if TYPE_CHECKING:
    from vllm.renderers.online_renderer import OnlineRenderer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Runtime(BaseRuntime):
    """See the module."""

    def __init__(self, renderer: OnlineRenderer, settings: Settings) -> None:
        tokenizer = renderer.renderer.get_tokenizer()
        self.harmony: bool = renderer.use_harmony
        super().__init__(settings, PrometheusMetrics(), hooks.missing_for_splice(self.harmony), logger)
        self.max_model_len: int = renderer.model_config.max_model_len
        self._reserve = min(settings.output_reserve, self.max_model_len // 4)
        self.serve(
            renderer_render(renderer),
            tokenizer,
            stop_ids(renderer),
            renderer.model_config.model,
            _template(renderer),
            # openai-harmony itself never makes a special token of a message's text.
            special_tokens="as_text" if self.harmony else None,
            reasoning_end=renderer.parser.prr_format.reasoning_end,
        )
        # One thread: planning leaves the event loop free, and turns are recorded in the order they ended.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prr")

    def room(self, new_tokens: int | None) -> int:
        """Most tokens of a prompt whose completion may have `new_tokens` (None: the request names no limit)."""
        return self.max_model_len - (self._reserve if new_tokens is None else max(1, new_tokens))

    async def run(self, step: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a step of the splicer beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, functools.partial(step, *args, **kwargs)
        )

    async def plan(self, conversation: Conversation, mode: SpliceMode, room: int) -> Plan:
        """`overflow.plan_prompt`; a shared store is asked without anybody waiting but this request."""
        prepared: Context | None = None
        shared = self.shared
        if shared is not None and mode != "off":
            prepared = await self.run(self.splicer.prepare, conversation)
            if prepared is not None and prepared.lookup is not None:
                fetched = await self._within_timeout(shared.begin_fetch(prepared.lookup), "fetch")
                prepared.known = shared.late(prepared.lookup) if fetched is None else fetched
        return await self.run(overflow.plan_prompt, self.splicer, conversation, mode, room, prepared)

    async def record(self, *args: Any, **kwargs: Any) -> None:
        """`Splicer.record`, and the turn is where other processes find it before the client can answer.

        Where the shared store is slow that goes on without the client.
        """
        turn = await self.run(self.splicer.record, *args, **kwargs)
        if turn is not None and self.shared is not None:
            await self._within_timeout(self.shared.share(turn), "share")

    async def _within_timeout(self, work: Future[T], stage: str) -> T | None:
        """What comes of work that raises nothing; None where that takes longer than the store's time-out."""
        began = time.perf_counter()
        # Not `wait_for`, which would cancel work that others may wait for too.
        done, _ = await asyncio.wait([asyncio.wrap_future(work)], timeout=self.settings.store_timeout)
        self.metrics.add("prr_seconds_total", time.perf_counter() - began, stage)
        return done.pop().result() if done else None


def renderer_render(renderer: OnlineRenderer) -> Render:
    """The engine's own path from messages to prompt text, whichever renderer the model has."""
    if renderer.use_harmony:
        return _harmony_render(renderer)

    def render(
        messages: list[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        params = ChatParams(
            chat_template=renderer.chat_template,
            chat_template_content_format=renderer.chat_template_content_format,
            chat_template_kwargs={
                **template_kwargs,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
                "tokenize": False,
            },
        )
        # vLLM turns the arguments of historic calls into dicts in place.
        _, prompt = renderer.renderer.render_messages(copy_messages(messages), params)
        text = prompt.get("prompt") if isinstance(prompt, dict) else None
        if not isinstance(text, str):
            raise TypeError("this model's renderer gives token ids, not text")
        return text

    return render


# What Harmony ends every prompt with, whatever a request says about it.
_HARMONY_GENERATION = "<|start|>assistant"


def _harmony_render(renderer: OnlineRenderer) -> Render:
    """GPT-OSS: vLLM makes ids with openai-harmony, from the request itself; no chat template is used."""
    tokenizer = renderer.renderer.get_tokenizer()

    def render(
        messages: list[Message], tools: Tools, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        request = ChatCompletionRequest(messages=copy_messages(messages), tools=tools, **template_kwargs)
        _, (prompt,) = renderer._make_request_with_harmony(request, tools is not None)
        text: str = tokenizer.decode(prompt["prompt_token_ids"], skip_special_tokens=False)
        return text if add_generation_prompt else text.removesuffix(_HARMONY_GENERATION)

    return render


def copy_messages(messages: Sequence[Any]) -> list[Message]:
    """Copies deep enough for what vLLM changes in place: the calls and their functions."""
    copies = []
    for message in messages:
        copy = dict(message)
        calls = copy.get("tool_calls")
        if calls:
            copy["tool_calls"] = [_copy_call(call) for call in calls]
        copies.append(copy)
    return copies


def _copy_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    copy = dict(call)
    if isinstance(copy.get("function"), dict):
        copy["function"] = dict(copy["function"])
    return copy


def stop_ids(renderer: OnlineRenderer) -> set[int]:
    """The ids that end generation on this server."""
    config = renderer.model_config
    return ids_among(
        renderer.renderer.get_eos_token_id(),
        getattr(config.hf_config, "eos_token_id", None),
        config.try_get_generation_config().get("eos_token_id"),
        config.get_diff_sampling_param().get("stop_token_ids"),
    )


def _template(renderer: OnlineRenderer) -> tuple[object, ...]:
    template = renderer.chat_template or getattr(renderer.renderer.get_tokenizer(), "chat_template", None)
    return type(renderer.renderer).__name__, renderer.use_harmony, repr(template), renderer.chat_template_content_format
