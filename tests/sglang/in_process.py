"""SGLang's chat endpoint in this process, scripted, with the plugin as SGLang loads it; and what tests say to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prr_testing.parsers import OURS, Parsers
from prr_testing.sglang_handler import Handler
from prr_testing.sglang_sampler import SEPARATOR
from prr_testing.talk import EDIT_TOOL, Answer, accumulate, whole

# A turn as the model may write it: a number that JSON libraries change, and no blank line before the call.
CALL = (
    "so\n</think>\n\nI will.<tool_call>\n<function=edit>\n<parameter=path>\n/x\n</parameter>\n"
    "<parameter=count>\n1e3\n</parameter>\n</function>\n</tool_call>"
)

STOPS = {
    "qwen3.6": "<|im_end|>",
    "qwen3-coder": "<|im_end|>",
    "glm-5.1": "<|user|>",
    "glm-4.7": "<|user|>",
    "kimi-k2.6": "<|im_end|>",
    "gpt-oss": "<|return|>",
    "deepseek-v4": "<｜end▁of▁sentence｜>",
}

TOOLS = [EDIT_TOOL]


class Chat(Handler):
    """One model behind SGLang's chat handler, with the parsers of `chosen`, seen as its clients see it."""

    def __init__(self, model: str, chosen: Parsers | None = None, *, window: int = 8192, **flags: Any) -> None:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        super().__init__(model, chosen or OURS[model], window=window, **flags)
        self.stop: int = self.tokenizer.convert_tokens_to_ids(STOPS[model])

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
        told = await self.respond(body, headers)
        return accumulate(told, len(scripts)) if stream else whole(told[0])

    def counter(self, name: str, *labels: str) -> float:
        return float(self.serving.prr_runtime.metrics.get(name, *labels))
