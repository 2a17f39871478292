"""The rows of the matrix: what a model samples and what its client sends next, written for each family by hand.

A row is one habit of models or clients; a `Writer` spells it in a family's own markup, as the format's description
(docs/formats) has it. Everything but the row's own habit is canonical, so a drift in a row is the row's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..tokens import Vocabulary

Message = dict[str, Any]

REASONING = "The user wants the log. I look at its end first, then decide what to do."
LATE = "The log says that the disk is full. Deleting old archives will do."
CONTENT = "Let me look at the log."
ANSWER = "The disk is full: remove the archives of last year, they are copied elsewhere."
SYSTEM: Message = {"role": "system", "content": "You keep a server running."}
QUESTION: Message = {"role": "user", "content": "Why does the nightly job fail? The log is /var/log/job.log."}
GO_ON: Message = {"role": "user", "content": "Please go on."}
NEXT: Message = {"role": "user", "content": "And what about the weekly job?"}
RESULT = "02:00 start\n02:07 write error: no space left on device\n"


def _tool(name: str, **properties: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name} on the server.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in properties.items()},
                "required": sorted(properties),
            },
        },
    }


TOOLS = [
    _tool("read_file", path="string", lines="integer"),
    _tool("archive", note="string", ratio="number", options="object"),
]


@dataclass(frozen=True)
class Argument:
    """One argument as the model spells it: `text` is the string itself, or JSON where `is_text` is false."""

    key: str
    text: str
    is_text: bool = False

    @property
    def json(self) -> str:
        return json.dumps(self.text, ensure_ascii=False) if self.is_text else self.text


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Argument, ...]

    def json(self, between: str = ", ", behind_key: str = ": ") -> str:
        return "{" + between.join(f'"{a.key}"{behind_key}{a.json}' for a in self.arguments) + "}"


READ = Call("read_file", (Argument("path", "/var/log/job.log", True), Argument("lines", "40")))
READ_OTHER = Call("read_file", (Argument("path", "/etc/cron.d/nightly", True), Argument("lines", "10")))
ARCHIVE = Call(
    "archive",
    (
        Argument("ratio", "1.50"),
        Argument("options", '{"keep":[1,2],"name": "a/b",  "limit": 1e3}'),
        Argument("note", "caf\u00e9 \u2192 \u201cdone\u201d", True),
    ),
)


class Writer:
    """How a family writes a turn behind its own generation prompt.

    stop, final_stop: the stop token behind calls, and behind an answer. frame: what stands between reasoning and
    content by rule.
    """

    stop: str
    final_stop: str
    format: str

    def think(self, reasoning: str) -> str:
        """Reasoning with its end."""
        return f"{reasoning}</think>"

    def say(self, content: str) -> str:
        """Content in front of calls."""
        return content

    def answer(self, content: str) -> str:
        """Content that ends the turn."""
        return content

    def open_reasoning(self, reasoning: str) -> str:
        """Reasoning that does not end."""
        return reasoning

    def calls(self, calls: list[Call], first: int = 0) -> str:
        """The calls of a turn; `first` counts the calls before it in the conversation."""
        raise NotImplementedError

    def odd_arguments(self, call: Call) -> str:
        """A call whose arguments are spelled as no template would: blanks, key order, number and escape forms."""
        return self.calls([call])

    def broken(self, call: Call) -> str:
        """A call with one fault that models make and that leaves no doubt what was meant."""
        raise NotImplementedError

    def call_id(self, call: Call, index: int) -> str:
        """The id of a call in earlier history: the model's own where the format has one."""
        return f"call_{index:04d}"


class Qwen(Writer):
    """Qwen3.6. Newlines around `</think>`, tags and values belong to the format."""

    format = "prr_qwen3"
    stop = final_stop = "<|im_end|>"

    def think(self, reasoning: str) -> str:
        return f"{reasoning}\n</think>\n\n"

    def say(self, content: str) -> str:
        return f"{content}\n\n"

    def calls(self, calls: list[Call], first: int = 0) -> str:
        return "\n".join(f"<tool_call>\n<function={c.name}>\n{self._body(c)}</function>\n</tool_call>" for c in calls)

    def broken(self, call: Call) -> str:  # the last value is not closed
        body = self._body(call).removesuffix("</parameter>\n")
        return f"<tool_call>\n<function={call.name}>\n{body}</function>\n</tool_call>"

    @staticmethod
    def _body(call: Call) -> str:
        return "".join(f"<parameter={a.key}>\n{a.text}\n</parameter>\n" for a in call.arguments)


class Glm(Writer):
    """GLM-5.1. The stop token is the opener of the turn that follows."""

    format = "prr_glm"
    stop = "<|observation|>"
    final_stop = "<|user|>"

    def calls(self, calls: list[Call], first: int = 0) -> str:
        return "".join(f"<tool_call>{c.name}{self._body(c)}</tool_call>" for c in calls)

    def broken(self, call: Call) -> str:  # the last value is not closed
        return f"<tool_call>{call.name}{self._body(call).removesuffix('</arg_value>')}</tool_call>"

    @staticmethod
    def _body(call: Call) -> str:
        return "".join(f"<arg_key>{a.key}</arg_key><arg_value>{a.text}</arg_value>" for a in call.arguments)


