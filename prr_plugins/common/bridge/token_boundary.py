"""Text behind tokens: encode a text that follows given ids, or say that no clean seam exists.

Promise: the ids returned for `text` are those the tokenizer gives that text when it stands behind the
ids in front, and nothing in front would be tokenised otherwise because of it. Where a merge would cross the
seam, `encode_after` returns None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

# Enough text for any pre-tokeniser to find its boundary; a seam is decided by the last word or run of spaces.
_CONTEXT_TOKENS = 16


class BoundaryEncoder:
    """A tokenizer as the bridge needs it.

    encode: text to ids, special tokens in the text becoming their ids, nothing added in front.
    decode: ids to text, special tokens shown.
    added_tokens: text to id of each token that the tokenizer cuts out of a text before anything else.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        added_tokens: Mapping[str, int],
    ) -> None:
        self._encode = encode
        self._decode = decode
        self.ids = {text: token for text, token in added_tokens.items() if text}
        self.texts = {token: text for text, token in self.ids.items()}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def added(self, text: str) -> Iterator[re.Match[str]]:
        """The added tokens in `text`, in order."""
        return self.pattern.finditer(text)

    def starts(self, text: str) -> str | None:
        """The added token that `text` starts with."""
        match = self.pattern.match(text)
        return match[0] if match else None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens shown."""
        return self._decode(ids)

    def encode(self, text: str) -> list[int]:
        """The ids of `text` standing alone."""
        return self._encode(text) if text else []

    def encode_after(self, front: Sequence[int], text: str) -> list[int] | None:
        """The ids of `text` behind `front`, or None where a merge would cross the seam."""
        if not text:
            return []
        anchor = self.texts.get(front[-1]) if len(front) else None
        if anchor is not None:
            # In its place, since tokenizers treat the start of a text and the place behind a special token
            # differently (a prefixed space, stripped whitespace).
            ids = self._encode(anchor + text)
            return ids[1:] if ids and ids[0] == front[-1] else None
        if self.starts(text):
            return self._encode(text)
        context = self._decode(list(front[-_CONTEXT_TOKENS:]))
        if not context or "\ufffd" in context:
            return None
        alone = self._encode(context)
        both = self._encode(context + text)
        return both[len(alone) :] if both[: len(alone)] == alone else None
