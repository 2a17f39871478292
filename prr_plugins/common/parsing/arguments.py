"""From raw argument text to a JSON object, by slicing wherever the text is JSON already.

Promises: a value whose schema allows a string is that exact text; numbers, booleans, null, arrays and objects keep the
spelling the model wrote (`1e3`, `1.0`, a 30-digit integer); repair covers quotes, trailing commas, Python literals and
raw control characters, never a missing closer. Knows JSON and JSON Schema, no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

import msgspec

_JSON_BLANK = " \t\n\r"
_NULL = "null"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # `json` would keep the last of two equal keys in silence; clients differ in which one they keep.
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("duplicate key")
    return made


# Numbers are only checked, not converted: converting 5,000 digits raises, and is quadratic.
_strict = json.JSONDecoder(
    parse_constant=_refuse_constant,
    object_pairs_hook=_refuse_duplicates,
    parse_int=lambda _: 0,
    parse_float=lambda _: 0.5,
)
_MISSING = object()


# `json` gives up where the interpreter's stack does, which hangs on who calls; nothing may hang on that.
MAX_NESTING = 400


def _decode(text: str, nesting: int = MAX_NESTING) -> Any:
    """The decoded value of strict JSON (numbers stand in as 0 and 0.5), or `_MISSING`; so for one nested deeper."""
    try:
        value = _strict.decode(text)
    except (ValueError, RecursionError):
        return _MISSING
    return value if _is_shallow(value, nesting) else _MISSING


def is_json_object(text: str) -> bool:
    """True if `text` is one strict JSON object: no duplicate keys, no NaN, no raw control characters, no nesting deeper
    than `MAX_NESTING`."""
    return isinstance(_decode(text), dict)


def json_end(text: str, pos: int) -> int | None:
    """Where the strict JSON value that stands at `pos` ends (characters of text); None if none stands there whole."""
    try:
        value, end = _strict.raw_decode(text, pos)
    except (ValueError, RecursionError):
        return None
    return end if _is_shallow(value, MAX_NESTING) else None


def _is_shallow(value: Any, nesting: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(nesting):
        if not level:
            break
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return not level


# ---------------------------------------------------------------------------------------------- schema


def tool_parameters(tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """Name -> JSON Schema of its parameters, from tools in OpenAI's shape (nested or flat)."""
    out: dict[str, Mapping[str, Any]] = {}
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            out[function["name"]] = schema if isinstance(schema, Mapping) else {}
    return out


_TYPE_OF: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"
}  # fmt: skip
_ALL_TYPES = frozenset(_TYPE_OF.values())
_REFINING = frozenset({"$ref", "enum", "const", "anyOf", "oneOf", "allOf", "nullable"})
_MAX_DEPTH = 64  # unions and references nested deeper constrain nothing


def allowed_types(schema: Any, root: Mapping[str, Any] | None = None) -> frozenset[str]:
    """The JSON types a schema allows; all of them where it says nothing. `$ref`s are looked up in `root`."""
    return _allowed(schema, schema if root is None else root, {}, 0)


def _allowed(schema: Any, root: Any, known: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    # `known` holds what each reference allows, so that each is followed once. One that leads back to itself adds
    # nothing to a union: it starts as the empty set.
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return _ALL_TYPES
    declared = schema.get("type")
    if isinstance(declared, str) and _REFINING.isdisjoint(schema):  # the common case, and quick
        return _with_integer({declared})
    kinds = _ALL_TYPES
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
        if ref not in known:
            known[ref] = frozenset()
            known[ref] = _allowed(_target(ref, root), root, known, depth + 1)
        kinds &= known[ref]
    if isinstance(declared, str):
        kinds &= _with_integer({declared})
    elif isinstance(declared, list):
        kinds &= _with_integer({t for t in declared if isinstance(t, str)})
    elif "properties" in schema or "additionalProperties" in schema:
        kinds &= {"object"}
    elif "items" in schema or "prefixItems" in schema:
        kinds &= {"array"}
    if isinstance(values := schema.get("enum"), list):
        kinds &= _with_integer({_TYPE_OF.get(type(v), "string") for v in values})
    if "const" in schema:
        kinds &= _with_integer({_TYPE_OF.get(type(schema["const"]), "string")})
    for word in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(word), list) and options:
            kinds &= frozenset().union(*(_allowed(o, root, known, depth + 1) for o in options))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            kinds &= _allowed(part, root, known, depth + 1)
    if schema.get("nullable") is True:
        kinds |= {"null"}
    return kinds


