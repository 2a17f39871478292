"""The bridge beside `renderers` (hand-written mirrors of templates): equal ids or the difference, and what each costs.

    python benchmarks/against_renderers.py [--json out/renderers.json]

Agreement: for each model that both know, a turn as the template spells it and what follows it (results of one call and
of two, a new user message, a result and a user message). Both get the same ids and messages; the full render is beside
them. Two differ by design: `renderers` mirrors GLM-4.5's template for GLM-4.7, and openai-harmony where GPT-OSS has a
Jinja template. It refuses a new user message, since the template then drops reasoning; the bridge leaves that to its
caller.

Cost: `extend` against `bridge_to_next_turn` at several lengths of history, and the template's full render with its
encoding, medians of CPU time, in turns within one run. The user installs it: `pip install renderers==0.1.12`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from renderers.base import create_renderer
from renderers.configs import (
    GLM45RendererConfig,
    GLM51RendererConfig,
    GptOssRendererConfig,
    KimiK25RendererConfig,
    Qwen36RendererConfig,
)
from splice_cost import TOOLS, Model, Session, medians_ms

from prr_plugins.common.bridge import Message, Refusal

USER = {"role": "user", "content": "List the files."}
NEXT = {"role": "user", "content": "Go on, please."}
CONFIGS = {
    "qwen3.6": Qwen36RendererConfig,
    "glm-5.1": GLM51RendererConfig,
    "glm-4.7": GLM45RendererConfig,
    "kimi-k2.6": KimiK25RendererConfig,
    "gpt-oss": GptOssRendererConfig,
}
STOPS = {
    "qwen3.6": ["<|im_end|>", "<|endoftext|>"],
    "glm-5.1": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "glm-4.7": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "kimi-k2.6": ["<|im_end|>"],
    "gpt-oss": ["<|return|>", "<|call|>"],
}


def call(number: int) -> Message:
    function = {"name": "bash", "arguments": json.dumps({"command": "ls"})}
    return {"id": f"functions.bash:{number}", "type": "function", "function": function}


def result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"functions.bash:{number}", "name": "bash", "content": "a\nb"}


ONE = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call(0)]}
TWO = {**ONE, "tool_calls": [call(0), call(1)]}
ANSWER = {"role": "assistant", "content": "Two files.", "reasoning_content": "Hm."}
CASES: dict[str, tuple[Message, list[Message]]] = {
    "one result": (ONE, [result(0)]),
    "two results": (TWO, [result(0), result(1)]),
    "new user": (ANSWER, [NEXT]),
    "result, user": (ONE, [result(0), NEXT]),
}


def sampled(model: Model, name: str, turn: Message, new: Sequence[Message]) -> str | None:
    """The turn as the template spells it behind its own generation prompt, closed by what a model stops with."""
    prompt = model.render([USER], TOOLS, True, {})
    alone = model.render([USER, turn], TOOLS, False, {})
    if not alone.startswith(prompt):
        return None
    text = alone[len(prompt) :].rstrip("\n")
    if text.endswith(tuple(STOPS[name])):
        return text
    following = model.render([USER, turn, *new], TOOLS, True, {})
    rest = following[len(alone) :] if following.startswith(alone) else ""
    stop = next((stop for stop in STOPS[name] if rest.startswith(stop)), None)
    if stop is not None:
        return text + stop
    # The template drops the reasoning now; the stop is still the opener of what follows.
    opener = {"user": "<|user|>", "tool": "<|observation|>"}[new[0]["role"]]
    return text + opener if opener in STOPS[name] else None


def agreement(name: str) -> dict[str, str]:
    """What both wrote for each case."""
    model = Model(name)
    bridge = model.bridge([model.tokenizer.convert_tokens_to_ids(stop) for stop in STOPS[name]])
    mirror = create_renderer(model.tokenizer, CONFIGS[name]())
    report = {}
    for case, (turn, new) in CASES.items():
        text = sampled(model, name, turn, new)
        if text is None:
            report[case] = "the template does not write the turn behind its own generation prompt"
            continue
        prompt, completion = model.encode(model.render([USER], TOOLS, True, {})), model.encode(text)
        ours = bridge.extend(prompt, completion, new, assistant=turn, before=[USER], tools=TOOLS)
        theirs = mirror.bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
        full = model.encode(model.render([USER, turn, *new], TOOLS, True, {}))
        if isinstance(ours, Refusal) or theirs is None:
            mine = ours.reason if isinstance(ours, Refusal) else "answers"
            report[case] = f"bridge: {mine}; renderers: {'refuses' if theirs is None else 'answers'}"
        elif ours.ids == list(theirs.token_ids):
            report[case] = "equal ids" + (", as the full render" if ours.ids == full else "")
        else:
            tails = [model.decode(ids[len(prompt) + len(completion) - 1 :]) for ids in (ours.ids, theirs.token_ids)]
            truth = model.decode(full)
            fits = [truth.endswith(tail[tail.find("<") :]) for tail in tails]
            report[case] = f"bridge {tails[0]!r}; renderers {tails[1]!r}; ends the full render: {fits[0]}, {fits[1]}"
    return report


def costs(lengths: Sequence[int], words: int, repeats: int) -> list[dict[str, float]]:
    """One row for each length of history, on Qwen3.6, for a tool result of that many words."""
    model = Model("qwen3.6")
    session = Session(model, 0)
    mirror = create_renderer(model.tokenizer, CONFIGS["qwen3.6"]())
    points = []
    for length in lengths:
        while len(session.turn) < length:
            session.step()
        messages, turn = session.conversation().messages, session.turn
        points.append((messages[:-2], messages[-2], turn[:-100], turn[-100:]))
    numbers = count()

    def news(assistant: Message) -> tuple[Message, list[Message]]:
        """The turn and a result under a call id that was never seen, as in a server's life."""
        call_id = f"call_{next(numbers)}"
        result = {"role": "tool", "tool_call_id": call_id, "content": session.text(words)}
        return {**assistant, "tool_calls": [{**assistant["tool_calls"][0], "id": call_id}]}, [result]

    def ours(before: list[Message], assistant: Message, prompt: list[int], completion: list[int]) -> Any:
        turn, new = news(assistant)
        return session.splicer.bridge.extend(prompt, completion, new, assistant=turn, before=before, tools=TOOLS)

    def theirs(before: list[Message], assistant: Message, prompt: list[int], completion: list[int]) -> Any:
        return mirror.bridge_to_next_turn(prompt, completion, news(assistant)[1], tools=TOOLS)

    def stock(before: list[Message], assistant: Message, prompt: list[int], completion: list[int]) -> Any:
        turn, new = news(assistant)
        return model.encode(model.render([*before, turn, *new], TOOLS, True, {}))

    rows: list[dict[str, float]] = [{"tokens": len(point[2]) + len(point[3])} for point in points]
    for what, work, times in (("extend", ours, 1.0), ("renderers", theirs, 1.0), ("stock", stock, 0.25)):
        works = [lambda work=work, point=point: work(*point) for point in points]
        for row, value in zip(rows, medians_ms(works, max(5, round(repeats * times))), strict=True):
            row[f"{what}_ms"] = value
    for row in rows:
        row["of_renderers"] = row["extend_ms"] / row["renderers_ms"]
        row["of_stock"] = row["extend_ms"] / row["stock_ms"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 8_000, 32_000, 128_000])
    parser.add_argument("--words", type=int, nargs="+", default=[200, 40], help="words of the new tool result")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path("out/renderers.json"))
    args = parser.parse_args()

    report: dict[str, Any] = {"agreement": {}}
    for name in CONFIGS:
        report["agreement"][name] = agreement(name)
        for case, text in report["agreement"][name].items():
            print(f"{name:10} {case:14} {text}")
    report["costs"] = {}
    for words in args.words:
        report["costs"][words] = rows = costs(sorted(args.tokens), words, args.repeats)
        names = list(rows[0])
        print(f"a tool result of {words} words")
        print("  ".join(f"{name:>12}" for name in names))
        for row in rows:
            print("  ".join(f"{row[n]:12.2%}" if n.startswith("of_") else f"{row[n]:12.2f}" for n in names))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1, ensure_ascii=False))
    return int(rows[-1]["of_renderers"] > 0.5 or rows[-1]["of_stock"] > 0.02)


if __name__ == "__main__":
    raise SystemExit(main())
