"""From raw argument text to a JSON object, by slicing wherever the text is JSON already.

Promises: a value whose schema allows a string is that exact text; numbers, booleans, null, arrays and objects keep the
spelling the model wrote (`1e3`, `1.0`, a 30-digit integer); repair covers quotes, trailing commas, Python literals and
raw control characters, never a missing closer. Knows JSON and JSON Schema, no format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

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


def _decode(text: str) -> Any:
    """The decoded value of strict JSON (numbers stand in as 0 and 0.5), or `_MISSING`."""
    try:
        return _strict.decode(text)
    except (ValueError, RecursionError):
        return _MISSING


def is_json_object(text: str) -> bool:
    """True if `text` is one strict JSON object: no duplicate keys, no NaN, no raw control characters."""
    return isinstance(_decode(text), dict)


# ---------------------------------------------------------------------------------------------- schema


def tool_parameters(tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    """Name -> JSON Schema of its parameters, from tools in OpenAI's shape (nested or flat)."""
    out: dict[str, Mapping[str, Any]] = {}
    for tool in tools or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            out[function["name"]] = schema if isinstance(schema, Mapping) else {}
    return out


_TYPE_OF: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"
}  # fmt: skip
_ALL_TYPES = frozenset(_TYPE_OF.values())
_MAX_REFS = 16  # a chain of `$ref` or nested unions longer than that constrains nothing


def allowed_types(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> frozenset[str]:
    """The JSON types a schema allows; all of them where it says nothing."""
    if not isinstance(schema, Mapping) or depth > _MAX_REFS:
        return _ALL_TYPES
    root = schema if root is None else root
    kinds = _ALL_TYPES
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
        target: Any = root
        for part in ref[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        kinds &= allowed_types(target, root, depth + 1)
    declared = schema.get("type")
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
            kinds &= frozenset().union(*(allowed_types(o, root, depth + 1) for o in options))
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            kinds &= allowed_types(part, root, depth + 1)
    if schema.get("nullable") is True:
        kinds |= {"null"}
    return kinds


def _with_integer(kinds: set[str]) -> frozenset[str]:
    known = kinds & _ALL_TYPES
    if "number" in known:
        known.add("integer")
    return frozenset(known) or _ALL_TYPES  # an unknown type name ("str", "any") constrains nothing


def parameter_types(parameters: Mapping[str, Any] | None, name: str) -> frozenset[str]:
    """The types parameter `name` may have. A parameter that no schema describes is a string: the type stands nowhere
    else in an XML-like format, and guessing it from the text rewrites values such as `02134` or `1e5`."""
    if parameters is None:
        return frozenset({"string"})
    properties = parameters.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return allowed_types(properties[name], parameters)
    extra = parameters.get("additionalProperties")
    if isinstance(extra, Mapping):
        return allowed_types(extra, parameters)
    return frozenset({"string"})


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


def json_string(text: str) -> str:
    """`text` as a JSON string, only what JSON requires escaped."""
    return str(encode_basestring(text))


def value_json(raw: str, types: frozenset[str]) -> tuple[str, bool]:
    """The JSON text of one raw value, and whether it had to be repaired.

    A value that fits none of `types` is kept as a string: nothing is invented.
    """
    text = raw.strip(_JSON_BLANK)
    if "string" in types:
        return (_NULL, False) if "null" in types and raw == _NULL else (json_string(raw), False)
    value = _decode(text)
    if value is not _MISSING:
        fits = _fits(value, types) or isinstance(value, list | dict) or types is JSON_TEXT
        return (text, False) if fits else (json_string(raw), False)
    word = _PYTHON_WORDS.get(text)
    if word is not None and ("null" if word == _NULL else "boolean") in types:
        return word, False  # Qwen3-Coder's and Qwen3.5's own templates write `True` and `None`
    if types & {"array", "object"}:
        repaired = repair(text)
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
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def repair(text: str) -> str | None:
    """`text` as strict JSON if only quotes, trailing commas, Python literals or raw control characters are wrong.

    Everything that was JSON is kept as it stood. None if more than that is wrong (a missing closer, say).
    """
    out: list[str] = []
    at = 0
    comma = -1  # where in `out` the last comma stands, while only blanks follow it
    for m in _RELAXED.finditer(text):
        if m.start() != at:
            return None  # an unclosed string
        at = m.end()
        piece = m.group()
        if m.lastgroup is None:
            out.append(piece)
            continue
        if piece in ("}", "]") and comma >= 0:
            out[comma] = ""
        comma = len(out) if piece == "," else -1
        if m.lastgroup == "string":
            piece = _string_body(piece, '"')
        elif m.lastgroup == "single":
            piece = _string_body(piece, "'")
        elif m.lastgroup == "word":
            piece = _PYTHON_WORDS.get(piece, piece)
        out.append(piece)
    made = "".join(out)
    return made if at == len(text) and _decode(made) is not _MISSING else None


def _string_body(literal: str, quote: str) -> str:
    def escape(m: re.Match[str]) -> str:
        c = m.group(1)
        if c[0] == "u" and len(c) == 5 or c in '"\\/bfnrt':
            return m.group()
        return c if c == "'" else "\\\\" + c  # `\d` in a regex: the model meant the backslash

    body = literal[1:-1]
    if quote == "'":
        body = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', body)
    body = _ESCAPE.sub(escape, body)
    return '"' + _CONTROL.sub(lambda m: _SHORT.get(m.group(), f"\\u{ord(m.group()):04x}"), body) + '"'


class ObjectWriter:
    """Builds the JSON object of a call from keys and raw values, in the order in which they come.

    `write` receives the JSON text as soon as it is certain: a value that can only be a string flows as it is read, any
    other is written when it is closed. The pieces joined are the object.
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
        self._skip = key in self._keys  # JSON has one value a key: the first stands (it may have been sent already)
        if self._skip:
            self.repaired = True
            return
        self._write(("{" if not self._keys else ", ") + json_string(key) + ": ")
        self._keys.add(key)

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

    `depth` counts the open containers; `wants_key` says that an object's key, or its end, is to come next.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._open: list[str] = []
        self._before = ""  # what stands before the next key or value
        self.wants_key = False

    @property
    def depth(self) -> int:
        return len(self._open)

    def begin(self, bracket: str) -> None:
        """Open a container: `{` or `[`."""
        self._write(self._before + bracket)
        self._open.append("}" if bracket == "{" else "]")
        self._before = ""
        self.wants_key = bracket == "{"

    def end(self) -> None:
        """Close the innermost container."""
        self._write(self._open.pop())
        self._next()

    def key(self, literal: str) -> None:
        """A key, as a JSON string."""
        self._write(f"{self._before}{literal}: ")
        self._before = ""
        self.wants_key = False

    def value(self, text: str) -> None:
        """A whole value, as JSON."""
        self._write(self._before + text)
        self._next()

    def begin_string(self) -> None:
        self._write(self._before + '"')

    def string(self, escaped: str) -> None:
        """The next characters of an open string, escaped as JSON has it."""
        self._write(escaped)

    def end_string(self) -> None:
        self._write('"')
        self._next()

    def _next(self) -> None:
        self._before = ", "
        self.wants_key = bool(self._open) and self._open[-1] == "}"
