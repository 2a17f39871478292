"""`prr_llama`: Llama 3.1, 3.2, 3.3 (calls as JSON) and Llama 4 (calls as a Python list); no reasoning.

As Meta's chat templates and prompt-format documents have it, a call is the whole answer:

    Llama 3    {"name": NAME, "parameters": {...}}         (several: separated by `; `; models also write `arguments`)
               <|python_tag|>{"type": "function", "name": NAME, "parameters": {...}}
               <|python_tag|>NAME.call(KEY="VALUE", ...)   (built-in tools)
    Llama 4    [NAME(KEY=VALUE, ...), NAME()]              (VALUE is a Python literal)
               <|python_start|>[NAME(KEY=VALUE)]<|python_end|>
               <|python_start|>CONTENT<|python_end|>{"name": NAME, "parameters": {...}}    (the chat template's own)

The text says which one it is. Nothing but its place marks a call without a tag, so it counts only at the beginning of
the text, behind another call, or at the beginning of a line if it names an offered tool; any other JSON or list is an
answer. A Python list is one expression: its calls count once it is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from re import Match

from prr_plugins.common.parsing.arguments import JSON_TEXT, JsonWriter, json_string, value_json
from prr_plugins.common.parsing.completion import IncompleteStatus
from prr_plugins.common.parsing.format import Format
from prr_plugins.common.parsing.formats._json_call import JsonCall
from prr_plugins.common.parsing.markers import BLANKS, Markers, Shape
from prr_plugins.common.parsing.source import Call, Source

_TAGS = ("<|python_tag|>", "<|python_start|>")
_STOPS = ("<|eom_id|>", "<|eot_id|>", "<|eom|>", "<|eot|>", "<|end_of_text|>")
_TAG_CLOSER = "<|python_end|>"
_CONTENT = Markers(*_TAGS, _TAG_CLOSER, *_STOPS, "\n{", "\n[")
_BOUNDS = Markers(*_TAGS, *_STOPS, _TAG_CLOSER)
_ANYTHING = Shape(r"[\s\S]")
_BLANKS = Shape(r"\s{0,64}+(?=\S)")

_STRING = r'"[^"\\\n]{0,256}+"'
_JSON = (
    rf'(?P<brace>\{{)\s{{0,64}}+(?:"(?:type|id)"\s{{0,8}}+:\s{{0,8}}+{_STRING}\s{{0,8}}+,\s{{0,64}}+){{0,2}}+'
    r'"name"\s{0,8}+:\s{0,8}+"(?P<name>[^"\\\n]{1,256}+)"\s{0,8}+,\s{0,64}+"(?:parameters|arguments)"\s{0,8}+:\s{0,64}+\{'
)
_JSON_CALL = Shape(rf"(?P<list>\[\s{{0,64}}+)?+{_JSON}")
_NEXT_JSON_CALL = Shape(rf"\s{{0,16}}+[;,]?+\s{{0,16}}+(?:<\|python_tag\|>\s{{0,16}}+)?+{_JSON}")
# A call all the same: its keys in another order, or quoted as Python does.
_MAYBE_CALL = Shape(r"""\{\s{0,64}+(?P<quote>["'])(?:name|type|id|parameters|arguments)(?P=quote)\s{0,8}+:""")
_LIST_END = Shape(r"\s{0,64}+,?+\s{0,64}+\]")

_LETTERS = r"\w\u0080-\U0010ffff"
_WORD = rf"(?!\d)[{_LETTERS}]{{1,256}}+"
_NAME = rf"(?P<name>{_WORD}(?:[.-][{_LETTERS}]{{1,255}}+){{0,16}}+)"
_OPENING = rf"\[\s{{0,64}}+{_NAME}\("
_KEYWORDS = rf"\s{{0,64}}+(?:\)|{_WORD}\s{{0,8}}+=[^=])"
_LIST_OPENING = Shape(_OPENING)
_PYTHON_LIST = Shape(_OPENING + _KEYWORDS)
_NEXT_PYTHON_CALL = Shape(rf"\s{{0,64}}+,\s{{0,64}}+{_NAME}\({_KEYWORDS}")
_BUILT_IN = Shape(rf"(?P<name>{_WORD})\.call\({_KEYWORDS}")


def grammar(s: Source) -> Iterator[None]:
    if not s.tool_calls:
        while not s.eof:
            s.take("content", len(s.buf))
            yield
        return
    yield from _call(s, at_start=True)
    while (mark := (yield from s.until("content", _CONTENT))) is not None:
        if mark in _STOPS:
            more = yield from s.decide(_ANYTHING, len(mark))
            s.take("content" if more else "markup", s.pos + len(mark))
        elif mark == _TAG_CLOSER:
            if not (yield from _call(s, mark)):
                s.take("content", s.pos + len(mark))
        elif mark not in _TAGS:
            s.take("content", s.pos + 1)
            yield from _call(s)
        elif not (yield from _call(s, mark)):  # code for the interpreter, or a mention of the tag
            s.take("content" if s.here else "markup", s.pos + len(mark))


def _call(s: Source, tag: str = "", at_start: bool = False) -> Generator[None, None, bool]:
    """Calls, if such stand here behind `tag` and blanks; False, and nothing consumed, if not."""
    sure = at_start or bool(tag)
    ahead = len(tag)
    if sure and (blanks := (yield from s.decide(_BLANKS, ahead))):
        ahead = blanks.end() - s.pos
    header = yield from s.decide(_JSON_CALL, ahead)
    if header and (sure or header["name"] in s.tools):
        yield from _json_calls(s, header)
        return True
    python = yield from s.decide(_PYTHON_LIST, ahead)
    if python and (sure or python["name"] in s.tools):
        yield from _python_list(s, python)
        return True
    if tag in _TAGS and (built_in := (yield from s.decide(_BUILT_IN, ahead))):
        yield from _built_in(s, built_in)
        return True
    if sure and (yield from s.decide(_MAYBE_CALL, ahead)):
        return (yield from _maybe_json_call(s, tag, ahead))
    if python is None and (cut := (yield from s.decide(_LIST_OPENING, ahead))) and cut["name"] in s.tools:
        _cut(s, cut["name"])
        return True
    if tag in _TAGS and (header is None or python is None or built_in is None):
        _cut(s)
        return True
    return False


def _cut(s: Source, name: str | None = None) -> None:
    """The text ended before more than this showed of a call."""
    start = s.here
    s.take("markup", len(s.buf))
    s.lose_call(start, "incomplete", name)


def _rest(s: Source) -> Generator[None, None, IncompleteStatus]:
    """What follows where a call broke off belongs to it."""
    cut = s.eof and s.pos == len(s.buf)
    mark = yield from s.until("arguments", _BOUNDS)
    return "incomplete" if cut or (mark is None and s.was_cut) else "malformed"


# ---------------------------------------------------------------------------------------- Llama 3


def _json_calls(s: Source, header: Match[str]) -> Iterator[None]:
    start = s.here
    following: Match[str] | bool | None = header
    while isinstance(following, Match):
        s.take("markup", following.end("brace"))
        call = JsonCall(s, start)
        yield from call.read()
        if not (yield from _end_json_call(s, call)):
            return
        start = s.here
        following = yield from s.decide(_NEXT_JSON_CALL)
    if following is None:  # a separator at the end of the text, or one with the beginning of another call
        if s.buf[s.pos :].strip(BLANKS + ";,"):
            _cut(s)
        else:
            s.take("markup", len(s.buf))
    elif header["list"] and (end := (yield from s.decide(_LIST_END))):
        s.take("markup", end.end())


def _end_json_call(s: Source, call: JsonCall) -> Generator[None, None, bool]:
    """Close a call that was read; False if it is not whole."""
    if call.whole:
        return call.close()
    over = s.eof and s.pos == len(s.buf)
    if over and call.name and call.arguments_ended and not s.was_cut:  # only the last brace is missing
        call.flag("missing_closer")
        return call.close()
    call.lose((yield from _rest(s)))
    return False


def _maybe_json_call(s: Source, tag: str, ahead: int) -> Generator[None, None, bool]:
    """An object whose first keys leave open whether it is a call; content, all of it, if it is none."""
    s.hold()
    call = JsonCall(s, s.here)
    s.take("markup", s.pos + ahead + 1)
    yield from call.read()
    if call.name and (call.has_arguments or call.name in s.tools):
        yield from _end_json_call(s, call)
        s.release()
    elif tag and s.eof and s.pos == len(s.buf):
        call.lose("incomplete")
        s.release()
    else:
        s.relabel(("markup", call.start + len(tag)), ("content", s.here))
    return True


# ---------------------------------------------------------------------------------------- Llama 4


def _python_list(s: Source, header: Match[str]) -> Iterator[None]:
    """A list of calls: none of them counts until it is closed."""
    start = s.here
    calls: list[tuple[Call, int]] = []
    following: Match[str] | bool | None = header
    whole = True
    while whole and isinstance(following, Match):
        s.take("markup", following.start("name"))
        call, whole = yield from _python_call(s, following, s.here if calls else start)
        calls.append((call, s.here))
        following = yield from s.decide(_NEXT_PYTHON_CALL)
    end = yield from s.decide(_LIST_END)
    if whole and end:
        s.take("markup", end.end())
        for call, _ in calls:
            s.close_call(call, repaired=bool(call.flags))
    else:
        status = yield from _rest(s)
        for call, call_end in (*calls[:-1], (calls[-1][0], s.here)):
            s.drop_call(call, status, end=call_end)
    yield from s.literal(_TAG_CLOSER)


def _built_in(s: Source, header: Match[str]) -> Iterator[None]:
    start = s.here
    s.take("markup", header.start("name"))
    call, whole = yield from _python_call(s, header, start)
    if whole:
        s.close_call(call, repaired=bool(call.flags))
        return
    s.drop_call(call, (yield from _rest(s)))


def _python_call(s: Source, header: Match[str], start: int) -> Generator[None, None, tuple[Call, bool]]:
    """One call, from its name to its parenthesis; and whether it got that far."""
    name = header["name"]
    s.take("name", s.pos + len(name))
    yield from s.literal(".call")
    yield from s.literal("(")
    call = s.open_call(name, start=start)
    arguments = _Arguments(s, call)
    whole = yield from arguments.read()
    if arguments.repaired:
        call.flag("duplicate_key")
    call.raw_to = s.here if whole else None
    return call, whole and (yield from s.literal(")"))


# ---------------------------------------------------------------------------------------- Python literals

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_KEYWORD = Shape(rf"(?P<key>{_WORD})\s{{0,8}}+=")
_TRIPLE = "'" * 3
_QUOTE = Shape(rf"""[rRbBuUfF]{{0,2}}+(?P<quote>{_TRIPLE}|"{{3}}|'(?=[^']|'[^'])|"(?=[^"]|"[^"]))""")
_AFTER_STRING = Shape(r"\s{0,64}+[,)\]}:]")
_EXPRESSION = Shape(r"\s{0,8}+(?:[+%*]\s|\.[a-z]|['\"])")  # behind a string: it is to be computed with
_ESCAPE = Shape(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<o>[0-7]{1,3}+)(?=[\s\S])"
    r"|(?P<c>[^xuU0-7]))"
)
_ESCAPED = {
    "n": "\\n", "t": "\\t", "r": "\\r", "b": "\\b", "f": "\\f", "a": "\\u0007", "v": "\\u000b", "\\": "\\\\", "'": "'",
    '"': '\\"', "\n": "",
}  # fmt: skip
_IN_STRING = {quote: Markers(quote, "\\") for quote in ("'", '"', _TRIPLE, '"' * 3)}
_IN_RAW_STRING = {quote: Markers(quote) for quote in _IN_STRING}
_SCALAR_END = Markers(",", ")", "]", "}", ":", *_BOUNDS.literals)
_DECIMAL = re.compile(r"([+-]?)([0-9][0-9_]*+)?(?:\.([0-9][0-9_]*+)?)?([eE][+-]?[0-9]++)?")
_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]{1,256}|0[oO][0-7]{1,256}|0[bB][01]{1,256})")