def _target(ref: str, root: Any) -> Any:
    for part in ref[2:].split("/"):
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _with_integer(kinds: set[str]) -> frozenset[str]:
    known = kinds & _ALL_TYPES
    if "number" in known:
        known.add("integer")
    return frozenset(known) or _ALL_TYPES  # an unknown type name ("str", "any") constrains nothing


def parameter_types(parameters: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The types parameter `name` may have. A parameter that no schema describes is a string: the type stands nowhere
    else in an XML-like format, and guessing it from the text rewrites values such as `02134` or `1e5`."""
    kinds = [allowed_types(schema, parameters) for schema in _described(parameters, name, parameters, set(), 0)]
    return frozenset().union(*kinds) if kinds else frozenset({"string"})


def declares(parameters: Mapping[str, Any] | None, name: str) -> bool:
    """Do the parameters list one called `name`?"""
    properties = (parameters or {}).get("properties")
    return isinstance(properties, Mapping) and name in properties


def _described(schema: Any, name: str, root: Any, seen: set[str], depth: int) -> Iterator[Any]:
    """The schemas that `name` may have, through the references and unions of the parameters' own schema."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    if declares(schema, name):
        yield schema["properties"][name]
    elif isinstance(extra := schema.get("additionalProperties"), Mapping):
        yield extra
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/") and ref not in seen:
        seen.add(ref)
        yield from _described(_target(ref, root), name, root, seen, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        for part in options if isinstance(options := schema.get(word), list) else ():
            yield from _described(part, name, root, seen, depth + 1)


def accepts(parameters: Mapping[str, Any], arguments: str) -> bool:
    """Could `arguments` be meant for a tool with these parameters: keys declared, none missing, types allowed?"""
    values = _decode(arguments)
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not (isinstance(values, dict) and isinstance(properties, Mapping) and isinstance(required, list)):
        return False
    if not (set(values) <= set(properties) and all(key in values for key in required if isinstance(key, str))):
        return False
    return all(_fits(value, allowed_types(properties[key], parameters)) for key, value in values.items())


def _fits(value: Any, types: frozenset[str]) -> bool:
    kind = _TYPE_OF[type(value)]
    return kind in types or (kind == "number" and "integer" in types)  # 1e3 and 1.0 are integers to JSON Schema


# ---------------------------------------------------------------------------------------------- values


# For `value_json`: the format itself says that the value is JSON text, so that a quoted string is a string.
JSON_TEXT = frozenset(_ALL_TYPES - {"string"})


_encode = msgspec.json.Encoder().encode


def json_string(text: str) -> str:
    """`text` as a JSON string, only what JSON requires escaped, and lone surrogates, which UTF-8 cannot write."""
    try:
        return _encode(text).decode()
    except UnicodeEncodeError:
        return escape_surrogates(encode_basestring(text))


_SURROGATE = re.compile("[\ud800-\udfff]")


def escape_surrogates(text: str) -> str:
    """`text` with each lone surrogate, which UTF-8 cannot write, as JSON escapes it."""
    return _SURROGATE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def value_json(raw: str, types: frozenset[str]) -> tuple[str, bool]:
    """The JSON text of one raw value, and whether it had to be repaired.

    A value that fits none of `types` is kept as a string: nothing is invented.
    """
    text = raw.strip(_JSON_BLANK)
    if "string" in types:
        return (_NULL, False) if "null" in types and raw == _NULL else (json_string(raw), False)
    value = _decode(text, MAX_NESTING - 1)  # it is to stand in an object
    if value is not _MISSING:
        fits = _fits(value, types) or isinstance(value, list | dict) or types is JSON_TEXT
        return (text, False) if fits else (json_string(raw), False)
    word = _PYTHON_WORDS.get(text)
    if word is not None and ("null" if word == _NULL else "boolean") in types:
        return word, False  # Qwen3-Coder's and Qwen3.5's own templates write `True` and `None`
    if types & {"array", "object"} and (types is JSON_TEXT or text[:1] in ("{", "[")):
        repaired = repair(text, MAX_NESTING - 1)
        if repaired is not None:
            return repaired, True
    return json_string(raw), types is JSON_TEXT


_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_RELAXED = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+")|(?P<single>'(?:[^'\\]|\\.)*+')|(?P<word>[^\s"'{}\[\],:]++)|(?P<mark>[{}\[\],:])|\s++""",
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)|\"", re.DOTALL)


