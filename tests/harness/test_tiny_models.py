"""The models that tests and demos use are the real ones: hashes as published, ids as their users know them."""

from __future__ import annotations

import hashlib
import json

import pytest

from prr_testing.models import MODELS, PayloadMismatch, model_dir
from prr_testing.models.families import checked
from prr_testing.tokens import load_tokenizer

# a marker that each model's parsers hang on, and its id in the published vocabulary
KNOWN_IDS = {
    "qwen3.6": {"<|im_start|>": 248045, "<|im_end|>": 248046, "<tool_call>": 248058, "<think>": 248068},
    "qwen3-coder": {"<|im_start|>": 151644, "<|im_end|>": 151645, "<tool_call>": 151657, "<think>": 151667},
    "glm-5.1": {"<|user|>": 154827, "<|observation|>": 154829, "<think>": 154841, "<tool_call>": 154843},
    "glm-4.7": {"<|user|>": 151336, "<|observation|>": 151338, "<think>": 151350, "<tool_call>": 151352},
    "kimi-k2.6": {"<|im_end|>": 163586, "<|tool_calls_section_begin|>": 163595, "<think>": 163606},
    "deepseek-v4": {"<｜begin▁of▁sentence｜>": 0, "<｜end▁of▁sentence｜>": 1, "<think>": 128821, "</think>": 128822},
    "gpt-oss": {"<|return|>": 200002, "<|channel|>": 200005, "<|call|>": 200012},
}
TEXT = 'naïve café — 日本語 🙂\r\n\tdef f(x):\n        return {"a": 1.0, "b": 1e3}  # don\'t\n\n\n'


@pytest.mark.parametrize("name", MODELS)
def test_auto_tokenizer_loads_the_published_vocabulary(name: str) -> None:
    tokenizer = load_tokenizer(model_dir(name))
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in KNOWN_IDS[name]} == KNOWN_IDS[name]
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT


@pytest.mark.parametrize("name", MODELS)
def test_every_file_has_its_hash(name: str) -> None:
    folder, model = model_dir(name), MODELS[name]
    assert hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest() == model.tokenizer_json_sha256
    assert hashlib.sha256((folder / "chat_template.jinja").read_bytes()).hexdigest() == model.template[1]


@pytest.mark.parametrize("name", MODELS)
def test_template_renders_and_stops_are_tokens(name: str) -> None:
    tokenizer = load_tokenizer(model_dir(name))
    messages = [{"role": "user", "content": "hello there"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert "hello there" in text
    stops = json.loads((model_dir(name) / "generation_config.json").read_text())["eos_token_id"]
    assert stops == tokenizer.convert_tokens_to_ids(list(MODELS[name].stop_tokens))
    assert stops[0] == tokenizer.eos_token_id or name.startswith("glm")
    assert max(stops) < MODELS[name].vocab_size


def test_a_wrong_payload_is_refused() -> None:
    with pytest.raises(PayloadMismatch, match=r"some file: SHA-256 is .*, expected 00"):
        checked("some file", b"not it", "00")


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"unknown model 'gpt-2'; known: qwen3\.6"):
        model_dir("gpt-2")