class _Arguments:
    """The keyword arguments of a call being read, and written as JSON. Nothing is evaluated."""

    def __init__(self, s: Source, call: Call) -> None:
        self.s, self.call = s, call
        self._out = JsonWriter(lambda text: s.write(call, text))

    @property
    def repaired(self) -> bool:
        return self._out.repaired

    def read(self) -> Generator[None, None, bool]:
        """Up to the closing parenthesis, which is not consumed; False before anything that cannot stand there."""
        s, out = self.s, self._out
        closers = [")"]
        out.begin("{")
        while True:
            yield from s.skip(BLANKS + ",", "arguments")
            found = yield from s.at(closers[-1], "{", "[", "(")
            if found == closers[-1] and (out.wants_key or found != "}"):
                out.end()
                closers.pop()
                if not closers:
                    return True
                s.take("arguments", s.pos + 1)
            elif out.wants_key:
                if not (yield from self._key(len(closers) == 1)):
                    return False
            elif found in _CLOSERS:
                s.take("arguments", s.pos + 1)
                closers.append(_CLOSERS[found])
                out.begin("{" if found == "{" else "[")
            elif not (yield from self._value()):
                return False

    def _key(self, keyword: bool) -> Generator[None, None, bool]:
        s = self.s
        if keyword:
            if word := (yield from s.decide(_KEYWORD)):
                s.take("arguments", word.end())
                self._out.key(json_string(word["key"]))
            return bool(word)
        pieces: list[str] = []
        quote = yield from s.decide(_QUOTE)
        if quote is None or (quote and not (yield from self._string(quote, pieces.append))):
            return False
        if quote:
            yield from s.skip(BLANKS, "arguments")
        else:
            pieces.append(json_string((yield from self._bare()))[1:-1])
        self._out.key(f'"{"".join(pieces)}"')
        return (yield from s.literal(":", "arguments"))

    def _value(self) -> Generator[None, None, bool]:
        out = self._out
        quote = yield from self.s.decide(_QUOTE)
        if quote is None:
            return False
        if quote:
            out.begin_string()
            if not (yield from self._string(quote, out.string)):
                return False
            out.end_string()
            return True
        bare = yield from self._bare()
        if bare:
            out.value(_scalar(bare))
        return bool(bare)

    def _bare(self) -> Generator[None, None, str]:
        pieces: list[str] = []
        self.s.sink = pieces.append
        yield from self.s.until("arguments", _SCALAR_END)
        self.s.sink = None
        return "".join(pieces).strip(BLANKS)

    def _string(self, opener: Match[str], feed: Callable[[str], object]) -> Generator[None, None, bool]:
        """A string with its quotes, fed as JSON has it escaped; False if it is cut.

        Models forget to escape a quote: one closes only where something follows that can follow a value.
        """
        s = self.s
        quote = opener["quote"]
        ends = (_IN_RAW_STRING if "r" in opener.group().lower() else _IN_STRING)[quote]
        s.take("arguments", opener.end())
        while True:
            s.sink = lambda text: feed(json_string(text)[1:-1])
            mark = yield from s.until("arguments", ends)
            if mark == "\\":
                s.sink = None
                escape = yield from s.decide(_ESCAPE)
                if escape is None:
                    return False
                feed(_unescape(escape) if escape else "\\\\")
                s.take("arguments", escape.end() if escape else s.pos + 1)
            elif mark is None:
                s.sink = None
                return False
            elif len(quote) == 3 or (yield from s.decide(_AFTER_STRING, len(quote))) is not False:
                s.sink = None
                s.take("arguments", s.pos + len(quote))
                return True
            elif (yield from s.decide(_EXPRESSION, len(quote))):
                return False
            else:
                self.call.flag("unescaped_quote")
                s.take("arguments", s.pos + len(quote))


