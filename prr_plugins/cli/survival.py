"""Does history survive? One scenario at a time: what was sampled against what the next prompt says.

The sampled completion is learnt from the template itself: what it writes for a turn behind its own generation prompt
is what a model trained on it writes. Deviations (`spelling`) are then applied to that text, as models deviate. The
message that comes back is the parsed one, as a careful client returns it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prr_plugins.cli.vocabulary import Vocabulary
from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError
from prr_plugins.common.bridge.continuation import Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools
from prr_plugins.common.prefix import common_prefix

Spelling = Literal["canonical", "spaced", "odd_tokens", "cut_content", "cut_reasoning"]

REASONING = "The listing names one file worth reading, so open that next."
CONTENT = "Looking at both places before deciding."
_RESULT = "README.md\nsetup.py"
_QUESTION = "Which files are here?"


def _call(n: int, name: str, arguments: Mapping[str, Any]) -> Message:
    # Nine letters and digits: Mistral's templates accept nothing else.
    return {"id": f"call0000{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _result(n: int) -> Message:
    return {"role": "tool", "tool_call_id": f"call0000{n}", "content": _RESULT}


def _tool(name: str, properties: Mapping[str, Any]) -> Message:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name}.",
            "parameters": {"type": "object", "properties": dict(properties), "required": sorted(properties)},
        },
    }


TOOLS = [
    _tool("list_files", {"path": {"type": "string"}, "depth": {"type": "integer"}}),
    _tool("read_file", {"path": {"type": "string"}}),
]
_USER = {"role": "user", "content": _QUESTION}
_ONE = [_call(1, "list_files", {"path": "src", "depth": 2})]
_TWO = [*_ONE, _call(2, "read_file", {"path": "README.md"})]


@dataclass(frozen=True)
class Scenario:
    """An assistant turn, what stood before it and what comes after it."""

    name: str
    turn: Message
    after: list[Message]
    before: list[Message] = field(default_factory=lambda: [_USER])
    tools: Tools = field(default_factory=lambda: TOOLS)
    spelling: Spelling = "canonical"
    reasoning: Literal["returned", "dropped", "none"] = "returned"


def _turn(content: str, calls: list[Message] | None = None) -> Message:
    message: Message = {"role": "assistant", "reasoning": REASONING, "reasoning_content": REASONING, "content": content}
    return {**message, "tool_calls": calls} if calls else message


_NEXT = {"role": "user", "content": "Thanks. And what is in setup.py?"}
_LOOP = [_USER, _turn("", _ONE), _result(1)]
_BASE = (
    Scenario("tool_loop", _turn("", _ONE), [_result(1)]),
    Scenario("text_and_call", _turn(CONTENT, _ONE), [_result(1)]),
    Scenario("parallel_calls", _turn("", _TWO), [_result(1), _result(2)]),
    Scenario("final_answer", _turn(CONTENT), [_NEXT], before=_LOOP),
    Scenario("next_user_turn", _turn(CONTENT), [_NEXT], tools=None),
    Scenario("non_canonical", _turn(CONTENT, _ONE), [_result(1)], spelling="spaced"),
    Scenario("odd_tokens", _turn(CONTENT), [_NEXT], tools=None, spelling="odd_tokens"),
    Scenario("cut_in_content", _turn(CONTENT), [_NEXT], tools=None, spelling="cut_content"),
    Scenario("cut_in_reasoning", _turn(CONTENT), [_NEXT], tools=None, spelling="cut_reasoning"),
)
SCENARIOS = tuple(replace(s, reasoning=r) for s in _BASE for r in ("returned", "dropped"))


@dataclass(frozen=True)
class Drift:
    """The first token where a re-render leaves what was sampled.

    `sampled` and `rendered` are the texts from there on; `line` is the template line that wrote the other text.
    """

    token: int
    sampled: str
    rendered: str
    line: int | None
    source: str


@dataclass(frozen=True)
class Outcome:
    """What became of `reusable` tokens (prompt and completion). `bridge_kept` is None where the bridge refused."""

    scenario: Scenario
    reusable: int
    kept: int
    drift: Drift | None
    switch: dict[str, bool] | None
    bridge_kept: int | None
    refusal: str | None
    retains_reasoning: bool
    respells_stop: bool

    @property
    def bridge_exact(self) -> bool:
        return self.bridge_kept is not None and self.bridge_kept + self.respells_stop >= self.reusable


class Unsupported(Exception):
    """The template does not write this scenario."""


class Survival:
    """Runs scenarios for one template and vocabulary."""

    def __init__(self, template: ChatTemplate, vocabulary: Vocabulary, kwargs: Mapping[str, Any] | None = None) -> None:
        self.template = template
        self.vocabulary = vocabulary
        self.kwargs = dict(kwargs or {})
        self._bridge = TemplateBridge(
            template, vocabulary.encode, vocabulary.decode, vocabulary.stop_ids, vocabulary.added
        )

    def run(self, scenario: Scenario) -> Outcome:
        """One scenario.

        Raises:
            Unsupported: the template refuses it, drops what it is about, or it is not one of this vocabulary.
        """
        s = scenario
        try:
            prompt = self.template(s.before, s.tools, True, self.kwargs)
            sampled = self._sampled(s, prompt)
        except TemplateError as error:
            raise Unsupported(str(error)) from error
        encode = self.vocabulary.encode
        prompt_ids = encode(prompt)
        completion_ids = self._odd(encode(sampled)) if s.spelling == "odd_tokens" else encode(sampled)
        before = prompt_ids + completion_ids
        returned = self._returned(s)
        try:
            kept, drift = self._rerender(s, returned, before, self.kwargs)
        except TemplateError as error:
            raise Unsupported(str(error)) from error
        switch = self._switch(s, returned, before, kept) if kept < len(before) else None
        extended = self._bridge.extend(
            prompt_ids,
            completion_ids,
            s.after,
            assistant=returned,
            before=s.before,
            tools=s.tools,
            template_kwargs=self.kwargs,
            reasoning_open=s.spelling == "cut_reasoning",
        )
        if isinstance(extended, Refusal):
            return Outcome(s, len(before), kept, drift, switch, None, extended.reason, False, False)
        bridged = common_prefix(before, extended.ids)
        reasons = REASONING[:12] in sampled
        return Outcome(
            s,
            len(before),
            kept,
            drift,
            switch,
            bridged,
            None,
            retains_reasoning=reasons and not extended.shows_reasoning,
            respells_stop=extended.respelled_stop,
        )

    def writes_reasoning(self) -> bool:
        """True if the template shows the reasoning of a last turn, of an answer or of a call."""
        for turn, after in ((_turn(CONTENT), []), (_turn("", _ONE), [_result(1)])):
            try:
                if REASONING in self.template([_USER, turn, *after], TOOLS, False, self.kwargs):
                    return True
            except TemplateError:
                continue
        return False

    def _sampled(self, s: Scenario, prompt: str) -> str:
        """The completion the model would write: the turn as the template writes it, behind the generation prompt."""
        spoken = {k: v for k, v in s.turn.items() if s.reasoning != "none" or not k.startswith("reasoning")}
        base = self.template(s.before, s.tools, False, self.kwargs)
        full = self.template([*s.before, spoken], s.tools, False, self.kwargs)
        if not prompt.startswith(base):
            raise Unsupported("the template's generation prompt is no addition to the prompt")
        text = _behind(full, base, prompt[len(base) :])
        if text is None:
            raise Unsupported("the template writes the turn behind no generation prompt")
        for call in s.turn.get("tool_calls", ()):
            if call["function"]["name"] not in text and call["id"] not in text:  # Kimi writes the id alone
                raise Unsupported("the template does not write calls")
        return self._spell(s, self._until_stop(text))

    def _until_stop(self, text: str) -> str:
        """Generation ends with the turn's first stop token; what the template writes behind it was not sampled."""
        stops = [t for t, i in self.vocabulary.added.items() if i in self.vocabulary.stop_ids]
        ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
        return text[: min(ends)] if ends else text

    def _spell(self, s: Scenario, text: str) -> str:
        content, reasoning = s.turn["content"], REASONING
        if s.spelling == "cut_content":
            if content not in text:
                raise Unsupported("the template does not write the content in front of the turn's first stop")
            return text[: text.index(content) + len(content) // 2]
        if s.spelling == "cut_reasoning":
            if reasoning not in text:
                raise Unsupported("the template does not write reasoning")
            return text[: text.index(reasoning) + len(reasoning) // 2]
        if s.spelling == "spaced":
            for place in (content, reasoning, s.turn["tool_calls"][0]["function"]["name"]):
                if place and place in text:
                    return text.replace(place, "\n" + place if place == content else place + " ", 1)
        return text

    def _odd(self, ids: list[int]) -> list[int]:
        """One word in two tokens: the same text, other ids, as sampling at a temperature gives them."""
        if not self.vocabulary.real:
            raise Unsupported("needs a real vocabulary")
        for at, token in enumerate(ids):
            text = self.vocabulary.decode([token])
            if token in self.vocabulary.added.values() or len(text) < 4 or not text.strip().isalpha():
                continue
            halves = [t for part in (text[:2], text[2:]) for t in self.vocabulary.encode(part)]
            if self.vocabulary.decode(halves) == text and len(halves) > 1:
                return ids[:at] + halves + ids[at + 1 :]
        raise Unsupported("no word to split")

    def _returned(self, s: Scenario) -> Message:
        message = dict(s.turn)
        if s.reasoning != "returned":
            message = {k: v for k, v in message.items() if not k.startswith("reasoning")}
        if s.spelling == "cut_content":
            message["content"] = message["content"][: len(message["content"]) // 2]
        if s.spelling == "cut_reasoning":
            message["content"] = ""
            for key in ("reasoning", "reasoning_content"):
                if key in message:
                    message[key] = message[key][: len(message[key]) // 2]
        return message

    def _rerender(
        self, s: Scenario, returned: Message, before: list[int], kwargs: Mapping[str, Any]
    ) -> tuple[int, Drift | None]:
        traced = self.template.trace([*s.before, returned, *s.after], s.tools, True, kwargs)
        ids = self.vocabulary.encode(traced.text)
        kept = common_prefix(before, ids)
        if kept == len(before):
            return kept, None
        line = traced.line(len(self.vocabulary.decode(ids[:kept])))
        source = self.template.source.splitlines()[line - 1].strip() if line else ""
        decode = self.vocabulary.decode
        drift = Drift(kept, decode(before[kept : kept + 12]), decode(ids[kept : kept + 12]), line, source)
        return kept, drift

    def _switch(self, s: Scenario, returned: Message, before: list[int], kept: int) -> dict[str, bool] | None:
        """The template's own variable that keeps more, if it has one."""
        best: tuple[int, dict[str, bool]] | None = None
        for name in sorted(self.template.variables - _GIVEN):
            for value in (True, False):
                if self.kwargs.get(name) is value:
                    continue
                try:
                    prompt = self.vocabulary.encode(
                        self.template(s.before, s.tools, True, {**self.kwargs, name: value})
                    )
                    now, _ = self._rerender(s, returned, before, {**self.kwargs, name: value})
                except TemplateError:
                    continue
                if now > (best[0] if best else kept) and before[: len(prompt)] == prompt:
                    best = now, {name: value}
        return best[1] if best else None


_GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "documents", "functions"})


def _behind(full: str, base: str, opening: str) -> str | None:
    """The last turn of `full` behind as much of the generation prompt as the template writes there."""
    if full.startswith(base):
        turn = full[len(base) :]
        return turn[common_prefix(turn, opening) :]
    # Templates that drop old reasoning rewrite what stood before: then the opener's last place tells where the turn is.
    for length in range(len(opening), 0, -1):
        at = full.rfind(opening[:length])
        if at >= 0:
            return full[at + length :]
    return None
