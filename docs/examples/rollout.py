"""A multi-turn rollout against a token-in endpoint: one lineage of ids, and a loss mask without any alignment.

    python rollout.py MODEL_DIR http://127.0.0.1:8000/v1 --format prr_qwen3

The endpoint is vLLM's `/v1/completions`, which takes and returns token ids. The chat template is rendered once, for the
first prompt. From then on every prompt is the one before it, what was sampled, and the new messages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI
from transformers import AutoTokenizer

from prr_plugins.common.bridge.continuation import Refusal
from prr_plugins.common.bridge.huggingface import bridge_of
from prr_plugins.common.messages import Message
from prr_plugins.common.parsing.stream_parser import parse

Sample = Callable[[Sequence[int]], list[int]]  # prompt ids -> sampled ids, the stop token included

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]


def run_tool(name: str, arguments: str) -> str:
    """Your environment."""
    given = json.loads(arguments)
    return str(given.get("a", 0) + given.get("b", 0)) if name == "add" else f"no tool {name}"


@dataclass
class Rollout:
    """What the trainer gets: `ids`, and per token whether the policy sampled it (then it counts for the loss)."""

    ids: list[int]
    sampled: list[bool]
    turns: int = 0
    stopped: str = ""
    messages: list[Message] = field(default_factory=list)


class Environment:
    """One model's tokenizer, template and format."""

    def __init__(self, model_dir: str, format: str, stop_ids: Sequence[int]) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.format = format
        self.stop_ids = frozenset(stop_ids)
        # a lineage holds what was sampled, never another spelling of it
        self.bridge = bridge_of(self.tokenizer, stop_ids, stop="sampled")

    def rollout(self, messages: list[Message], sample: Sample, max_turns: int = 8) -> Rollout:
        """Turns until an answer without calls, `max_turns`, or a turn that cannot be continued."""
        prompt = str(
            self.tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
        )
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        done = Rollout(ids, [False] * len(ids), messages=list(messages))
        tail = prompt[-64:]
        while done.turns < max_turns:
            completion = sample(done.ids)
            done.turns += 1
            message, results = self.step(completion, tail, done.turns)
            if not results:
                self._add(done, completion, True)
                done.messages.append(message)
                done.stopped = "answer"
                return done
            extended = self.bridge.extend(
                done.ids, completion, results, assistant=message, before=done.messages, tools=TOOLS
            )
            if isinstance(extended, Refusal):
                self._add(done, completion, True)
                done.stopped = extended.reason
                return done
            for span in extended.spans():
                if span.source != "prompt":
                    self._add(done, extended.ids[span.start : span.end], span.source == "sampled")
            done.messages += [message, *results]
            tail = self.tokenizer.decode(done.ids[-32:], skip_special_tokens=False)
        done.stopped = "max_turns"
        return done

    def step(self, completion: Sequence[int], tail: str, turn: int) -> tuple[Message, list[Message]]:
        """The assistant message of a completion, and the results of its calls."""
        ended = completion[-1] in self.stop_ids
        text = self.tokenizer.decode(completion[:-1] if ended else completion, skip_special_tokens=False)
        parsed = parse(self.format, text, tools=TOOLS, prompt_tail=tail, finish_reason="stop" if ended else "length")
        calls = [
            {
                "id": call.id or f"call_{turn}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for i, call in enumerate(parsed.parsed_tool_calls)
        ]
        message: Message = {"role": "assistant", "content": parsed.content or "", "reasoning": parsed.reasoning}
        if calls:
            message["tool_calls"] = calls
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": run_tool(**call["function"])} for call in calls
        ]
        return message, results

    @staticmethod
    def _add(done: Rollout, ids: Sequence[int], sampled: bool) -> None:
        done.ids += ids
        done.sampled += [sampled] * len(ids)


def completions(client: OpenAI, model: str, max_tokens: int, stop_ids: Sequence[int], **extra: Any) -> Sample:
    """Samples from `/v1/completions`: ids in, ids out, nothing is detokenized on the way."""
    body = {"return_token_ids": True, "stop_token_ids": list(stop_ids), **extra}

    def sample(prompt_ids: Sequence[int]) -> list[int]:
        answer = client.completions.create(
            model=model, prompt=list(prompt_ids), max_tokens=max_tokens, temperature=1.0, extra_body=body
        )
        return list(answer.choices[0].model_dump()["token_ids"])

    return sample


def main() -> None:
    parser = argparse.ArgumentParser(description="One rollout; prints the lineage with its mask.")
    parser.add_argument("model_dir")
    parser.add_argument("base_url")
    parser.add_argument("--format", required=True, help="prr_qwen3, prr_glm, prr_kimi_k2, ...")
    parser.add_argument("--question", default="What is 17.5 + 4? Use the tool.")
    parser.add_argument("--max-tokens", type=int, default=512)
    options = parser.parse_args()
    with open(f"{options.model_dir}/generation_config.json") as file:
        eos = json.load(file)["eos_token_id"]
    stops = eos if isinstance(eos, list) else [eos]
    client = OpenAI(base_url=options.base_url, api_key="none")
    model = client.models.list().data[0].id
    environment = Environment(options.model_dir, options.format, stops)
    sample = completions(client, model, options.max_tokens, stops)
    done = environment.rollout([{"role": "user", "content": options.question}], sample)
    print(f"{done.turns} turns, {len(done.ids)} tokens, {sum(done.sampled)} sampled, ended by {done.stopped}")
    print(environment.tokenizer.decode(done.ids, skip_special_tokens=False))


if __name__ == "__main__":
    main()