def repair(text: str, nesting: int = MAX_NESTING) -> str | None:
    """`text` as strict JSON if only quotes, trailing commas, Python literals, raw control characters or repeated keys
    are wrong. Everything that was JSON is kept as it stood; of equal keys the last stands, as JSON readers have it.

    None if more than that is wrong (a missing closer, say), or it is nested deeper than `nesting`.
    """
    pieces: list[str] = []
    python = False
    at = 0
    comma = -1  # where in `pieces` the last comma stands, while only blanks follow it
    last = ""  # the last piece that was no blank
    for m in _RELAXED.finditer(text):
        if m.start() != at:
            return None  # an unclosed string
        at = m.end()
        piece = m.group()
        if m.lastgroup is not None:
            if piece in ("}", "]") and comma >= 0:
                pieces[comma] = ""
            comma = len(pieces) if piece == "," and last not in (",", "{", "[") else -1
            last = piece
            python = python or m.lastgroup == "single" or piece in _PYTHON_WORDS
        pieces.append(piece)
    if at != len(text):
        return None
    for i, piece in enumerate(pieces):
        if piece[:1] in ("'", '"'):
            pieces[i] = _string(piece, python)
        elif piece in _PYTHON_WORDS:
            pieces[i] = _PYTHON_WORDS[piece]
    if _decode("".join(pieces), nesting) is _MISSING:
        _drop_repeated(pieces)
    made = "".join(pieces)
    return None if _decode(made, nesting) is _MISSING else made


def _string(literal: str, python: bool) -> str:
    """A quoted string as JSON spells it. An escape that JSON does not have is Python's, or was meant as a backslash."""

    def escape(m: re.Match[str]) -> str:
        c = m.group(1)
        if c is None:
            return '\\"'
        if (c[0] == "u" and len(c) == 5) or c in ('"', "\\", "/", "b", "f", "n", "r", "t"):
            return m.group()
        if c == "'":
            return c
        if python and len(c) > 1:
            number = int(c[1:], 16)
            return f"\\u{number:04x}" if number < 0x10000 else chr(number) if number < 0x110000 else "\\\\" + c
        return "\\\\" + c

    body = _ESCAPE.sub(escape, literal[1:-1])
    return '"' + _CONTROL.sub(lambda m: _SHORT.get(m.group(), f"\\u{ord(m.group()):04x}"), body) + '"'


def _drop_repeated(pieces: list[str]) -> None:
    """Blank out every member of an object whose key comes again in it."""
    members: list[dict[str, tuple[int, int]] | None] = []  # of each open object: the pieces of each key's member
    begins: list[int] = []  # where the current member of each begins
    for i, piece in enumerate(pieces):
        if piece in ("{", "["):
            if len(begins) == _MAX_DEPTH:
                return
            members.append({} if piece == "{" else None)
            begins.append(i + 1)
        elif piece in (",", "}", "]") and begins:
            if (own := members[-1]) is not None:
                key = _decode(next((pieces[k] for k in range(begins[-1], i) if pieces[k].strip()), ""))
                if isinstance(key, str):
                    first, last = own.get(key, (0, 0))
                    pieces[first:last] = [""] * (last - first)
                    own[key] = begins[-1], i + 1
            begins[-1] = i + 1
            if piece != ",":
                members.pop()
                begins.pop()


def _name(literal: str) -> Any:
    """What a key says, however it is escaped: two that say the same are one key."""
    return _decode(literal) if "\\" in literal else literal[1:-1]


