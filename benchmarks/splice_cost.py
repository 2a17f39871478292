"""What a splice costs beside its two alternatives, over the length of the history.

    python benchmarks/splice_cost.py [--model qwen3.6] [--tokens 1000 8000 ...] [--json out/splice_cost.json]

One agent session is grown to each length (tool loops, reasoning, arguments, results of a few hundred tokens). Measured
in one run, medians of CPU time in milliseconds:

- stock: the template's render of the whole history and the encoding of that text;
- splice: all of `Splicer.plan`, nothing learnt before: normal form and hash of each message, look-up, copy, bridge;
- record: `Splicer.record` of the finished turn;

and for a tool result of each number of words, under a call id and with a text that were never seen:

- bridge: its render and encode of what is new alone;
- extend: the same with the ids of the whole next prompt; spans: with the source of every token besides;
- renderers: `bridge_to_next_turn` of `renderers`, which mirrors this template by hand, with its sources of tokens.

Both bridges must give the same ids. Exit status 1 where the splice takes more than 5% of stock at 100,000 tokens or
more; where, at the longest history, `extend` takes more than 2% of stock or half of `renderers`; or where the bridge is
not flat (longest over shortest history at most 1.2).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from renderers.base import create_renderer
from renderers.configs import GLM51RendererConfig, Qwen36RendererConfig
from transformers import AutoTokenizer

from prr_plugins.common.bridge.continuation import Continuation, Extension
from prr_plugins.common.bridge.huggingface import bridge_of, encoder, renderer
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts.plan import Conversation
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.settings import Settings
from prr_plugins.common.store.memory import TurnStore
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
MIRRORS = {"qwen3.6": Qwen36RendererConfig, "glm-5.1": GLM51RendererConfig}
WORDS = (
    "the list of files in that folder holds two tests which fail since they read a path before it is made so run them "
    "def main(self): return value != None import json path = 'src/app.py' -> 0x7f {key: [1, 2]} && || == error line 42"
).split()


class Model:
    """A real tokenizer and its template; render and encode are the same for stock and for the bridge."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir(name))
        self.stop = self.tokenizer.eos_token
        self.render = renderer(self.tokenizer)
        self.encode = encoder(self.tokenizer)

    def bridge(self) -> TemplateBridge:
        return bridge_of(self.tokenizer, [self.tokenizer.eos_token_id])


Work = Callable[[], Callable[[], object]]
"""Prepares one piece of work, and returns what is to be timed."""


def medians_ms(works: Sequence[Work], repeats: int) -> list[float]:
    """Median CPU time of each work in milliseconds.

    In turns, so that what the machine does meanwhile strikes all alike, and each round in an order of its own, since
    who reads a long history first finds it in no cache; the first round is not counted and the garbage collector is
    held off.
    """
    times: list[list[float]] = [[] for _ in works]
    order = list(zip(works, times, strict=True))
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.disable()
    for _ in range(repeats + 1):
        shuffle(order)
        for prepare, mine in order:
            work = prepare()
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


