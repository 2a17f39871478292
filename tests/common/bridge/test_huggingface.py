"""The bridge out of a tokenizer alone: its encoder gives the tokenizer's own ids, and it extends a turn."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from prr_plugins.common.bridge.continuation import Extension
from prr_plugins.common.bridge.huggingface import bridge_of, encoder, renderer
from prr_testing.effort import examples
from prr_testing.models import model_dir
from prr_testing.tokens import load_tokenizer

MODELS = ("qwen3.6", "glm-5.1", "kimi-k2.6", "deepseek-v4", "gpt-oss")


def tokenizer_of(model: str) -> Any:
    return load_tokenizer(model_dir(model))


@cache
def encode_of(model: str) -> Any:
    return encoder(tokenizer_of(model))


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
@examples(60)
def test_the_encoder_gives_the_tokenizers_ids(model: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(model)
    pieces = st.one_of(st.text(max_size=12), st.sampled_from(sorted(tokenizer.get_added_vocab())))
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    assert encode_of(model)(text) == tokenizer.encode(text, add_special_tokens=False)


def test_truncation_that_another_call_sets_does_not_reach_it() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir("qwen3.6"))
    tokenizer("a b c d", truncation=True, max_length=2)
    encode = encoder(tokenizer)
    tokenizer("a b c d", truncation=True, max_length=2)
    assert len(encode("a b c d e f g")) == 7


def test_a_tokenizer_without_a_rust_one_encodes_itself() -> None:
    class Plain:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            assert not add_special_tokens
            return [ord(c) for c in text]

    assert encoder(Plain())("ab") == [97, 98]


@pytest.mark.parametrize("model", ["qwen3.6", "glm-5.1", "kimi-k2.6"])
def test_it_extends_a_turn(model: str) -> None:
    tokenizer = tokenizer_of(model)
    stop, opener = {"glm-5.1": ("<|observation|>", "<|observation|>")}.get(model, ("<|im_end|>", ""))
    user = {"role": "user", "content": "List them."}
    call = {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"path": "/"}'}}
    turn = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "functions.ls:0", "name": "ls", "content": "a\nb"}
    render, encode = renderer(tokenizer), encoder(tokenizer)
    prompt = render([user], None, True, {})
    full = render([user, turn, result], None, True, {})
    assert full.startswith(prompt)
    end = full.index(stop, len(prompt)) + len(stop)
    ids = encode(prompt), encode(full[len(prompt) : end])
    assert opener in full[len(prompt) : end]
    bridge = bridge_of(tokenizer, [tokenizer.convert_tokens_to_ids(stop)])
    extended = bridge.extend(*ids, [result], assistant=turn, before=[user])
    assert isinstance(extended, Extension)
    assert extended.ids == encode(full)
    array_like = bridge.extend(tuple(ids[0]), tuple(ids[1]), [result], assistant=turn, before=[user])
    assert isinstance(array_like, Extension)
    assert array_like.ids == extended.ids
    assert [span.source for span in extended.spans()][:2] == ["prompt", "sampled"]
    assert extended.spans()[-1].end == len(extended.ids)
