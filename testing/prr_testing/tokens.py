"""Texts as models write them: exact token ids, also odd ones, and the bytes that ids stand for.

A sampler is free to spell a text with any tokens that join to its bytes; a tokenizer knows only one spelling.
`Vocabulary` gives both, for any byte-level BPE tokenizer (every model of `prr_testing.models`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from .models.bpe import BYTE_TO_CHAR

_CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


@cache
def load_tokenizer(folder: Path) -> Any:
    """The `transformers` tokenizer of a folder, loaded once: it takes seconds. Nobody changes it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


class Vocabulary:
    """The tokens of one tokenizer as bytes.

    tokenizer: a fast `transformers` tokenizer of a byte-level BPE model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.added: dict[str, int] = tokenizer.get_added_vocab()
        self._added_by_id = {token_id: content for content, token_id in self.added.items()}
        longest_first = sorted(self.added, key=len, reverse=True)
        self._split_added = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @cached_property
    def _bytes_by_id(self) -> dict[int, bytes]:
        return {
            token_id: bytes(_CHAR_TO_BYTE[char] for char in token)
            for token, token_id in self.tokenizer.get_vocab().items()
            if token not in self.added
        }

    @cached_property
    def _id_by_bytes(self) -> dict[bytes, int]:
        return {token: token_id for token_id, token in self._bytes_by_id.items()}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._id_by_bytes))

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """What the ids spell, special tokens included; KeyError for an id without a token."""
        added, plain = self._added_by_id, self._bytes_by_id
        return b"".join(added[i].encode() if i in added else plain[i] for i in ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """`bytes_of` as text; a character that is cut at either end shows as U+FFFD."""
        return self.bytes_of(ids).decode(errors="replace")

    def encode(self, text: str, *, rng: random.Random | None = None, odd: float = 1.0) -> list[int]:
        """Ids that spell exactly the UTF-8 bytes of `text`.

        Markers (added tokens such as `<tool_call>`) are always their own single id, as models sample them. Without
        `rng` the rest is the tokenizer's spelling. With `rng` every run of one to four tokens is, with probability
        `odd`, cut anew at random: other lengths, across word boundaries, in the middle of characters.
        """
        ids: list[int] = []
        for part in self._split_added.split(text):
            if part in self.added:
                ids.append(self.added[part])
            elif part:
                ids += self._encode_plain(part, rng, odd)
        return ids

    def _encode_plain(self, text: str, rng: random.Random | None, odd: float) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        if self.bytes_of(ids) != text.encode():  # the tokenizer normalises (NFC); the model need not
            ids = self._walk(text.encode(), None)
        if rng is None:
            return ids
        result: list[int] = []
        at = 0
        while at < len(ids):
            run = ids[at : at + rng.randint(1, 4)]
            at += len(run)
            result += self._walk(self.bytes_of(run), rng) if rng.random() < odd else run
        return result

    def _walk(self, data: bytes, rng: random.Random | None) -> list[int]:
        """Cut `data` into tokens from left to right: the longest that fits, or with `rng` any that fits."""
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(at + 1, min(len(data), at + self._longest) + 1)
            fitting = [end for end in ends if data[at:end] in self._id_by_bytes]
            if not fitting:
                raise ValueError(f"no token spells the byte {data[at]:#04x}")
            end = rng.choice(fitting) if rng else fitting[-1]
            ids.append(self._id_by_bytes[data[at:end]])
            at = end
        return ids