class Kimi(Writer):
    """Kimi K2.6. Calls carry ids that count through the conversation."""

    format = "prr_kimi_k2"
    stop = final_stop = "<|im_end|>"

    def calls(self, calls: list[Call], first: int = 0) -> str:
        return self._section([(self.call_id(c, first + i), c.json()) for i, c in enumerate(calls)])

    def odd_arguments(self, call: Call) -> str:
        return self._section([(self.call_id(call, 0), _odd_json(call))])

    def broken(self, call: Call) -> str:  # a comma too many
        return self._section([(self.call_id(call, 0), call.json()[:-1] + ",}")])

    def call_id(self, call: Call, index: int) -> str:
        return f"functions.{call.name}:{index}"

    @staticmethod
    def _section(calls: list[tuple[str, str]]) -> str:
        written = "".join(
            f"<|tool_call_begin|>{i}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>" for i, arguments in calls
        )
        return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


class DeepSeek(Writer):
    """DeepSeek V4 (DSML). An attribute says whether a value is text or JSON."""

    format = "prr_deepseek_v4"
    stop = final_stop = "<｜end▁of▁sentence｜>"

    def calls(self, calls: list[Call], first: int = 0) -> str:
        return self._section("".join(self._invoke(self._body(c), c.name) for c in calls))

    def broken(self, call: Call) -> str:  # the last value is not closed
        return self._section(self._invoke(self._body(call).removesuffix("</｜DSML｜parameter>\n") + "\n", call.name))

    @staticmethod
    def _section(invokes: str) -> str:
        return f"\n\n<｜DSML｜tool_calls>\n{invokes}</｜DSML｜tool_calls>"

    @staticmethod
    def _invoke(body: str, name: str) -> str:
        return f'<｜DSML｜invoke name="{name}">\n{body}</｜DSML｜invoke>\n'

    @staticmethod
    def _body(call: Call) -> str:
        return "".join(
            f'<｜DSML｜parameter name="{a.key}" string="{str(a.is_text).lower()}">{a.text}</｜DSML｜parameter>\n'
            for a in call.arguments
        )


class Harmony(Writer):
    """gpt-oss. Reasoning, text and calls are messages of their own; a call ends the completion."""

    format = "prr_gpt_oss"
    stop = "<|call|>"
    final_stop = "<|return|>"

    def think(self, reasoning: str) -> str:
        return f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant"

    def open_reasoning(self, reasoning: str) -> str:
        return f"<|channel|>analysis<|message|>{reasoning}"

    def say(self, content: str) -> str:
        return f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant"

    def answer(self, content: str) -> str:
        return f"<|channel|>final<|message|>{content}"

    def calls(self, calls: list[Call], first: int = 0) -> str:
        return self._call(calls[0].name, calls[0].json())

    def odd_arguments(self, call: Call) -> str:
        return self._call(call.name, _odd_json(call))

    def broken(self, call: Call) -> str:  # a comma too many
        return self._call(call.name, call.json()[:-1] + ",}")

    @staticmethod
    def _call(name: str, arguments: str) -> str:
        # The header that vLLM and the template write into history: a drift of the row is then not the header's.
        return f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}"


def _odd_json(call: Call) -> str:
    return call.json(", ", ":").replace("caf\u00e9", "caf\\u00e9")


@dataclass(frozen=True)
class Row:
    """One row: a short name, a title, and what happens in it."""

    name: str
    title: str
    what: str


