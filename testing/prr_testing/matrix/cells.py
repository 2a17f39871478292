"""One cell: a turn is sampled, its message comes back as a stock client returns it, and the next prompt is compared.

The measure is ids: how many of prompt + completion stand unchanged at the start of the next prompt. What the last stop
token is spelled like does not count: it was sampled, never fed. The cause of a drift is found by experiment: if the
message is given back as it was sampled (our parse) field by field and the next prompt then keeps more, the parser lost
that field; if it does not, the renderer wrote something else; if the texts agree, only the tokens differ.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError
from prr_plugins.common.parsing.formats import get_format
from prr_plugins.common.parsing.stream_parser import StreamParser
from prr_plugins.common.prefix import common_prefix

from ..tokens import Vocabulary
from .blame import Place, Tracer, place
from .turns import Impossible, Message, Row, Turn, write

Kind = Literal["parser", "template", "encoding", "engine"]


@dataclass(frozen=True)
class Reply:
    """What the engine answered: the prompt it used, the message, why it ended; ours: what it did with the prompt."""

    prompt_ids: list[int]
    message: Message
    finish_reason: str | None
    prr: dict[str, Any] | None = None


class Chat(Protocol):
    """One model behind one engine's own serving classes.

    ours: our plugin is loaded and its parsers are chosen; turns of one `tenant` are not known to another.
    """

    engine: str
    model: str
    ours: bool
    tokenizer: Any

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        script: Sequence[int],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Reply: ...
    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str: ...
    def stop_ids(self) -> set[int]: ...
    def encode_site(self) -> tuple[str, int]: ...
    def parser_site(self) -> tuple[str, int]: ...
    def message_site(self, ran: Set[tuple[str, int]], written: str) -> tuple[str, int] | None: ...


@dataclass(frozen=True)
class Cause:
    """Why a cell is not exact.

    kind: `parser` lost it before the client saw it; `template` wrote history otherwise; `encoding`: the text is the
    same, its tokens are not; `engine`: the engine refused the history.
    what: one line for a reader. place: the line that did it, as precisely as it could be traced.
    """

    kind: Kind
    what: str
    place: Place | None = None


@dataclass(frozen=True)
class Drift:
    """Where the texts part, in tokens: each list is the tokens' texts, `same` of them are equal in both."""

    sampled: list[str]
    rendered: list[str]
    same: int
    before: int


