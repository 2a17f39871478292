"""What a splice costs against what the engine does without it, over the length of the history.

    python benchmarks/splice_cost.py [--model qwen3.6] [--tokens 1000 8000 ...] [--json out/splice_cost.json]

One agent session is grown to each length (tool loops, reasoning, arguments, results of a few hundred tokens). Measured
in one run, medians of CPU time in milliseconds:

- stock: the template's render of the whole history and the encoding of that text;
- splice: all of `Splicer.plan`, nothing learnt before: normal form and hash of each message, look-up, copy, bridge;
- bridge: its render and encode of what is new alone; extend: the same with the ids of the whole next prompt;
- record: `Splicer.record` of the finished turn.

Exit status 1 where the splice takes more than 5% of stock at 100,000 tokens or more, `extend` more than 2% at the
longest history, or the bridge is not flat (longest over shortest history at most 1.2).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from prr_plugins.common.bridge import Message, TemplateBridge, Tools
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Settings
from prr_plugins.common.splice import Conversation, Splicer
from prr_plugins.common.store import TurnStore
from prr_testing.models import model_dir

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does one of the things that an agent asks for, and says what came of it.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "limit": {"type": "number"}},
            },
        },
    }
    for name in ("bash", "read_file", "write_file", "search", "fetch", "plan")
]
WORDS = (
    "the list of files in that folder holds two tests which fail since they read a path before it is made so run them "
    "def main(self): return value != None import json path = 'src/app.py' -> 0x7f {key: [1, 2]} && || == error line 42"
).split()


class Model:
    """A real tokenizer and its template, as an engine holds them."""

    def __init__(self, name: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir(name))
        self.stop = self.tokenizer.eos_token

    def render(
        self, messages: Sequence[Message], tools: Tools, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        parsed = []
        for message in messages:
            if message.get("tool_calls"):
                calls = [
                    {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                    for call in message["tool_calls"]
                ]
                message = {**message, "tool_calls": calls}
            parsed.append(message)
        text: str = self.tokenizer.apply_chat_template(
            parsed, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False, **kwargs
        )
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids))
        return text

    def bridge(self, stop_ids: Sequence[int] = ()) -> TemplateBridge:
        stops = stop_ids or [self.tokenizer.eos_token_id]
        return TemplateBridge(self.render, self.encode, self.decode, stops, self.tokenizer.get_added_vocab())


def medians_ms(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median CPU time of each work in milliseconds.

    In turns, so that what the machine does meanwhile strikes all alike; the first round is not counted and the garbage
    collector is held off.
    """
    times: list[list[float]] = [[] for _ in works]
    gc.collect()
    gc.disable()
    for _ in range(repeats + 1):
        for work, mine in zip(works, times, strict=True):
            start = time.process_time()
            work()
            mine.append((time.process_time() - start) * 1000)
    gc.enable()
    return [statistics.median(mine[1:]) for mine in times]


