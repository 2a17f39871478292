"""An assistant message as a model writes it: the canonical text, or one of the many others that mean the same.

At rate 0 the text is exactly what the model's template makes of the message. At a higher rate each place where models
are seen to differ (blank lines around markers, the newlines around a value, key order, JSON spacing, the spelling of
numbers and strings) is, with that probability, written in another way. How often real models do so is not claimed:
the rate is an input of the benchmark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

Choice = TypeVar("Choice")


class Hand:
    """One model's handwriting: takes the canonical way, or with probability `rate` another one."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate

    def pick(self, canonical: Choice, *others: Choice) -> Choice:
        if others and self.rng.random() < self.rate:
            return self.rng.choice(others)
        return canonical

    def order(self, items: Sequence[Choice]) -> list[Choice]:
        """The items as they come, or shuffled."""
        return self.pick(list(items), self.rng.sample(items, len(items)))

    def json(self, value: Any) -> str:
        """A JSON value; canonical is what `tojson` of the templates writes."""
        if isinstance(value, dict):
            colon = self.pick(": ", ":", " : ")
            members = [f"{self.json(key)}{colon}{self.json(item)}" for key, item in self.order(list(value.items()))]
            return self._enclosed("{", members, "}")
        if isinstance(value, list):
            return self._enclosed("[", [self.json(item) for item in value], "]")
        if isinstance(value, str):
            plain = json.dumps(value, ensure_ascii=False)
            escaped = json.dumps(value, ensure_ascii=True)
            return self.pick(plain, *{escaped, plain.replace("/", r"\/")} - {plain})
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(value)
        return json.dumps(value)

    def _enclosed(self, start: str, items: list[str], end: str) -> str:
        comma, pad = self.pick((", ", ""), (",", ""), (", ", " "), (" , ", ""))
        return f"{start}{pad}{comma.join(items)}{pad}{end}" if items else start + end

    def number(self, value: int | float) -> str:
        plain = json.dumps(value)
        if isinstance(value, int):
            return plain  # another spelling could turn an integer into a float
        spelt = Decimal(plain)
        return self.pick(plain, *{f"{spelt}0" if "e" not in plain else plain, f"{spelt:e}"} - {plain})


def _qwen3(message: Mapping[str, Any], hand: Hand) -> str:
    """Qwen3.6 and Qwen3.5: reasoning, content, XML calls; the prompt ends with `<think>` and a newline."""
    text = message["reasoning"].strip() + hand.pick(
        "\n</think>\n\n", "</think>\n\n", "\n\n</think>\n\n", "\n</think>\n"
    )
    content = message["content"].strip()
    text += content
    for index, call in enumerate(message["calls"]):
        if index or content:
            text += hand.pick("\n" if index else "\n\n", "\n\n" if index else "\n", "")
        text += f"<tool_call>\n<function={call['name']}>\n"
        for name, value in hand.order(list(call["arguments"].items())):
            framed = hand.pick("\n", "")
            shown = value if isinstance(value, str) else hand.json(value)
            text += f"<parameter={name}>{framed}{shown}{framed}</parameter>\n"
        text += "</function>\n</tool_call>"
    if not message["calls"]:
        text += hand.pick("", "\n", " ")
    return text


WRITERS: dict[str, Callable[[Mapping[str, Any], Hand], str]] = {"qwen3.6": _qwen3}


def write(model: str, message: Mapping[str, Any], rng: random.Random, rate: float) -> str:
    """What `model` writes behind the generation prompt: `message` (`reasoning`, `content`, `calls`), no stop token."""
    return WRITERS[model](message, Hand(rng, rate))
