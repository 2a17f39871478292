"""Odd token spellings are still the same bytes, for every vocabulary."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prr_testing.effort import examples
from prr_testing.models import MODELS, model_dir
from prr_testing.tokens import Vocabulary, load_tokenizer

TEXT = '<think>\nnaïve 日本語 🙂\n</think>\n\n<tool_call>\n{"path": "/srv/www", "n": 1.0}'


@pytest.mark.parametrize("name", MODELS)
def test_every_vocabulary_can_be_spelt_oddly(name: str) -> None:
    vocabulary = Vocabulary(load_tokenizer(model_dir(name)))
    canonical = vocabulary.encode(TEXT)
    odd = vocabulary.encode(TEXT, rng=random.Random(1))
    assert canonical != odd
    assert vocabulary.bytes_of(canonical) == vocabulary.bytes_of(odd) == TEXT.encode()
    assert vocabulary.tokenizer.decode(odd) == TEXT


@examples(200)
@given(text=st.text(max_size=60), seed=st.integers(0, 2**32), odd=st.floats(0, 1))
def test_any_text_any_seed(qwen: Vocabulary, text: str, seed: int, odd: float) -> None:
    assert vocabulary_text(qwen, text, seed, odd) == text


def vocabulary_text(vocabulary: Vocabulary, text: str, seed: int, odd: float) -> str:
    return vocabulary.text_of(vocabulary.encode(text, rng=random.Random(seed), odd=odd))


def test_markers_stay_whole_and_seeds_repeat(qwen: Vocabulary) -> None:
    ids = qwen.encode(TEXT, rng=random.Random(7))
    assert [i for i in ids if i in qwen.added.values()] == [248068, 248069, 248058]
    assert ids == qwen.encode(TEXT, rng=random.Random(7))
    assert ids != qwen.encode(TEXT, rng=random.Random(8))


def test_text_that_the_tokenizer_would_normalise_is_kept(qwen: Vocabulary) -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    assert qwen.text_of(qwen.encode(decomposed)) == decomposed