@dataclass
class Cell:
    """The result. `reason`: why ours gave no splice, or why there is no such turn; "" otherwise.

    reusable, kept: tokens of prompt + completion. exact: all of them, the spelling of the last stop aside.
    """

    model: str
    row: str
    by: str
    reusable: int = 0
    kept: int = 0
    exact: bool = False
    respelled_stop: bool = False
    retained_reasoning_tokens: int = 0
    finish_reason: str | None = None
    reason: str = ""
    possible: bool = True
    cause: Cause | None = None
    drift: Drift | None = None
    follow_up: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Measure:
    """All cells of one model behind one engine, as `chat` runs it.

    root: the engine's package folder.
    """

    def __init__(self, chat: Chat, root: Path) -> None:
        self.chat = chat
        self.root = root
        self.by = f"ours_{chat.engine}" if chat.ours else chat.engine
        self.vocabulary = Vocabulary(chat.tokenizer)
        self._stops = chat.stop_ids()
        self._templates: dict[str, ChatTemplate] = {}

    def cell(self, row: Row) -> Cell:
        """The row's cell."""
        try:
            turn = write(self.chat.model, row, self.vocabulary)
        except Impossible as why:
            return Cell(self.chat.model, row.name, self.by, reason=str(why), possible=False)
        return self.ours(turn) if self.chat.ours else self.stock(turn)

    # ------------------------------------------------------------------------------------ stock

    def stock(self, turn: Turn) -> Cell:
        try:
            first = self._sample(turn)
        except Exception as error:  # the engine cannot answer what was sampled
            cell = self._cell(turn, ())
            cell.cause = Cause("engine", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            return cell
        message = returned(first.message)
        cell = self._cell(turn, first.prompt_ids)
        cell.finish_reason = first.finish_reason
        try:
            ids = self._next(turn, message).prompt_ids
        except Exception as error:  # the engine refuses its own message
            cell.cause = Cause("engine", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            return cell
        self._compare(cell, turn, [*first.prompt_ids, *turn.ids], ids, message)
        if not cell.exact:
            cell.cause = self._cause(turn, message, first.prompt_ids, ids, cell.kept)
        return cell

    def _next(self, turn: Turn, message: Message) -> Reply:
        return self._ask(turn, [*turn.before, message, *turn.follow_up(message)], [next(iter(self._stops))])

    def _sample(self, turn: Turn) -> Reply:
        return self._ask(turn, turn.before, turn.ids)

    def _ask(self, turn: Turn, messages: Sequence[Message], script: Sequence[int]) -> Reply:
        # a row is a conversation of its own: some of them are the same but for the tokens
        return self.chat.ask(
            messages, turn.tools, script, template_kwargs=turn.template_kwargs, tenant=f"row {turn.row.name}"
        )

    def _cell(self, turn: Turn, prompt_ids: Sequence[int]) -> Cell:
        return Cell(turn.model, turn.row.name, self.by, reusable=len(prompt_ids) + len(turn.ids))

    def _compare(self, cell: Cell, turn: Turn, sampled: list[int], ids: list[int], message: Message) -> None:
        cell.kept = common_prefix(sampled, ids)
        ends = not turn.cut and sampled[-1] in self._stops
        cell.exact = cell.kept == len(sampled) or (ends and cell.kept == len(sampled) - 1 and len(ids) > cell.kept)
        cell.respelled_stop = cell.exact and cell.kept < len(sampled)
        cell.follow_up = [m["role"] for m in turn.follow_up(message)]
        cell.drift = self._drift(sampled, ids, cell.kept, len(sampled) - len(turn.ids))

    def _drift(self, sampled: list[int], ids: list[int], kept: int, prompt: int) -> Drift:
        """The completion and what stands in its place, from a few tokens before it on."""
        start = max(0, min(kept, prompt) - 6)
        end = min(len(ids), max(len(sampled), kept + 24) + 12)
        one, other = ([self._shown(i) for i in part] for part in (sampled[start:], ids[start:end]))
        return Drift(one, other, kept - start, start)

    def _shown(self, token: int) -> str:
        return self.vocabulary.text_of([token])

    # ------------------------------------------------------------------------------------ cause

    def _cause(self, turn: Turn, message: Message, prompt_ids: list[int], ids: list[int], kept: int) -> Cause:
        sampled = [*prompt_ids, *turn.ids]
        wanted, got = self.vocabulary.text_of(sampled), self.vocabulary.text_of(ids)
        at = common_prefix(wanted, got)
        if at >= len(self.vocabulary.text_of(sampled[:-1] if not turn.cut else sampled)):
            file, line = self.chat.encode_site()
            return Cause("encoding", "the same text in other tokens", place(str(self.root), file, line))
        lost = self._lost_by_parser(turn, message, sampled, kept)
        if lost is not None:
            return lost
        return self._written_by_template(turn, message, got, at, kept)

    def _lost_by_parser(self, turn: Turn, message: Message, sampled: list[int], kept: int) -> Cause | None:
        """The first field that, given back as it was sampled, makes the next prompt keep more."""
        whole = self._parsed(turn, sampled[: len(sampled) - len(turn.ids)])
        for what, repaired in _repairs(message, whole.message, any(whole.native_ids)):
            try:
                now = common_prefix(sampled, self._next(turn, repaired).prompt_ids)
            except Exception:
                continue
            if now > kept:
                value = _field(message, what)
                return Cause("parser", _describe(what, value, _field(repaired, what)), self._made_by(turn, value))
        return None

    def _made_by(self, turn: Turn, value: str | None) -> Place:
        """The line of the engine's parser that made a value."""
        tracer = Tracer(self.root)
        tracer.run(lambda: self._sample(turn))
        found = tracer.first(value) if value else None
        return found or place(str(self.root), *self.chat.parser_site())

    def _written_by_template(self, turn: Turn, message: Message, got: str, at: int, kept: int) -> Cause:
        """The template line, or the encoder's, that wrote the other character."""
        calls: list[dict[str, Any]] = []
        with captured_templates(calls):
            ids = self._next(turn, message).prompt_ids
        what = f"writes {self.vocabulary.text_of(ids[kept : kept + 8])!r}"
        if calls:
            found = self._template_line(calls[-1], got, at)
            return Cause("template", what, found)
        messages = [*turn.before, message, *turn.follow_up(message)]
        tracer = Tracer(self.root)
        tracer.run(lambda: self.chat.render(messages, turn.tools, True, turn.template_kwargs))
        site = self.chat.message_site(tracer.ran, self.vocabulary.text_of(ids[kept : kept + 1]))
        if site is not None:
            return Cause("template", what, place(str(self.root), *site))
        for reach in (32, 12, 4):
            part = got[max(0, at - reach) : at + 4]
            holding = tracer.first_holding(part)
            if holding is not None and part not in _texts_of(messages):
                return Cause("template", what, holding)
        return Cause("template", what, place(str(self.root), *self.chat.encode_site()))

    def _template_line(self, call: Mapping[str, Any], got: str, at: int) -> Place:
        source = call["chat_template"]
        name = f"{self.chat.model}/chat_template.jinja"
        key = hashlib.sha256(source.encode()).hexdigest()
        template = self._templates.setdefault(key, ChatTemplate(source, now=datetime.datetime.now()))
        given = {k: v for k, v in call.items() if k not in _RENDER_ARGUMENTS}
        try:
            traced = template.trace(call["conversations"][0], call["tools"], call["add_generation_prompt"], given)
        except TemplateError:
            return Place(name, 0, "")
        line = traced.line(at) if traced.text == got else None
        return Place(name, line, source.splitlines()[line - 1].strip()) if line else Place(name, 0, "")

    # ------------------------------------------------------------------------------------ ours

    def _parsed(self, turn: Turn, prompt_ids: Sequence[int]) -> Parsed:
        text = self.vocabulary.text_of(prompt_ids[-64:])
        tail = text[max(0, *(text.rfind(opener) for opener in get_format(turn.format).turn_openers)) :]
        return parsed(turn, tail, self.chat.tokenizer)

    def ours(self, turn: Turn) -> Cell:
        """What the plugin makes of it."""
        first = self._sample(turn)
        message = returned(first.message)
        following = self._next(turn, message)
        assert following.prr is not None, "the plugin does not follow this request"
        cell = self._cell(turn, first.prompt_ids)
        cell.finish_reason = first.finish_reason
        cell.reason = following.prr["reason"]
        cell.retained_reasoning_tokens = following.prr["retained_reasoning_tokens"]
        self._compare(cell, turn, [*first.prompt_ids, *turn.ids], following.prompt_ids, message)
        return cell


@dataclass(frozen=True)
class Parsed:
    """Our parse of a completion: the message, and call ids that the model wrote."""

    message: Message
    native_ids: list[str | None]


def parsed(turn: Turn, prompt_tail: str, tokenizer: Any) -> Parsed:
    """Parse a turn as our plugins do."""
    parser = StreamParser(
        turn.format, tools=turn.tools, prompt_tail=prompt_tail, stream_arguments="complete", tokenizer=tokenizer
    )
    parser.feed(turn.text, turn.ids)
    parser.finish("length" if turn.cut else "stop")
    result = parser.result
    message: Message = {"role": "assistant", "content": result.content}
    if result.reasoning is not None:
        message |= {"reasoning": result.reasoning, "reasoning_content": result.reasoning}
    if result.parsed_tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{index:024d}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(result.parsed_tool_calls)
        ]
    return Parsed(message, [call.id for call in result.parsed_tool_calls])


def returned(message: Mapping[str, Any]) -> Message:
    """What a stock client puts into its history: the message's fields of the protocol, nothing else."""
    kept: Message = {"role": "assistant", "content": message.get("content")}
    kept |= {k: message[k] for k in ("reasoning", "reasoning_content") if message.get(k) is not None}
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {k: c["function"][k] for k in ("name", "arguments")}}
            for c in message["tool_calls"]
        ]
    return kept