class Session:
    """An agent session that grows turn by turn, each turn sampled, recorded and sent back without its reasoning."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self.splicer = Splicer(model.bridge(), TurnStore(1 << 30), Settings(), Metrics())
        self.random = random.Random(seed)
        self.messages: list[Message] = [
            {"role": "system", "content": self.text(60)},
            {"role": "user", "content": self.text(40)},
        ]
        self.turn: list[int] = []

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words))

    def conversation(self) -> Conversation:
        """The next request, its messages fresh from JSON as a server gets them."""
        return Conversation(json.loads(json.dumps(self.messages)), tools=TOOLS, model="m")

    def step(self) -> None:
        plan = self.splicer.plan(self.conversation())
        prompt = plan.prompt_ids or self.model.encode(self.model.render(self.messages, TOOLS, True, {}))
        assert prompt[: len(self.turn)] == self.turn, plan.reason
        number = len(self.messages)
        arguments = {"command": self.text(25), "limit": number / 4, "deep": {"a": [number, None, True]}}
        name = self.random.choice(["bash", "read_file", "search"])
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        message: Message = {"role": "assistant", "content": self.text(10), "tool_calls": [call]}
        sampled = self.model.encode(
            f"{self.text(60)}\n</think>\n\n{message['content']}\n\n{arguments}{self.model.stop}"
        )
        self.splicer.record(plan.context, prompt, sampled, message, reasoning_span=(0, 60))
        self.turn = prompt + sampled
        self.messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": self.text(220)}]


@dataclass
class Point:
    """The session's next request when its history had grown to one length."""

    session: Session
    conversation: Conversation
    turn: list[int]

    def __post_init__(self) -> None:
        self.plan = self.session.splicer.plan(self.conversation)
        assert self.plan.outcome == "spliced", self.plan.reason
        messages = self.conversation.messages
        self.new = messages[-1:]
        self.turn_message = messages[-2]
        self.before = messages[:-2]
        self.numbers = count()

    def stock(self) -> None:
        model = self.session.model
        model.encode(model.render(self.conversation.messages, TOOLS, True, {}))

    def splice(self) -> None:
        self.session.splicer.bridge.forget()
        self.session.splicer.plan(self.conversation)

    def fresh(self) -> dict[str, Any]:
        """The turn under another call id, so that nothing which was learnt for an earlier one serves."""
        call = {**self.turn_message["tool_calls"][0], "id": f"call_{next(self.numbers)}"}
        self.new = [{**self.new[0], "tool_call_id": call["id"]}]
        return {"assistant": {**self.turn_message, "tool_calls": [call]}, "before": self.before, "tools": TOOLS}

    def bridge(self) -> None:
        fresh = self.fresh()
        self.session.splicer.bridge.continue_turn(self.turn, 100, self.new, **fresh)

    def extend(self) -> None:
        fresh = self.fresh()
        self.session.splicer.bridge.extend(self.turn[:-100], self.turn[-100:], self.new, **fresh)

    def record(self) -> None:
        self.session.splicer.record(self.plan.context, self.plan.prompt_ids or [], [1] * 300, self.turn_message)


def measure(model: Model, lengths: Sequence[int], repeats: int, seed: int) -> list[dict[str, float]]:
    """One row for each length."""
    session = Session(model, seed)
    points = []
    for length in sorted(lengths):
        while len(session.turn) < length:
            session.step()
        points.append(Point(session, session.conversation(), session.turn))
    rows: list[dict[str, float]] = [{"tokens": len(point.turn)} for point in points]
    for what, times in (("stock", 0.25), ("splice", 1), ("bridge", 4), ("extend", 2), ("record", 1)):
        works = [getattr(point, what) for point in points]
        for row, value in zip(rows, medians_ms(works, max(5, round(repeats * times))), strict=True):
            row[f"{what}_ms"] = value
    for row in rows:
        row["splice_share"] = row["splice_ms"] / row["stock_ms"]
        row["extend_share"] = row["extend_ms"] / row["stock_ms"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="qwen3.6")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 8_000, 32_000, 100_000, 128_000])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/splice_cost.json"))
    args = parser.parse_args()

    rows = measure(Model(args.model), args.tokens, args.repeats, args.seed)
    names = list(rows[0])
    print("  ".join(f"{name:>12}" for name in names))
    for row in rows:
        print("  ".join(f"{row[n]:12.1%}" if n.endswith("share") else f"{row[n]:12.2f}" for n in names))
    flat = rows[-1]["bridge_ms"] / rows[0]["bridge_ms"]
    worst = max((row["splice_share"] for row in rows if row["tokens"] >= 100_000), default=0.0)
    print(f"bridge, longest over shortest history: {flat:.2f}x; splice at 100k and more: {worst:.1%} of stock")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"model": args.model, "rows": rows, "bridge_flat": flat, "splice_share": worst}))
    return int(worst > 0.05 or flat > 1.2 or rows[-1]["extend_share"] > 0.02)


if __name__ == "__main__":
    raise SystemExit(main())
