"""`prr_mistral`: Mistral, Ministral, Devstral and Magistral (calls behind `[TOOL_CALLS]`).

By version of mistral-common's tokenizer, which defines the format, an assistant turn is

    v3         CONTENT[TOOL_CALLS] [{"name": NAME, "arguments": {...}}, ...]
    v11        CONTENT[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}[TOOL_CALLS]...      (`[CALL_ID]ID` is optional)
    v13        [THINK]REASONING[/THINK]CONTENT[TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]...

and Magistral 2506 (v11) writes its reasoning in plain text, `<think>\\nREASONING\\n</think>\\n\\n`, as its system
prompt asks for. What follows `[TOOL_CALLS]` says which one it is. No frames but those of `<think>`. In a JSON string no
marker counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from re import Match

from prr_plugins.common.parsing.completion import IncompleteStatus
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._json_call import JsonCall, json_opener
from prr_plugins.common.parsing.formats._shared import FROM_REASONING, Opener, ThinkFormat
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Source

_CALLS, _ARGS, _THINK, _THINK_END = "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"

_ARRAY = json_opener(r"\[TOOL_CALLS\]")
_NAMED = Shape(
    r"\[TOOL_CALLS\]\s{0,8}+(?P<name>[^\s\[\]{}<>\"']{1,256}+)\s{0,8}+"
    r"(?:\[CALL_ID\]\s{0,8}+(?P<id>[^\s\[\]{}]{1,64}+)\s{0,8}+)?+(?P<args>\[ARGS\]|\{)"
)
_ANOTHER = Shape(r"""\s{0,64}+,?+\s{0,64}+(\{)\s{0,64}+["']""")
_ARRAY_END = Shape(r"\s{0,64}+\]")
_BOUNDS = Markers(_CALLS)
_BOUNDS_IN_REASONING = Markers(_CALLS, _THINK_END)
_PLAIN = Shape(r"\s{0,64}+<think>")


def grammar(s: Source) -> Iterator[None]:
    controls, plain = s.prompt_tail.rfind(_THINK), s.prompt_tail.rfind("<think>")
    if plain > controls or (controls < 0 and (yield from s.decide(_PLAIN))):
        yield from _WITH_TEXT.grammar(s)
    else:
        yield from _WITH_CONTROLS.grammar(s)


def _array(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """v3: one JSON array of calls, or a single one. False if one was cut or cannot be read."""
    brace: Match[str] | bool | None = header
    whole = True
    while isinstance(brace, Match):
        start = s.here
        s.take("markup", brace.end(1))
        call = JsonCall(s, start, flags, _marker(s, flags))
        yield from call.read()
        if not call.whole:
            call.lose((yield from _broken(s, start, flags)))
            return False
        whole = call.close() and whole
        brace = yield from s.decide(_ANOTHER)
    if end := (yield from s.decide(_ARRAY_END)):
        s.take("markup", end.end())
    return whole


def _named(s: Source, header: Match[str], flags: tuple[str, ...]) -> Generator[None, None, bool]:
    """v11 and later: one call. False if it was cut or cannot be read."""
    start = s.here
    s.take("markup", header.start("name"))
    s.take("name", header.end("name"))
    s.take("markup", header.end("args") if header["args"] == _ARGS else header.start("args"))
    yield from s.skip(BLANKS)
    call = s.open_call(header["name"], header["id"], start=start, flags=flags)

    def write(text: str) -> None:
        s.write(call, text)

    opened = (yield from s.at("{")) == "{"
    if opened and not (yield from s.json(write, "<", marker=_marker(s, flags))):
        status = yield from _broken(s, start, flags)
        s.drop_call(call, status)
        return False
    if not opened:
        s.sink = write
        yield from s.until("arguments", _bounds(flags))
        s.sink = None
    call.raw_to = s.here
    if not opened and s.was_cut and s.pos == len(s.buf):
        s.drop_call(call, "incomplete")
        return False
    if not call.pieces:
        s.write(call, "{}")
        call.flag("no_arguments")
    before = len(s.finished)
    s.close_call(call, repaired="no_arguments" in call.flags)
    return len(s.finished) > before


def _bounds(flags: tuple[str, ...]) -> Markers:
    return _BOUNDS_IN_REASONING if FROM_REASONING[0] in flags else _BOUNDS


def _marker(s: Source, flags: tuple[str, ...]) -> str:
    """What ends even a JSON string: reasoning, where a draft broke off; a call, once a string swallowed the rest."""
    return _THINK_END if FROM_REASONING[0] in flags else _CALLS if s.rereads else ""


def _broken(s: Source, start: int, flags: tuple[str, ...]) -> Generator[None, None, IncompleteStatus]:
    """A call whose JSON does not end goes as far as the next one, or to the end of the text."""
    cut = s.eof and s.pos == len(s.buf)
    if cut and not s.was_cut and not s.rereads:
        at = s.raw(start + len(_CALLS), s.here).find(_CALLS)
        if at >= 0:
            s.reread(start + len(_CALLS) + at)
    missing_closer = cut or bool((yield from s.at(_CALLS)))
    yield from s.until("arguments", _bounds(flags))
    return "incomplete" if missing_closer else "malformed"


_OPENERS = (Opener(_CALLS, _ARRAY, _array), Opener(_CALLS, _NAMED, _named))
_STOPS = ("</s>",)
_WITH_CONTROLS = ThinkFormat(_OPENERS, before=("",), stops=_STOPS, start=_THINK, end=_THINK_END, reopens=True)
_WITH_TEXT = ThinkFormat(_OPENERS, before=("",), stops=_STOPS, inside="\n", behind="\n\n")

FORMAT = Format(
    name="prr_mistral",
    grammar=grammar,
    markers=("[INST]", "[/INST]", _CALLS),
    turn_openers=("[/INST]", "[/TOOL_RESULTS]"),
    reasoning_start=_THINK,
    reasoning_end=_THINK_END,
)