def _texts_of(messages: Sequence[Message]) -> str:
    """All that the messages say: a text of theirs was not made by the renderer."""
    parts = [str(m.get(k) or "") for m in messages for k in ("content", "reasoning", "reasoning_content")]
    parts += [c["function"]["arguments"] for m in messages for c in m.get("tool_calls") or ()]
    return "\0".join(parts)


_RENDER_ARGUMENTS = ("conversations", "tools", "chat_template", "add_generation_prompt", "documents",
                     "return_assistant_tokens_mask", "continue_final_message", "template_kwargs")  # fmt: skip


@contextlib.contextmanager
def captured_templates(calls: list[dict[str, Any]]) -> Iterator[None]:
    """What transformers is given to render, by whichever engine, in whichever thread."""
    import transformers.tokenization_utils_base as base

    original = base.render_jinja_template

    def render(**given: Any) -> Any:
        calls.append(given)
        return original(**given)

    base.render_jinja_template = render
    try:
        yield
    finally:
        base.render_jinja_template = original


_FIELDS = ("reasoning", "content", "calls", "ids")


def _repairs(message: Message, whole: Message, has_ids: bool) -> Iterator[tuple[str, Message]]:
    """The message with one field after the other as it was sampled. has_ids: the model itself wrote call ids."""
    for what in _FIELDS if has_ids else _FIELDS[:-1]:
        repaired = dict(message)
        if what == "reasoning":
            for key in ("reasoning", "reasoning_content"):
                repaired.pop(key, None)
                if whole.get(key) is not None:
                    repaired[key] = whole[key]
        elif what == "content":
            repaired["content"] = whole["content"]
        elif what == "calls":
            calls = [dict(call) for call in whole.get("tool_calls", ())]
            for call, old in zip(calls, message.get("tool_calls", ()), strict=False):
                call["id"] = old["id"]
            repaired["tool_calls"] = calls
        else:
            calls = message.get("tool_calls") or []
            repaired["tool_calls"] = [
                {**c, "id": own["id"]} for c, own in zip(calls, whole.get("tool_calls") or calls, strict=False)
            ]
        if not repaired.get("tool_calls"):
            repaired.pop("tool_calls", None)
        if repaired != message:
            yield what, repaired


def _field(message: Message, what: str) -> str | None:
    """The text of a field, as a parser returned it."""
    if what == "reasoning":
        return message.get("reasoning") or message.get("reasoning_content")
    if what == "content":
        return message.get("content")
    calls = message.get("tool_calls") or []
    return (calls[0]["id"] if what == "ids" else calls[0]["function"]["arguments"]) if calls else None


def _describe(what: str, lost: str | None, sampled: str | None) -> str:
    if what == "calls" and lost is None:
        return "the call is not found, its text is lost to history"
    names = {"calls": "arguments", "ids": "call id"}
    return f"{names.get(what, what)}: the client gets {_short(lost)} where {_short(sampled)} was written"


def _short(text: str | None) -> str:
    if text is None:
        return "(nothing)"
    return repr(text if len(text) <= 48 else f"{text[:22]}…{text[-22:]}")
