"""SGLang's chat endpoint in this process, with a script in place of the model: `OpenAIServingChat` and its templates.

Everything from the request to the response is SGLang's own: conversion of the request, template or encoder,
detokenizer, detectors, response. Only the tokenizer manager's road to the scheduler is left out: the result that would
come back from it is made of the scripted ids. No weights, no server.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence, Set
from types import SimpleNamespace
from typing import Any

from ..models import model_dir
from ..parsers import STOCK
from .cells import Reply

# What the model's own config.json says beside the stand-in network's, where SGLang decides by it.
_MODEL_TYPES = {"gpt-oss": "gpt_oss"}


class SglangChat:
    """One model behind stock SGLang."""

    engine = "sglang"

    def __init__(self, model: str) -> None:
        from .. import sglang_cpu  # noqa: F401  # stand-ins for GPU packages, to be there before sglang is

        folder = str(model_dir(model))
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
        from sglang.srt.parser.template_manager import TemplateManager
        from sglang.srt.runtime_context import get_context, publish
        from sglang.srt.server_args import ServerArgs
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        self._parsers = STOCK["sglang"][model]
        arguments = ServerArgs(
            model_path=folder,
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            tool_call_parser=self._parsers.tool,
            reasoning_parser=self._parsers.reasoning,
        )
        publish(arguments, role="tokenizer")
        config = ModelConfig.from_server_args(arguments)
        if model in _MODEL_TYPES:
            config.hf_config.model_type = _MODEL_TYPES[model]
        self.model = model
        self.tokenizer = get_tokenizer(folder)
        manager: Any = SimpleNamespace(
            tokenizer=self.tokenizer,
            model_config=config,
            model_path=folder,
            served_model_name=folder,
            server_args=arguments,
            config_value=lambda name: get_context().config_leaf(name),
        )
        templates = TemplateManager()
        templates.initialize_templates(
            tokenizer_manager=manager, model_path=folder, chat_template=None, completion_template=None
        )
        self._serving = OpenAIServingChat(manager, templates)

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        script: Sequence[int],
        *,
        cut: bool,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One request. `script` is what is sampled; `cut`: the last of it is no stop token.

        Raises:
            ValueError: SGLang refuses the request.
        """
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        offered: dict[str, Any] = {"tools": tools, "tool_choice": "auto"} if tools else {}
        if template_kwargs:
            offered["chat_template_kwargs"] = dict(template_kwargs)
        asked = ChatCompletionRequest(model=self.model, messages=[dict(m) for m in messages], **offered)
        refusal = self._serving._validate_request(asked)
        if refusal:
            raise ValueError(refusal)
        adapted, request = self._serving._convert_to_internal_request(asked, None)
        prompt = list(adapted.input_ids)
        finish = {"type": "length", "length": len(script)} if cut else {"type": "stop", "matched": script[-1]}
        result = {
            "text": self._detokenize(prompt, list(script), adapted.sampling_params, dict(finish)),
            "output_ids": list(script),
            "prompt_token_ids": prompt,
            "meta_info": {
                "id": "matrix",
                "finish_reason": dict(finish),
                "prompt_tokens": len(prompt),
                "completion_tokens": len(script),
                "cached_tokens": 0,
                "weight_version": "default",
            },
        }
        response: Any = self._serving._build_chat_response(request, [result], int(time.time()))
        (choice,) = response.choices
        return Reply(prompt, choice.message.model_dump(exclude_none=True), choice.finish_reason)

    def _detokenize(
        self, prompt: list[int], script: list[int], sampling: Mapping[str, Any], finish: dict[str, Any]
    ) -> str:
        """The text that SGLang's detokenizer process would send."""
        from sglang.srt.managers.detokenizer_manager import DetokenizerManager
        from sglang.srt.managers.schedule_batch import INIT_INCREMENTAL_DETOKENIZATION_OFFSET
        from sglang.srt.parser.response_template import tool_close_token_ids

        detokenizer: Any = object.__new__(DetokenizerManager)
        detokenizer.tokenizer = self.tokenizer
        detokenizer.vocab_size = len(self.tokenizer)
        detokenizer.decode_status = {}
        detokenizer.disable_tokenizer_batch_decode = False
        detokenizer.is_tool_call_parser_gpt_oss = self._parsers.tool == "gpt-oss"
        detokenizer.tool_close_token_ids = tool_close_token_ids(self._parsers.tool, self.tokenizer)
        surrogate = prompt[-INIT_INCREMENTAL_DETOKENIZATION_OFFSET:]
        received: Any = SimpleNamespace(
            rids=["matrix"],
            finished_reasons=[finish],
            decoded_texts=[""],
            decode_ids=[[*surrogate, *script]],
            read_offsets=[len(surrogate)],
            skip_special_tokens=[sampling["skip_special_tokens"]],
            spaces_between_special_tokens=[sampling["spaces_between_special_tokens"]],
            no_stop_trim=[bool(sampling["no_stop_trim"])],
        )
        return str(detokenizer._decode_batch_token_id_output(received)[0])

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt's text by SGLang's own path."""
        from prr_plugins.sglang.runtime import engine_render

        return engine_render(self._serving)(messages, tools, add_generation_prompt, template_kwargs)

    def stop_ids(self) -> set[int]:
        from prr_plugins.sglang.runtime import stop_ids

        return stop_ids(self._serving)

    def encode_site(self) -> tuple[str, int]:
        """Where SGLang makes ids of a prompt's text."""
        adapter = self._serving.encoding_adapter
        made = type(self._serving)._render_and_encode_chat_template if adapter is None else adapter.encode_messages
        return _place(made)

    def parser_site(self) -> tuple[str, int]:
        """The detector's class, or that of an encoder that parses its own output."""
        adapter = self._serving.encoding_adapter
        if adapter is not None:
            return _place(type(adapter))
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        return _place(FunctionCallParser.ToolCallParserEnum[self._parsers.tool])

    def message_site(self, ran: Set[tuple[str, int]], written: str) -> tuple[str, int] | None:
        """SGLang renders text for every model."""
        return None


def _place(thing: Any) -> tuple[str, int]:
    return inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
