"""Text to ids and back where no engine runs: a model directory's own tokenizer, or pieces of text that stand in for it.

The probe never decides what a real tokenizer would do; it only counts. It keeps the template's markers whole, and
runs of newlines and words as one piece each, as byte-level vocabularies do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from prr_plugins.cli.common import fail, read_json, reading


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
        self._file = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(self._file))
        except Exception as error:  # the library raises nothing more exact
            fail(f"{self._file}: not a tokenizer: {error}")
        self.added = {token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.stop_ids = _stop_ids(directory, self.added)

    def encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # as above: a vocabulary without the piece for what it does not know
            fail(f"{self._file}: cannot encode: {error}")
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
    with reading(str(path)):
        if not path.is_file():
            return {}
    value = read_json(path)
    if not isinstance(value, dict):
        fail(f"{path}: expected a JSON object")
    return value


def special_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json: a text, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _stop_ids(directory: Path, added: dict[str, int]) -> frozenset[int]:
    found = read_config(directory, "generation_config.json").get("eos_token_id")
    ids = set()
    for token in found if isinstance(found, list) else [] if found is None else [found]:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 1 << 32:
            file = directory / "generation_config.json"
            fail(f"{file}: eos_token_id: expected a token id or a list of token ids")
        ids.add(token)
    eos = special_text(read_config(directory, "tokenizer_config.json").get("eos_token"))
    if eos in added:
        ids.add(added[eos])
    return frozenset(ids)