class ObjectWriter:
    """Builds the JSON object of a call from keys and raw values, in the order in which they come.

    `write` receives the JSON text as soon as it is certain: a value that can only be a string flows as it is read, any
    other is written when it is closed. The pieces joined are a strict JSON object.
    """

    def __init__(self, write: Callable[[str], None], parameters: Mapping[str, Any] | None) -> None:
        self._write = write
        self._parameters = parameters
        self._keys: set[str] = set()
        self._raw: list[str] = []
        self._types: frozenset[str] = frozenset()
        self._flows = False
        self._skip = False
        self.repaired = False

    def begin(self, key: str, types: frozenset[str] | None = None) -> None:
        """Open the value of `key`; `types` overrules the schema where the format itself states the type."""
        self._types = parameter_types(self._parameters, key) if types is None else types
        self._raw = []
        self._flows = False
        literal = json_string(key)
        name = _name(literal)
        self._skip = name in self._keys  # JSON has one value a key: the first stands (it may have been sent already)
        if self._skip:
            self.repaired = True
            return
        self._write(f"{', ' if self._keys else '{'}{literal}: ")
        self._keys.add(name)

    def feed(self, text: str) -> None:
        """The next characters of the open value."""
        if self._skip:
            return
        if self._flows:
            self._write(json_string(text)[1:-1])
            return
        self._raw.append(text)
        if "string" in self._types and not self._may_be_null():
            self._flows = True
            self._write(json_string("".join(self._raw))[:-1])

    def _may_be_null(self) -> bool:
        return "null" in self._types and _NULL.startswith("".join(self._raw))

    def end(self) -> None:
        """Close the open value."""
        if self._skip:
            return
        if self._flows:
            self._write('"')
            return
        text, repaired = value_json("".join(self._raw), self._types)
        self.repaired |= repaired
        self._write(text)

    def close(self) -> None:
        """Close the object."""
        self._write("}" if self._keys else "{}")


class JsonWriter:
    """Writes nested JSON in the order in which it comes; the punctuation is its own.

    `depth` counts the open containers; `wants_key` says that an object's key, or its end, is to come next. Of a key
    that comes twice the first value stands (it may have been sent), and `repaired` is set. Once all is closed it is
    strict JSON, if the values given were scalars of JSON and it was never `too_deep`.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._open: list[str] = []
        self._keys: list[set[str]] = []
        self._before = ""  # what stands before the next key or value
        self._skipping: int | None = None  # the depth at which a value is not written
        self.wants_key = False
        self.repaired = False
        self.too_deep = False

    @property
    def depth(self) -> int:
        return len(self._open)

    def begin(self, bracket: str) -> None:
        """Open a container: `{` or `[`."""
        self._put(self._before + bracket)
        self._open.append("}" if bracket == "{" else "]")
        self._keys.append(set())
        self.too_deep |= self.depth > MAX_NESTING
        self._before = ""
        self.wants_key = bracket == "{"

    def end(self) -> None:
        """Close the innermost container."""
        self._keys.pop()
        self._put(self._open.pop())
        self._next()

    def key(self, literal: str) -> None:
        """A key, as a JSON string."""
        self.wants_key = False
        name = _name(literal)
        if name not in self._keys[-1]:
            self._keys[-1].add(name)
            self._put(f"{self._before}{literal}: ")
        elif self._skipping is None:
            self.repaired = True
            self._skipping = self.depth
        self._before = ""

    def value(self, text: str) -> None:
        """A whole value, as JSON."""
        self._put(self._before + text)
        self._next()

    def begin_string(self) -> None:
        self._put(self._before + '"')

    def string(self, escaped: str) -> None:
        """The next characters of an open string, escaped as JSON has it."""
        self._put(escaped)

    def end_string(self) -> None:
        self._put('"')
        self._next()

    def _put(self, text: str) -> None:
        if self._skipping is None:
            self._write(text)

    def _next(self) -> None:
        if self._skipping == self.depth:
            self._skipping = None
        self._before = ", "
        self.wants_key = bool(self._open) and self._open[-1] == "}"