def _unescape(m: Match[str]) -> str:
    """A Python escape as it stands in a JSON string. What Python does not know keeps its backslash."""
    if m["x"]:
        return f"\\u00{m['x']}"
    if m["u"]:
        return m.group()
    if code := int(m["o"], 8) if m["o"] else int(m["U"], 16) if m["U"] else 0:
        return json_string(chr(code))[1:-1] if code < 0x110000 else "\\" + m.group()
    if m["o"]:
        return "\\u0000"
    c = m["c"]
    return _ESCAPED[c] if c in _ESCAPED else json_string(m.group())[1:-1]


def _scalar(text: str) -> str:
    """A number or a word of Python as JSON; what is neither stays as it is, and is no JSON."""
    as_json, guessed = value_json(text, JSON_TEXT)
    if not guessed:
        return as_json
    plain = text.replace("_", "")
    if m := _INTEGER.fullmatch(plain):
        return f"{m[1].strip('+')}{int(m[2], 0)}"
    if (m := _DECIMAL.fullmatch(plain)) and (m[2] or m[3]):
        sign, whole, part, exponent = (group or "" for group in m.groups())
        fraction = f".{part or '0'}" if "." in plain else ""
        return f"{sign.strip('+')}{whole or '0'}{fraction}{exponent}"
    return text


FORMAT = Format(
    name="prr_llama",
    grammar=grammar,
    markers=(),
    turn_openers=("<|start_header_id|>", "<|header_start|>"),
)