ROWS = (
    Row("reasoning_kept", "reasoning kept in history", "Reasoning and one call; the client returns both."),
    Row("reasoning_newlines", "newlines in reasoning", "Reasoning that begins, ends and breaks with blank lines."),
    Row("newlines_after_think", "newlines after </think>", "One newline more than the format has before the content."),
    Row("reasoning_cut", "reasoning cut", "max_tokens comes in mid-reasoning; the user asks to go on."),
    Row("broken_call", "tolerance for broken calls", "A call with a small fault: a closer missing, a comma too many."),
    Row("arguments", "serialisation of arguments", "1.50, 1e3, double blanks, key order, non-ASCII or its escapes."),
    Row("bpe_seam", "BPE seam", "The text of the first row sampled in other tokens than the tokenizer would choose."),
    Row("call_ids", "call ids", "The second call of a conversation, with the model's id if it gives one."),
    Row("new_user_turn", "new user turn", "A call, its result, then the user speaks: old reasoning is dropped."),
    Row("parallel_calls", "parallel calls", "Two calls in one turn, both results."),
    Row("final_answer", "no-tool final answer", "No tools offered: reasoning and an answer, then the next question."),
    Row("content_cut", "content cut", "max_tokens comes in mid-answer; the user asks to go on."),
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One turn to be sampled.

    ids: everything sampled, the stop token included. text: the same without the stop token.
    template_kwargs: of every request of the conversation.
    user: what the user says behind the results; None: nothing.
    """

    model: str
    row: Row
    format: str
    before: list[Message]
    tools: list[dict[str, Any]] | None
    ids: list[int]
    text: str
    cut: bool
    template_kwargs: dict[str, Any]
    user: Message | None = None

    def follow_up(self, message: Message) -> list[Message]:
        """What the client sends behind the assistant message: results of its calls, else a user message."""
        calls = message.get("tool_calls") or []
        results: list[Message] = [{"role": "tool", "tool_call_id": c["id"], "content": RESULT} for c in calls]
        if not results:
            return [self.user or GO_ON]
        return [*results, *([self.user] if self.user else [])]


class Impossible(Exception):
    """The family cannot write such a turn. Carries the reason."""


@dataclass
class _Draft:
    text: str
    stop: str | None
    before: list[Message] = field(default_factory=lambda: [SYSTEM, QUESTION])
    tools: list[dict[str, Any]] | None = field(default_factory=lambda: TOOLS)
    user: Message | None = None
    odd: bool = False


_WRITE: Mapping[str, Callable[[Writer], _Draft]] = {
    "reasoning_kept": lambda w: _Draft(w.think(REASONING) + w.calls([READ]), w.stop),
    "reasoning_newlines": lambda w: _Draft(
        w.think(f"\n\n{REASONING}\n\n\n  Then the disk.\n\n") + w.calls([READ]), w.stop
    ),
    "newlines_after_think": lambda w: _Draft(
        w.think(REASONING) + w.say(f"\n{CONTENT}") + w.calls([READ]), w.stop
    ),
    "reasoning_cut": lambda w: _Draft(w.open_reasoning(REASONING[:43]), None),
    "broken_call": lambda w: _Draft(w.think(REASONING) + w.broken(READ), w.stop),
    "arguments": lambda w: _Draft(w.think(REASONING) + w.odd_arguments(ARCHIVE), w.stop),
    "bpe_seam": lambda w: _Draft(w.think(REASONING) + w.calls([READ]), w.stop, odd=True),
    "call_ids": lambda w: _Draft(
        w.think(LATE) + w.calls([READ_OTHER], first=1), w.stop, before=[SYSTEM, QUESTION, *_loop(w)]
    ),
    "new_user_turn": lambda w: _Draft(w.think(REASONING) + w.calls([READ]), w.stop, user=NEXT),
    "parallel_calls": lambda w: _Draft(w.think(REASONING) + w.calls([READ, READ_OTHER]), w.stop),
    "final_answer": lambda w: _Draft(w.think(LATE) + w.answer(ANSWER), w.final_stop, tools=None, user=NEXT),
    "content_cut": lambda w: _Draft(w.think(LATE) + w.answer(ANSWER[:38]), None),
}  # fmt: skip


def _loop(writer: Writer) -> list[Message]:
    """An earlier call and its result."""
    call = {
        "id": writer.call_id(READ, 0),
        "type": "function",
        "function": {"name": READ.name, "arguments": READ.json()},
    }
    turn: Message = {"role": "assistant", "content": "", "reasoning": REASONING, "reasoning_content": REASONING}
    return [{**turn, "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]


WRITERS: Mapping[str, Writer] = {
    "qwen3.6": Qwen(),
    "glm-5.1": Glm(),
    "kimi-k2.6": Kimi(),
    "deepseek-v4": DeepSeek(),
    "gpt-oss": Harmony(),
}
TITLES = {
    "qwen3.6": "Qwen3.6",
    "glm-5.1": "GLM-5.1",
    "kimi-k2.6": "Kimi K2.6",
    "deepseek-v4": "DeepSeek V4",
    "gpt-oss": "GPT-OSS",
}

# Reasoning is on by default everywhere but in SGLang's encoder of DeepSeek V4.
_TEMPLATE_KWARGS: Mapping[str, dict[str, Any]] = {"deepseek-v4": {"thinking": True}}


def write(model: str, row: Row, vocabulary: Vocabulary) -> Turn:
    """The turn of a row as `model` samples it.

    Raises:
        Impossible: the family has no such turn.
    """
    writer = WRITERS[model]
    if row.name == "parallel_calls" and isinstance(writer, Harmony):
        raise Impossible("a Harmony completion ends with its first call")
    draft = _WRITE[row.name](writer)
    rng = random.Random(7) if draft.odd else None
    ids = vocabulary.encode(draft.text, rng=rng, odd=0.5)
    if draft.stop is not None:
        ids.append(vocabulary.added[draft.stop])
    kwargs = _TEMPLATE_KWARGS.get(model, {})
    return Turn(
        model,
        row,
        writer.format,
        draft.before,
        draft.tools,
        ids,
        draft.text,
        draft.stop is None,
        kwargs,
        draft.user,
    )
