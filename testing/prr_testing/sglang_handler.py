"""SGLang's chat endpoint in this process, with scripts in place of the scheduler and the model.

Everything from the request to the response is SGLang's own: the handler and its thread pool, template or encoder,
detokenizer, detectors, response and stream. Only the tokenizer manager's road to the scheduler is left out: what would
come back from it is made of scripted ids. No weights, no server. A plugin that SGLang has loaded works as on a server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from . import sglang_cpu  # noqa: F401  # stand-ins for GPU packages, to be there before sglang is
from .models import model_dir
from .parsers import Parsers
from .sglang_sampler import SCRIPT, SEPARATOR

# What the model's own config.json says beside the stand-in network's, where SGLang decides by it.
_MODEL_TYPES = {"gpt-oss": "gpt_oss"}
KERNELS = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}


class Refused(ValueError):
    """SGLang answered with an error; its own words."""


class RawRequest:
    """What the handler asks of the HTTP request."""

    def __init__(self, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        self._body = body
        self.headers = headers

    async def json(self) -> dict[str, Any]:
        return self._body


class Handler:
    """One model behind `OpenAIServingChat`. A request brings its completions as the scripted sampler takes them.

    window: the most tokens of a request. flags: fields of SGLang's `ServerArgs`.
    stop_after: the client goes away after that many tokens.
    """

    _published: ClassVar[Any] = None

    def __init__(self, model: str, parsers: Parsers, *, window: int = 32_768, **flags: Any) -> None:
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
        from sglang.srt.managers.tokenizer_manager import TokenizerManager
        from sglang.srt.parser.template_manager import TemplateManager
        from sglang.srt.runtime_context import get_context
        from sglang.srt.server_args import ServerArgs
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        folder = str(model_dir(model))
        self._arguments: Any = ServerArgs(
            model_path=folder,
            tool_call_parser=parsers.tool,
            reasoning_parser=parsers.reasoning,
            context_length=window,
            enable_cache_report=True,
            **KERNELS,
            **flags,
        )
        self._publish()
        self.model = model
        self.parsers = parsers
        self.tokenizer = get_tokenizer(folder)
        self.stop_after: int | None = None
        manager: Any = object.__new__(TokenizerManager)
        manager.tokenizer = self.tokenizer
        manager.model_config = ModelConfig.from_server_args(self._arguments)
        if model in _MODEL_TYPES:
            manager.model_config.hf_config.model_type = _MODEL_TYPES[model]
        manager.model_path = manager.served_model_name = folder
        manager.server_args = self._arguments
        manager.context_len = window
        manager.num_reserved_tokens = 0
        manager.max_req_input_len = window - 5
        manager.validate_total_tokens = True
        manager.allow_auto_truncate = False
        manager.incremental_streaming_output = self._arguments.incremental_streaming_output
        manager.request_logger = SimpleNamespace(log_requests=False)
        manager.config_value = lambda name: get_context().config_leaf(name)
        manager.generate_request = self._generate
        manager.create_abort_task = lambda adapted: None
        templates = TemplateManager()
        templates.initialize_templates(
            tokenizer_manager=manager, model_path=folder, chat_template=None, completion_template=None
        )
        self.manager = manager
        self.serving: Any = OpenAIServingChat(manager, templates)
        from prr_plugins.sglang.runtime import stop_ids

        self.stop_ids = stop_ids(self.serving)

    def _publish(self) -> None:
        """SGLang's configuration is one per process; make it ours."""
        from sglang.srt.runtime_context import publish

        if Handler._published is not self._arguments:
            publish(self._arguments, role="tokenizer")
            Handler._published = self._arguments

    async def respond(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """One request: its response, or the events of its stream, as a client reads them.

        Raises:
            Refused: SGLang answers with an error.
        """
        from fastapi.responses import StreamingResponse
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        self._publish()
        sent = json.loads(json.dumps(body))  # as it comes over the wire
        response = await self.serving.handle_request(ChatCompletionRequest(**sent), RawRequest(sent, headers or {}))
        if isinstance(response, StreamingResponse):
            texts = [e if isinstance(e, str) else bytes(e).decode() async for e in response.body_iterator]
            return [json.loads(text.removeprefix("data: ")) for text in texts if text.startswith("data: {")]
        if not hasattr(response, "choices"):
            raise Refused(bytes(response.body).decode())
        return [json.loads(response.model_dump_json(by_alias=True))]

    # ------------------------------------------------------------------------------------ the engine

    async def _generate(self, adapted: Any, raw_request: Any = None) -> AsyncIterator[Any]:
        """What the tokenizer manager would yield: for a stream each choice's output so far, token by token."""
        sampling = adapted.sampling_params
        prompt = list(adapted.input_ids)
        scripts: list[list[int]] = [[]]
        for token in sampling["custom_params"][SCRIPT]:
            if token == SEPARATOR:
                scripts.append([])
            else:
                scripts[-1].append(token)
        limit = sampling.get("max_new_tokens") or 1 << 20
        runs = [self._outputs(prompt, script[:limit], sampling, adapted.stream) for script in scripts]
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

    def _outputs(
        self, prompt: list[int], script: list[int], sampling: Mapping[str, Any], stream: bool
    ) -> Iterator[dict[str, Any]]:
        incremental = stream and self.manager.incremental_streaming_output
        steps = [[token] for token in script] if stream else [script]
        finish: dict[str, Any] = {"type": "length", "length": len(script)}
        if script and script[-1] in self.stop_ids:
            finish = {"type": "stop", "matched": script[-1]}
        live: list[int] = []  # one list that grows, as in the tokenizer manager
        shown = ""
        texts = detokenize(self.tokenizer, self.parsers.tool, prompt, steps, sampling, finish)
        for number, (ids, text) in enumerate(zip(steps, texts, strict=True), 1):
            live += ids
            shown += text
            if self.stop_after is not None and len(live) > self.stop_after:
                raise asyncio.CancelledError
            last = number == len(steps)
            sent = list(ids) if incremental else list(live) if last else live
            yield output(prompt, text if incremental else shown, sent, len(live), dict(finish) if last else None)


def output(
    prompt_ids: list[int], text: str, ids: list[int], count: int, finish_reason: dict[str, Any] | None
) -> dict[str, Any]:
    """An output of the tokenizer manager. count: how many tokens there are by now."""
    meta = {
        "id": "scripted",
        "finish_reason": finish_reason,
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": count,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "weight_version": "default",
    }
    return {"text": text, "output_ids": ids, "prompt_token_ids": prompt_ids, "meta_info": meta}


def detokenize(
    tokenizer: Any,
    tool_parser: str | None,
    prompt: Sequence[int],
    steps: Sequence[Sequence[int]],
    sampling: Mapping[str, Any],
    finish: Mapping[str, Any],
) -> Iterator[str]:
    """What SGLang's detokenizer process sends for each step's ids; `finish` comes with the last one."""
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.managers.schedule_batch import INIT_INCREMENTAL_DETOKENIZATION_OFFSET
    from sglang.srt.parser.response_template import tool_close_token_ids

    made: Any = object.__new__(DetokenizerManager)
    made.tokenizer = tokenizer
    made.vocab_size = len(tokenizer)
    made.decode_status = {}
    made.disable_tokenizer_batch_decode = False
    made.is_tool_call_parser_gpt_oss = tool_parser == "gpt-oss"
    made.tool_close_token_ids = tool_close_token_ids(tool_parser, tokenizer)
    surrogate = list(prompt[-INIT_INCREMENTAL_DETOKENIZATION_OFFSET:])
    for number, ids in enumerate(steps, 1):
        received: Any = SimpleNamespace(
            rids=["scripted"],
            finished_reasons=[dict(finish) if number == len(steps) else None],
            decoded_texts=[""],
            decode_ids=[[*(surrogate if number == 1 else ()), *ids]],
            read_offsets=[len(surrogate)],
            skip_special_tokens=[sampling["skip_special_tokens"]],
            spaces_between_special_tokens=[sampling["spaces_between_special_tokens"]],
            no_stop_trim=[bool(sampling["no_stop_trim"])],
        )
        yield str(made._decode_batch_token_id_output(received)[0])