class Point:
    """The session's next request when its history had grown to one length."""

    def __init__(self, session: Session, mirror: Any) -> None:
        self.session, self.mirror = session, mirror
        self.conversation = session.conversation()
        self.plan = session.splicer.plan(self.conversation)
        assert self.plan.outcome == "spliced", self.plan.reason
        self.turn = session.turn
        self.prompt, self.completion = self.turn[:-100], self.turn[-100:]
        *self.before, self.assistant, _ = self.conversation.messages
        self.numbers = count()

    def stock(self) -> Callable[[], object]:
        model = self.session.model
        return lambda: model.encode(model.render(self.conversation.messages, TOOLS, True, {}))

    def splice(self) -> Callable[[], object]:
        self.session.splicer.bridge.forget()
        return lambda: self.session.splicer.plan(self.conversation)

    def record(self) -> Callable[[], object]:
        prompt = self.plan.prompt_ids or []
        return lambda: self.session.splicer.record(self.plan.context, prompt, [1] * 300, self.assistant)

    def _news(self, words: int) -> tuple[list[Message], dict[str, Any]]:
        """A result of the turn's call under an id, and with a text, that nothing learnt before can serve for."""
        call = {**self.assistant["tool_calls"][0], "id": f"call_{next(self.numbers)}"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": self.session.text(words)}
        return [result], {"assistant": {**self.assistant, "tool_calls": [call]}, "before": self.before, "tools": TOOLS}

    def bridge(self, words: int) -> Callable[[], Continuation | Any]:
        new, turn = self._news(words)
        return lambda: self.session.splicer.bridge.continue_turn(self.turn, len(self.completion), new, **turn)

    def extend(self, words: int) -> Callable[[], Extension | Any]:
        new, turn = self._news(words)
        return lambda: self.session.splicer.bridge.extend(self.prompt, self.completion, new, **turn)

    def spans(self, words: int) -> Callable[[], object]:
        extend = self.extend(words)
        return lambda: extend().spans()

    def renderers(self, words: int) -> Callable[[], Any]:
        new, _ = self._news(words)
        return lambda: self.mirror.bridge_to_next_turn(self.prompt, self.completion, new, tools=TOOLS)

    def check(self) -> None:
        """Both bridges answer, and alike."""
        new, turn = self._news(20)
        ours = self.session.splicer.bridge.extend(self.prompt, self.completion, new, **turn)
        theirs = self.mirror.bridge_to_next_turn(self.prompt, self.completion, new, tools=TOOLS)
        assert isinstance(ours, Extension), ours
        assert ours.ids == list(theirs.token_ids)


def measure(
    model: Model, lengths: Sequence[int], words: Sequence[int], repeats: int, seed: int
) -> tuple[list[dict[str, float]], dict[int, list[dict[str, float]]]]:
    """One row for each length: of whole requests, and by words of the new result."""
    session = Session(model, seed)
    mirror = create_renderer(model.tokenizer, MIRRORS[model.name]())
    points = []
    for length in sorted(lengths):
        while len(session.turn) < length:
            session.step()
        points.append(Point(session, mirror))
        points[-1].check()

    requests: list[dict[str, float]] = [{"tokens": len(point.turn)} for point in points]
    for what, times in (("stock", 0.25), ("splice", 1), ("record", 1)):
        works: list[Work] = [getattr(point, what) for point in points]
        for row, value in zip(requests, medians_ms(works, max(5, round(repeats * times))), strict=True):
            row[f"{what}_ms"] = value
    for row in requests:
        row["splice_share"] = row["splice_ms"] / row["stock_ms"]

    results: dict[int, list[dict[str, float]]] = {}
    for number in words:
        whats = ("bridge", "extend", "spans", "renderers")
        works = [partial(getattr(point, what), number) for point in points for what in whats]
        values = iter(medians_ms(works, 2 * repeats))
        results[number] = [{"tokens": row["tokens"], **{f"{w}_ms": next(values) for w in whats}} for row in requests]
        for row, request in zip(results[number], requests, strict=True):
            row["extend_of_stock"] = row["extend_ms"] / request["stock_ms"]
            row["extend_of_renderers"] = row["extend_ms"] / row["renderers_ms"]
            row["spans_of_renderers"] = row["spans_ms"] / row["renderers_ms"]
    return requests, results


def show(rows: Sequence[dict[str, float]]) -> None:
    widths = {name: max(10, len(name)) for name in rows[0]}
    print("  ".join(f"{name:>{width}}" for name, width in widths.items()))
    for row in rows:
        shown = (
            f"{row[name]:{width}.2%}" if "_of_" in name or name.endswith("_share") else f"{row[name]:{width}.2f}"
            for name, width in widths.items()
        )
        print("  ".join(shown))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="qwen3.6", choices=MIRRORS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 8_000, 32_000, 128_000])
    parser.add_argument("--words", type=int, nargs="+", default=[40, 200], help="words of the new tool result")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/splice_cost.json"))
    args = parser.parse_args()

    requests, results = measure(Model(args.model), args.tokens, args.words, args.repeats, args.seed)
    show(requests)
    for words, rows in results.items():
        print(f"\na tool result of {words} words")
        show(rows)
    at_length = [rows[-1] for rows in results.values()]
    figures = {
        "splice_share": max((row["splice_share"] for row in requests if row["tokens"] >= 100_000), default=0.0),
        "extend_of_stock": max(row["extend_of_stock"] for row in at_length),
        "extend_of_renderers": max(row["extend_of_renderers"] for row in at_length),
        "bridge_flat": max(rows[-1]["bridge_ms"] / rows[0]["bridge_ms"] for rows in results.values()),
    }
    print(
        f"\nat the longest history, at worst: extend {figures['extend_of_stock']:.2%} of stock and "
        f"{figures['extend_of_renderers']:.0%} of renderers; bridge {figures['bridge_flat']:.2f}x of the shortest "
        f"history's; a server's whole splice {figures['splice_share']:.1%} of stock"
    )
    args.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"model": args.model, "requests": requests, "results": results, **figures}
    args.json.write_text(json.dumps(report, indent=1))
    limits = {"splice_share": 0.05, "extend_of_stock": 0.02, "extend_of_renderers": 0.5, "bridge_flat": 1.2}
    missed = {name: limit for name, limit in limits.items() if figures[name] > limit}
    for name, limit in missed.items():
        print(f"goal missed: {name} {figures[name]:.2f}, at most {limit}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
