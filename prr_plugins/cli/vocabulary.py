"""Text to ids and back where no engine runs: a model directory's own tokenizer, or pieces of text that stand in for it.

The stand-in never decides what a real tokenizer would do; it only counts. It keeps the template's markers whole, and
runs of newlines and words as one piece each, as byte-level vocabularies do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from prr_plugins.cli.common import fail


class Vocabulary(Protocol):
    """What `prr check` and `prr matrix` need of a tokenizer."""

    name: str
    real: bool
    added: dict[str, int]
    stop_ids: frozenset[int]

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class FileVocabulary:
    """The `tokenizer.json` of a model directory."""

    real = True

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self.name = directory.name
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.added = {token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.stop_ids = _stop_ids(directory, self.added)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


_MARKER = re.compile(r"<[|｜/]?[^<>\s'\"{}]{1,48}>|\[/?[A-Z][A-Z_]+\]")
_PIECE = r"\n+|[^\S\n]+|\w+|[^\w\s]"


class PieceVocabulary:
    """Pieces of text in place of tokens, for a template without a tokenizer."""

    real = False
    name = "text pieces"

    def __init__(self, template: str, stop: str | None) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []
        markers = sorted({*_MARKER.findall(template), *([stop] if stop else [])}, key=len, reverse=True)
        self.added = {marker: self._id(marker) for marker in markers}
        self.stop_ids = frozenset({self.added[stop]} if stop else ())
        self._split = re.compile("|".join([*map(re.escape, markers), _PIECE]))

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in self._split.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids)


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """A JSON object of a model directory; empty if the file is not there."""
    path = directory / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        fail(f"{path}: not JSON: {error}")
    return value if isinstance(value, dict) else {}


def special_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json: a text, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _stop_ids(directory: Path, added: dict[str, int]) -> frozenset[int]:
    found = read_config(directory, "generation_config.json").get("eos_token_id")
    ids = set(found if isinstance(found, list) else [found] if isinstance(found, int) else [])
    eos = special_text(read_config(directory, "tokenizer_config.json").get("eos_token"))
    if eos in added:
        ids.add(added[eos])
    return frozenset(ids)
