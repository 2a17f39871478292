"""vLLM's chat endpoint in this process, with a script in place of the model: `OpenAIServingChat` and `OnlineRenderer`.

Everything from the request to the response is vLLM's own: request validation, renderer (Hugging Face template, DeepSeek
V4 encoder, Harmony), detokenizer, parsers, response. Only what would run on a device is replaced: `generate` yields the
scripted ids. No weights, no server.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

from ..models import model_dir
from ..parsers import OURS, STOCK
from .cells import Reply

# What the model's own config.json says beside the stand-in network's, where vLLM decides by it.
_MODEL_TYPES = {"gpt-oss": "gpt_oss"}
_TOKENIZER_MODES = {"deepseek-v4": "deepseek_v4"}


class VllmChat:
    """One model behind vLLM: stock, or with the plugin as vLLM loads it."""

    engine = "vllm"

    def __init__(self, model: str, *, ours: bool = False) -> None:
        folder = model_dir(model)
        os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(model_dir("gpt-oss") / "tiktoken"))
        from vllm.config import DeviceConfig, ModelConfig, VllmConfig
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.renderers.online_renderer import OnlineRenderer
        from vllm.renderers.registry import renderer_from_config

        if ours:
            from prr_plugins.vllm import register

            register()
        parsers = (OURS if ours else STOCK["vllm"])[model]
        config = ModelConfig(
            model=str(folder), tokenizer_mode=_TOKENIZER_MODES.get(model, "auto"), max_model_len=32_768, dtype="float32"
        )
        if model in _MODEL_TYPES:
            config.hf_config.model_type = _MODEL_TYPES[model]
        renderer = renderer_from_config(VllmConfig(model_config=config, device_config=DeviceConfig("cpu")))
        shared: dict[str, Any] = {
            "request_logger": None,
            "chat_template": None,
            "chat_template_content_format": "auto",
            "enable_auto_tools": True,
            "tool_parser": parsers.tool,
            "reasoning_parser": parsers.reasoning,
        }
        self.renderer = OnlineRenderer(config, renderer, **shared)
        self._client = _Script(config, renderer)
        models: Any = OpenAIServingModels(self._client, [BaseModelPath(model, str(folder))])
        self._serving = OpenAIServingChat(self._client, models, "assistant", online_renderer=self.renderer, **shared)
        if ours:  # a server does so in `warmup`, which also runs the renderer on a made-up request
            from prr_plugins.vllm.startup import activate

            activate(self.renderer)
        self.model = model
        self.ours = ours
        self.tokenizer = renderer.get_tokenizer()
        self._loop = asyncio.new_event_loop()
        self._stops = self.stop_ids()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        script: Sequence[int],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Reply:
        """One request. `script` is what is sampled.

        Raises:
            RuntimeError: vLLM answers with an error; its own words.
        """
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        self._client.script, self._client.cut = list(script), script[-1] not in self._stops
        offered: dict[str, Any] = {"tools": tools, "tool_choice": "auto"} if tools else {}
        if template_kwargs:
            offered["chat_template_kwargs"] = dict(template_kwargs)
        if self.ours:
            offered |= {"prr": True, "cache_salt": tenant}
        request = ChatCompletionRequest(
            model=self.model, messages=[dict(m) for m in messages], return_token_ids=True, **offered
        )
        response: Any = self._loop.run_until_complete(self._serving.create_chat_completion(request))
        if not hasattr(response, "choices"):
            raise RuntimeError(response.error.message)
        (choice,) = response.choices
        message = choice.message.model_dump(exclude_none=True)
        return Reply(
            list(response.prompt_token_ids), message, choice.finish_reason, (response.model_extra or {}).get("prr")
        )

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt's text by vLLM's own renderer."""
        from prr_plugins.vllm.runtime import renderer_render

        if self.renderer.use_harmony:
            return self._render_harmony(messages, tools, add_generation_prompt)
        return renderer_render(self.renderer)(messages, tools, add_generation_prompt, template_kwargs)

    def _render_harmony(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        """Harmony has no template: vLLM builds messages and `openai_harmony` makes the ids."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        offered = {"tools": tools} if tools else {}
        request = ChatCompletionRequest(model=self.model, messages=[dict(m) for m in messages], **offered)
        _, (prompt,) = self.renderer._make_request_with_harmony(request, tools is not None)
        text = str(self.tokenizer.decode(prompt["prompt_token_ids"], skip_special_tokens=False))
        return text if add_generation_prompt else text.removesuffix("<|start|>assistant")

    def stop_ids(self) -> set[int]:
        from prr_plugins.vllm.runtime import stop_ids

        return stop_ids(self.renderer)

    def encode_site(self) -> tuple[str, int]:
        """Where vLLM makes ids of a prompt's text."""
        if self.renderer.use_harmony:
            from vllm.entrypoints.openai.parser import harmony_utils

            return _place(harmony_utils.render_for_completion)
        return _place(type(self.renderer.renderer)._tokenize_prompt)

    def parser_site(self) -> tuple[str, int]:
        """The parser's class."""
        cls: Any = self._serving.parser_cls
        inner = getattr(cls, "tool_parser_cls", None) if "<locals>" in cls.__qualname__ else cls
        return _place(inner or cls)

    def message_site(self, ran: Set[tuple[str, int]], written: str) -> tuple[str, int] | None:
        """For a renderer that works on messages, not text (Harmony): the line that ran and dropped or made a message.

        ran: lines that were executed. written: the first token of what stands in the prompt instead.
        """
        if not self.renderer.use_harmony:
            return None
        from vllm.entrypoints.openai.parser import harmony_utils

        dropping, making = harmony_utils.auto_drop_analysis_messages, harmony_utils.parse_chat_input_to_harmony_message
        for function, wanted in ((dropping, "continue"), (making, f'with_channel("{written}")')):
            lines, first = inspect.getsourcelines(function)
            for number, line in enumerate(lines, first):
                if wanted in line and (inspect.getsourcefile(function), number) in ran:
                    return inspect.getsourcefile(function) or "", number
        return _place(making)


class _Script:
    """The engine client that `OpenAIServingChat` talks to: its `generate` samples the script."""

    errored = False

    def __init__(self, model_config: Any, renderer: Any) -> None:
        self.model_config = model_config
        self.renderer = renderer
        self.input_processor = None
        self.vllm_config = SimpleNamespace(kv_transfer_config=None)
        self.script: list[int] = []
        self.cut = False

    def check_admission(self, n: int = 1) -> None:
        pass

    async def is_tracing_enabled(self) -> bool:
        return False

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        from vllm.outputs import CompletionOutput, RequestOutput
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        ids = prompt["prompt_token_ids"]
        asked: Any = SimpleNamespace(
            request_id=request_id, sampling_params=params, prompt_token_ids=list(ids), prompt_embeds=None
        )
        detokenizer: Any = IncrementalDetokenizer.from_new_request(self.renderer.get_tokenizer(), asked)
        detokenizer.update(list(self.script), not self.cut)
        output = CompletionOutput(
            index=0,
            text=detokenizer.get_next_output_text(True, False),
            token_ids=list(self.script),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="length" if self.cut else "stop",
        )
        yield RequestOutput(request_id, None, list(ids), None, [output], True)


def _place(thing: Any) -> tuple[str, int]:
    return inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
