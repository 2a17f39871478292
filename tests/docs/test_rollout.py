"""The rollout of docs/rl.md: run as it stands, on real vocabularies and on a real server."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from prr_testing.matrix.turns import WRITERS, Argument, Call
from prr_testing.models import model_dir
from prr_testing.server import Server
from prr_testing.tokens import Vocabulary

_FILE = Path(__file__).parents[2] / "docs" / "examples" / "rollout.py"
_USER = {"role": "user", "content": "What is 17.5 + 4, and that plus 1e3?"}


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollout_example", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rollout_example"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _add(a: str, b: str) -> Call:
    return Call("add", (Argument("a", a), Argument("b", b)))


def _stops(model: str) -> list[int]:
    eos = json.loads((model_dir(model) / "generation_config.json").read_text())["eos_token_id"]
    return eos if isinstance(eos, list) else [eos]


@pytest.mark.parametrize("model", ["qwen3.6", "glm-5.1", "kimi-k2.6"])
@pytest.mark.parametrize("odd", [False, True], ids=["canonical tokens", "odd tokens"])
def test_the_lineage_is_what_was_sampled(model: str, odd: bool) -> None:
    example, writer = _example(), WRITERS[model]
    environment = example.Environment(str(model_dir(model)), writer.format, _stops(model))
    vocabulary = Vocabulary(environment.tokenizer)
    rng = random.Random(3) if odd else None
    texts = [
        (writer.think("\n I add.\n\n") + writer.calls([_add("17.50", "4")], first=0), writer.stop),
        (writer.think("Again.") + writer.say("Wait. ") + writer.calls([_add("21.5", "1e3")], first=1), writer.stop),
        (writer.think("") + writer.answer("1021.5 "), writer.final_stop),
    ]  # fmt: skip
    script = [[*vocabulary.encode(text, rng=rng), vocabulary.added[stop]] for text, stop in texts]
    prompts: list[list[int]] = []

    def sample(prompt_ids: Sequence[int]) -> list[int]:
        prompts.append(list(prompt_ids))
        return script[len(prompts) - 1]

    done = environment.rollout([_USER], sample)
    assert (done.turns, done.stopped) == (3, "answer")
    for index, prompt in enumerate(prompts):
        assert done.ids[: len(prompt)] == prompt, "every prompt is a prefix of the lineage"
        assert done.ids[len(prompt) : len(prompt) + len(script[index])] == script[index]
    assert len(done.sampled) == len(done.ids)
    runs, before = [], False
    for token, is_sampled in zip(done.ids, done.sampled, strict=True):
        if is_sampled and not before:
            runs.append([])
        if is_sampled:
            runs[-1].append(token)
        before = is_sampled
    assert runs == script, "the mask is exactly what was sampled"
    results = [m["content"] for m in done.messages if m["role"] == "tool"]
    assert results == ["21.5", "1021.5"]
    rest = vocabulary.text_of([t for t, s in zip(done.ids, done.sampled, strict=True) if not s])
    assert all(rest.count(result) >= 1 for result in results)


def test_a_turn_that_cannot_be_continued_ends_the_rollout() -> None:
    example, writer = _example(), WRITERS["glm-5.1"]
    environment = example.Environment(str(model_dir("glm-5.1")), writer.format, _stops("glm-5.1"))
    vocabulary = Vocabulary(environment.tokenizer)
    text = writer.think("I add.") + writer.calls([_add("1", "2")])
    # GLM names the next role by its stop token; a tool result cannot follow the user's.
    completion = [*vocabulary.encode(text), vocabulary.added["<|user|>"]]
    done = environment.rollout([_USER], lambda _: completion)
    assert done.stopped == "stop_opens_other_role"
    assert done.ids[-len(completion) :] == completion
    assert done.sampled[-len(completion) :] == [True] * len(completion)


@pytest.mark.server
def test_against_a_real_endpoint(server: Server, qwen: Vocabulary) -> None:
    if server.engine != "vllm":
        pytest.skip("SGLang's token-in endpoint is /generate")
    example, writer = _example(), WRITERS["qwen3.6"]
    environment = example.Environment(str(model_dir("qwen3.6")), writer.format, _stops("qwen3.6"))
    call = qwen.encode(writer.think("Add.") + writer.calls([_add("17.5", "4")]))
    script = iter([[*call, qwen.added[writer.stop]], [*qwen.encode("It is 21.5."), qwen.added[writer.stop]]])

    def sample(prompt_ids: Sequence[int]) -> list[int]:
        extra: dict[str, Any] = {"vllm_xargs": {"script_ids": next(script)}}
        return example.completions(server.client(), server.model, 400, _stops("qwen3.6"), **extra)(prompt_ids)

    done = environment.rollout([_USER], sample)
    assert (done.turns, done.stopped) == (2, "answer")
    assert done.ids[-1] == qwen.added[writer.stop]
    assert qwen.text_of(done.ids).endswith("It is 21.5.<|im_end|>")
    assert sum(done.sampled) == len(call) + 1 + len(qwen.encode("It is 21.5.")) + 1
