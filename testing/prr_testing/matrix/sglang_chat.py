"""A model behind SGLang's own serving classes in this process (`prr_testing.sglang_handler`), for the matrix."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ..parsers import OURS, STOCK
from ..sglang_handler import Handler
from ..sglang_sampler import SCRIPT
from .cells import Reply


class SglangChat:
    """One model behind SGLang: stock, or with the plugin as SGLang loads it."""

    engine = "sglang"

    def __init__(self, model: str, *, ours: bool = False) -> None:
        if ours:
            from prr_plugins.sglang import register

            register()
        self._handler = Handler(model, (OURS if ours else STOCK["sglang"])[model])
        self._serving = self._handler.serving
        self._loop = asyncio.new_event_loop()
        self.model = model
        self.ours = ours
        self.tokenizer = self._handler.tokenizer

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
            Refused: SGLang refuses the request.
        """
        body = {
            "model": self.model,
            "messages": [dict(m) for m in messages],
            "custom_params": {SCRIPT: list(script)},
            "return_input_ids_in_sglext": True,
            **({"tools": tools, "tool_choice": "auto"} if tools else {}),
            **({"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {}),
            **({"prr": True, "cache_salt": tenant} if self.ours else {}),
        }
        (data,) = self._loop.run_until_complete(self._handler.respond(body))
        (choice,) = data["choices"]
        message = {name: value for name, value in choice["message"].items() if value is not None}
        return Reply(data["sglext"]["input_ids"], message, choice["finish_reason"], data.get("prr"))

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
        return self._handler.stop_ids

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

        return _place(FunctionCallParser.ToolCallParserEnum[self._handler.parsers.tool])

    def message_site(self, ran: Set[tuple[str, int]], written: str) -> tuple[str, int] | None:
        """SGLang renders text for every model."""
        return None


def _place(thing: Any) -> tuple[str, int]:
    return inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
