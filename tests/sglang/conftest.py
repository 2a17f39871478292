"""SGLang's chat endpoint in this process, with scripts in place of the scheduler and the model.

Everything from the request to the response is SGLang's own, with the plugin loaded as SGLang loads it: the handler and
its thread pool, template or encoder, response and stream. Only the tokenizer manager's road to the scheduler is left
out: what would come back from it is made of the scripted ids, token by token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import pytest
from fastapi.responses import StreamingResponse

from prr_testing import sglang_cpu  # noqa: F401  # stand-ins for GPU packages, to be there before sglang is
from prr_testing.models import model_dir
from prr_testing.parsers import OURS, Parsers
from prr_testing.sglang_sampler import SEPARATOR
from prr_testing.talk import Answer, accumulate, whole

STOPS = {
    "qwen3.6": "<|im_end|>",
    "qwen3-coder": "<|im_end|>",
    "glm-5.1": "<|user|>",
    "glm-4.7": "<|user|>",
    "kimi-k2.6": "<|im_end|>",
    "gpt-oss": "<|return|>",
    "deepseek-v4": "<｜end▁of▁sentence｜>",
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Edit a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "count": {"type": "number"}},
            },
        },
    }
]


class RawRequest:
    """What the handler asks of the HTTP request."""

    def __init__(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        self._body = body
        self.headers = headers

    async def json(self) -> dict[str, Any]:
        return self._body


class Chat:
    """One model behind SGLang's chat handler, with the parsers of `chosen`."""

    _published: ClassVar[Any] = None

    def __init__(self, model: str, chosen: Parsers | None = None, *, window: int = 8192, **flags: Any) -> None:
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.parser.template_manager import TemplateManager
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        chosen = chosen or OURS[model]
        folder = str(model_dir(model))
        load_plugins()
        arguments = ServerArgs(
            model_path=folder,
            device="cpu",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            tool_call_parser=chosen.tool,
            reasoning_parser=chosen.reasoning,
            context_length=window,
            enable_cache_report=True,
            **flags,
        )
        import sglang.srt.runtime_context as context

        self._arguments = arguments
        self._publish()
        self.model = model
        self.tokenizer = get_tokenizer(folder)
        self.stop: int = self.tokenizer.convert_tokens_to_ids(STOPS[model])
        manager: Any = object.__new__(TokenizerManager)
        manager.tokenizer = self.tokenizer
        manager.model_config = ModelConfig.from_server_args(arguments)
        if model == "gpt-oss":
            manager.model_config.hf_config.model_type = "gpt_oss"
        manager.model_path = manager.served_model_name = folder
        manager.server_args = arguments
        manager.context_len = window
        manager.num_reserved_tokens = 0
        manager.max_req_input_len = window - 5
        manager.validate_total_tokens = True
        manager.allow_auto_truncate = False
        manager.incremental_streaming_output = arguments.incremental_streaming_output
        manager.request_logger = type("Quiet", (), {"log_requests": False})()
        manager.config_value = lambda name: context.get_context().config_leaf(name)
        manager.generate_request = self._generate
        manager.create_abort_task = lambda adapted: None
        templates = TemplateManager()
        templates.initialize_templates(
            tokenizer_manager=manager, model_path=folder, chat_template=None, completion_template=None
        )
        self.manager = manager
        self.serving = OpenAIServingChat(manager, templates)
        self.stop_after: int | None = None  # the client goes away after that many tokens

    def _publish(self) -> None:
        """SGLang's configuration is one per process; make it ours."""
        import sglang.srt.runtime_context as context

        if Chat._published is not self._arguments:
            context.publish(self._arguments, role="tokenizer")
            Chat._published = self._arguments

    # ------------------------------------------------------------------------------------ the client

    def ids(self, text: str, *, stop: bool = True) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), *([self.stop] if stop else [])]

    def ask(self, messages: Sequence[dict[str, Any]], completion: str | list[int] = "fine", **options: Any) -> Answer:
        return self.ask_n(messages, [completion], **options)[0]

    def ask_n(
        self,
        messages: Sequence[dict[str, Any]],
        completions: Sequence[str | list[int]],
        *,
        stream: bool = False,
        tools: Sequence[dict[str, Any]] | None = TOOLS,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> list[Answer]:
        return asyncio.run(self.request(messages, completions, stream=stream, tools=tools, headers=headers, **body))

    async def request(
        self,
        messages: Sequence[dict[str, Any]],
        completions: Sequence[str | list[int]],
        *,
        stream: bool = False,
        tools: Sequence[dict[str, Any]] | None = TOOLS,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> list[Answer]:
        """One request; `Refused` where SGLang answers with an error."""
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        self._publish()
        scripts = [script if isinstance(script, list) else self.ids(script) for script in completions]
        joined = [i for number, script in enumerate(scripts) for i in ([SEPARATOR] if number else []) + script]
        body = {
            "model": self.model,
            "messages": messages,
            "n": len(scripts),
            "stream": stream,
            "max_tokens": 512,
            "custom_params": {"script_ids": joined},
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
            "prr": True,
            **({"tools": tools} if tools else {}),
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **body,
        }
        body = json.loads(json.dumps(body))  # as it comes over the wire
        asked = ChatCompletionRequest(**body)
        response = await self.serving.handle_request(asked, RawRequest(body, headers or {}))
        if isinstance(response, StreamingResponse):
            events = []
            async for event in response.body_iterator:
                text = event if isinstance(event, str) else bytes(event).decode()
                if text.startswith("data: {"):
                    events.append(json.loads(text.removeprefix("data: ")))
            return accumulate(events, len(scripts))
        if not hasattr(response, "choices"):
            raise Refused(bytes(response.body).decode())
        return whole(json.loads(response.model_dump_json(by_alias=True)))

    # ------------------------------------------------------------------------------------ the engine

    async def _generate(self, adapted: Any, raw_request: Any = None) -> AsyncIterator[Any]:
        """What the tokenizer manager would yield: for a stream each choice's output so far, token by token."""
        joined = adapted.sampling_params["custom_params"]["script_ids"]
        scripts: list[list[int]] = [[]]
        for token in joined:
            if token == SEPARATOR:
                scripts.append([])
            else:
                scripts[-1].append(token)
        prompt = list(adapted.input_ids)
        limit = adapted.sampling_params.get("max_new_tokens") or 1 << 20
        runs = [self._outputs(prompt, script[:limit], adapted.sampling_params) for script in scripts]
        if not adapted.stream:
            results = [list(run)[-1] for run in runs]
            yield results if len(results) > 1 else results[0]
            return
        open_runs = dict(enumerate(runs))
        while open_runs:
            for index, run in list(open_runs.items()):
                output = next(run, None)
                if output is None:
                    del open_runs[index]
                else:
                    yield {**output, "index": index}

    def _outputs(self, prompt: list[int], script: list[int], sampling: dict[str, Any]) -> Any:
        incremental = self.manager.incremental_streaming_output
        hides = sampling["skip_special_tokens"]
        live: list[int] = []
        shown = ""
        for number, token in enumerate(script, 1):
            last = number == len(script)
            live.append(token)
            stopped = last and token in self.serving.tokenizer_manager.model_config.hf_eos_token_id
            body = live[:-1] if stopped else live
            text = self.tokenizer.decode(body, skip_special_tokens=hides)
            text = text if last else text.rstrip("�")
            finish = None
            if last:
                finish = {"type": "stop", "matched": token} if stopped else {"type": "length", "length": number}
            if self.stop_after is not None and number > self.stop_after:
                raise asyncio.CancelledError
            yield {
                "text": text[len(shown) :] if incremental else text,
                "output_ids": [token] if incremental else (list(live) if last else live),
                "prompt_token_ids": prompt,
                "meta_info": {
                    "id": "test",
                    "finish_reason": finish,
                    "prompt_tokens": len(prompt),
                    "completion_tokens": number,
                    "cached_tokens": 0,
                    "reasoning_tokens": 0,
                    "weight_version": "default",
                },
            }
            shown = text

    def counter(self, name: str, *labels: str) -> float:
        return float(self.serving.prr_runtime.metrics.get(name, *labels))


class Refused(Exception):
    """SGLang answered with an error."""


Make = Callable[..., Chat]


@pytest.fixture(scope="session")
def made() -> dict[Any, Chat]:
    """Handlers by what they were made with: making one costs seconds."""
    return {}


@pytest.fixture
def chat_of(made: dict[Any, Chat], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes (or finds) the handler of a model; `env` holds the plugin's settings."""

    def make(
        model: str = "qwen3.6", chosen: Parsers | None = None, env: tuple[tuple[str, str], ...] = (), **flags: Any
    ) -> Chat:
        key = (model, chosen, env, tuple(sorted(flags.items())))
        if key not in made:
            for name, value in env:
                monkeypatch.setenv(name, value)
            made[key] = Chat(model, chosen, **flags)
        return made[key]

    return make
