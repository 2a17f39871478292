"""Sessions that nobody wrote: random conversations with all that models and clients do to a chat template.

Every text is one that Qwen3.6 could sample behind its generation prompt. Nothing is kept out because it is unlikely:
blank lines anywhere, values that look like markup, calls that are cut or of unknown tools. Left out are only the two
things of docs/session-format.md that end an exact prefix by design.
"""

from __future__ import annotations

import json
import random
from typing import Any

from prr_testing.demo.session import DEFAULT_SESSION

BLANKS = ("", "", "\n", "\n\n", " ", "\n \n", "\t", "  \n\n\n")
WORDS = (
    *"the limits of web are raised to 1.0 and 1e3 ; see `limits.toml` & <b>ask</b> ann".split(),
    *(
        "naïve",
        "日本語",
        "🙂",
        "e\u0301",
        "\u00bb",
        "\\u00e9",
        "{",
        "}",
        '"quoted"',
        "</b>",
        "<thinking>",
        "x\r\n",
        "\ufeff",
    ),
)
NUMBERS = ("1", "1.0", "1.50", "1e3", "-0", "2E-3", "123456789012345678901234567890", "0.1", " 7 ")
TOOLS = json.loads(DEFAULT_SESSION.read_text())["tools"]


def words(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(WORDS) + rng.choice((" ", " ", " ", "\n", "", "  ")) for _ in range(rng.randint(0, most)))


def json_text(rng: random.Random, depth: int = 0) -> str:
    """JSON as models write it: any spacing, any spelling."""
    kind = rng.randint(0, 6 if depth < 2 else 3)
    if kind == 0:
        return rng.choice(NUMBERS).strip()
    if kind == 1:
        return rng.choice(("true", "false", "null"))
    if kind <= 3:
        return json.dumps(words(rng, 3), ensure_ascii=rng.random() < 0.5)
    comma, colon = rng.choice((", ", ",", " , ")), rng.choice((": ", ":", " : "))
    items = [json_text(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind == 4:
        return "[" + comma.join(items) + "]"
    return "{" + comma.join(f'"k{index}"{colon}{item}' for index, item in enumerate(items)) + "}"


def call(rng: random.Random) -> str:
    function = rng.choice(TOOLS)["function"]
    properties = list(function["parameters"]["properties"].items())
    rng.shuffle(properties)
    name = function["name"] if rng.random() < 0.95 else "no_such_tool"
    outer = rng.choice(("\n", "\n", ""))
    text = f"<tool_call>{outer}<function={name}>\n"
    for key, schema in properties[: rng.randint(0, len(properties))]:
        value = {
            "string": words(rng, 5),
            "object": json_text(rng),
            "array": f"[{json_text(rng, 2)}]",
            "boolean": rng.choice(("true", "false", "True")),
        }.get(schema["type"], rng.choice(NUMBERS))
        frame = rng.choice(("\n", "\n", "\n", ""))
        text += f"<parameter={key}>{frame}{value}{frame}</parameter>\n"
    return text + f"</function>{outer}</tool_call>"


def completion(rng: random.Random) -> str:
    text = rng.choice(BLANKS) + words(rng, 8) + rng.choice(BLANKS)
    if rng.random() < 0.95:
        text += "</think>" + rng.choice(("\n\n", *BLANKS))
    text += words(rng, 6) if rng.random() < 0.6 else ""
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        text += rng.choice(("\n", "\n\n", *BLANKS)) + call(rng)
    return text + (words(rng, 3) if rng.random() < 0.15 else rng.choice(BLANKS))


def random_session(seed: int) -> dict[str, Any]:
    """A session of 6 to 10 turns in the format of docs/session-format.md."""
    rng = random.Random(seed)
    turns: list[dict[str, Any]] = []
    for number in range(rng.randint(6, 10)):
        turn: dict[str, Any] = {"completion": completion(rng)}
        if number and rng.random() < 0.7:
            turn["tool_results"] = [words(rng, 10) for _ in range(rng.randint(1, 3))]
        if not number or "tool_results" not in turn or rng.random() < 0.1:
            turn["user"] = words(rng, 10) + "?"
        ending = rng.random()
        if ending < 0.15 and turn["completion"]:
            turn |= {"cut": True, "completion": turn["completion"][: rng.randint(1, len(turn["completion"]))]}
        elif ending < 0.3:
            turn["max_tokens"] = rng.randint(1, 120)
        for flag in ("stream", "drop_reasoning", "reserialize_arguments"):
            turn[flag] = rng.random() < 0.5
        turns.append(turn)
    return {"name": f"random-{seed}", "system": words(rng, 5) or "x", "tools": TOOLS, "turns": turns}
