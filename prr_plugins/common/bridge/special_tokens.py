"""The text of special tokens inside messages, and how it is kept from becoming these tokens.

A tokenizer that encodes a rendered prompt cannot tell the `<|im_end|>` of the template's frame from one that a user
typed. Promise of a `Shield`: the ids made of a render hold exactly those special tokens that the template writes
around innocuous messages; what is not provably so has no ids. It holds for any tokenizer, since it asks nothing of
one but to encode pieces of text:

1. every place in the messages that is the text of a special token, or could become a part of one together with what
   the template writes beside it, is replaced by a word of letters, and the template renders that;
2. the words in the render are replaced by what they stand for, and the text is cut inside each special token that is
   then there and was not before, so that no piece to be encoded holds its whole text;
3. the special tokens in the ids are compared with those in the render of step 1.

A special token is here any added token of more than one character that is not blank: tokenizers cut `<think>` out of a
text as they do `<|im_end|>`, whatever flag it bears.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from prr_plugins.common.prefix import common_prefix

_NOT_TEXT = frozenset({"role", "type"})
"""Fields whose values templates and engines compare; what stands in them is no text for the model."""


class SpecialTexts:
    """The special tokens of one tokenizer: text to id. Thread-safe."""

    def __init__(self, added_tokens: Mapping[str, int]) -> None:
        self.ids = {text: token for text, token in added_tokens.items() if len(text) > 1 and text.strip()}
        self.special = frozenset(self.ids.values())
        self.pattern = re.compile(_any_of(self.ids) if self.ids else r"(?!)")
        self.longest = max(map(len, self.ids), default=0)
        self._heads = frozenset(text[:n] for text in self.ids for n in range(1, len(text)))
        self._tails = frozenset(text[n:] for text in self.ids for n in range(1, len(text)))
        self._all = "\0".join(self.ids)
        # Letters only, random: no template, JSON writer or tokenizer changes it, no message holds it.
        self.mark = "".join(chr(ord("a") + byte % 26) for byte in secrets.token_bytes(20))

    def count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """How often the text of a special token stands in the messages."""
        return sum(len(self.pattern.findall(text)) for message in messages for text in texts_of(message))

    def doubtful(self, text: str) -> list[tuple[int, int]]:
        """Spans of `text`, in order, that are special tokens or may become parts of one beside other text."""
        spans = [match.span() for match in self.pattern.finditer(text)]
        start = len(text) - len(text.lstrip())  # templates trim
        end = len(text.rstrip())
        if start >= end:
            return spans
        body = text[start:end]
        if len(body) < self.longest and body in self._all:
            return [(start, end)]
        reach = min(len(body), self.longest)
        head = next((n for n in range(reach, 0, -1) if body[:n] in self._tails), 0)
        tail = next((n for n in range(reach, 0, -1) if body[-n:] in self._heads), 0)
        spans += [span for span in ((start, start + head), (end - tail, end)) if span[0] < span[1]]
        return _joined(spans)

    def shield(self) -> Shield:
        return Shield(self)


class Shield:
    """The words that stand for doubtful text in the messages of one render. Equal texts have one word."""

    def __init__(self, texts: SpecialTexts) -> None:
        self._texts = texts
        self._words: dict[str, str] = {}
        self._meant: dict[str, str] = {}

    def hide(self, value: Any) -> Any:
        """A message, or a list of them, with words for what is doubtful. What needs no change is not copied."""
        if isinstance(value, str):
            return self._hidden(value)
        if isinstance(value, Mapping):
            changed = {name: self._field(name, field) for name, field in value.items() if name not in _NOT_TEXT}
            same = all(changed[name] is value[name] for name in changed)
            return value if same else {**value, **changed}
        if isinstance(value, (list, tuple)):
            items = [self.hide(item) for item in value]
            return value if all(one is other for one, other in zip(items, value, strict=True)) else items
        return value

    def _field(self, name: str, value: Any) -> Any:
        if name != "arguments" or not isinstance(value, str):
            return self.hide(value)
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return self.hide(value)
        # The engine reads the JSON before the template writes it: an escaped text counts as well.
        hidden = self._keys_too(read)
        return value if hidden == read else json.dumps(hidden, ensure_ascii=False)

    def _keys_too(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.hide(name): self._keys_too(field) for name, field in value.items()}
        if isinstance(value, list):
            return [self._keys_too(item) for item in value]
        return self.hide(value)

    def _hidden(self, text: str) -> str:
        spans = self._texts.doubtful(text)
        if not spans:
            return text
        parts = []
        at = 0
        for start, end in spans:
            parts += [text[at:start], self._word(text[start:end])]
            at = end
        return "".join([*parts, text[at:]])

    def _word(self, meant: str) -> str:
        if meant not in self._words:
            number = "".join(chr(ord("a") + int(digit)) for digit in str(len(self._words)))
            word = self._words[meant] = f"{self._texts.mark}{number}z"
            self._meant[word] = meant
        return self._words[meant]

    def show(self, rendered: str) -> tuple[str, list[tuple[int, int]]]:
        """The text that is meant by a render, and where in it stands what was hidden."""
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        length = 0
        for text, word in self._parts(rendered):
            meant = self._meant.get(word, word)
            start = length + len(text)
            length = start + len(meant)
            parts += [text, meant]
            if meant:
                spans.append((start, length))
        return "".join(parts), spans

    def place(self, rendered: str, at: int) -> int:
        """Where character `at` of a render is in the text that is meant."""
        text, _ = self.show(rendered[:at])
        return len(text)

    def encode(
        self,
        rendered: str,
        first: Callable[[str], list[int] | None],
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> tuple[list[int], list[tuple[str, int]]] | None:
        """The ids of a render, special tokens only where the template wrote them; None where that cannot be had.

        With them the texts that were encoded one by one, and how many ids each has.
        first: encodes the piece that stands first; encode, decode: those of the tokenizer.
        """
        text, spans = self.show(rendered)
        pieces = self._pieces(text, spans)
        ids = first(pieces[0])
        if ids is None:
            return None
        sizes = [(pieces[0], len(ids))]
        for piece in pieces[1:]:
            more = encode(piece)
            if not decode(more).startswith(piece[0]):  # a tokenizer that puts a space in front of each text
                return None
            ids = ids + more
            sizes.append((piece, len(more)))
        expected = [self._texts.ids[match[0]] for match in self._texts.pattern.finditer(rendered)]
        return (ids, sizes) if [token for token in ids if token in self._texts.special] == expected else None

    def _pieces(self, text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
        """`text` cut inside each special token that has a part in one of `spans`."""
        cuts = set()
        for start, end in spans:
            at = max(0, start - self._texts.longest)
            while (match := self._texts.pattern.search(text, at)) and match.start() < end:
                if match.end() > start:
                    cuts.add(max(match.start() + 1, start))
                at = match.start() + 1
        edges = [0, *sorted(cuts), len(text)]
        return [text[a:b] for a, b in pairwise(edges)]

    def _parts(self, rendered: str) -> Iterator[tuple[str, str]]:
        """Text and the word behind it, again and again; the last word is empty."""
        at = 0
        for match in re.finditer(f"{self._texts.mark}[a-j]+z", rendered) if self._words else ():
            yield rendered[at : match.start()], match[0]
            at = match.end()
        yield rendered[at:], ""


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a message that may reach the prompt."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, field in value.items():
            if name not in _NOT_TEXT:
                yield from texts_of(field)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_of(item)


def _any_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` that tries each character once: there may be thousands that begin alike."""
    branches: dict[str, list[str]] = {}
    for text in texts:
        branches.setdefault(text[:1], []).append(text[1:])
    ends = branches.pop("", None) is not None
    written = []
    for first, rests in branches.items():
        first_one, last_one = min(rests), max(rests)
        common = first_one[: common_prefix(first_one, last_one)]
        deeper = [rest[len(common) :] for rest in rests]
        written.append(re.escape(first + common) + (_any_of(deeper) if deeper != [""] else ""))
    return f"(?:{'|'.join(written)}){'?' if ends else ''}"


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
