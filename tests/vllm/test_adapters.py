"""LoRA adapters on a real server: each is a model of its own, and nothing is spliced from one name to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from asking import PARSER, TOOLS, Chat
from safetensors.torch import save_file
from test_chat import assert_goes_on, rendered, user

from prr_testing.server import serve

pytestmark = [pytest.mark.server, pytest.mark.slow]

NAMES = ("tuned", "other")


def adapter(folder: Path) -> Path:
    """A LoRA of rank 8 on one projection of the plain network, in peft's files."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{name}.lora_A.weight": torch.ones(8, 64), f"{name}.lora_B.weight": torch.ones(64, 8)}
    save_file({key: weight.to(torch.bfloat16) for key, weight in weights.items()}, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def tuned(qwen_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = [f"{name}={adapter(folder / name)}" for name in NAMES]
    options = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", *adapters]
    with serve(qwen_dir, *options, tool_parser=PARSER, reasoning_parser=PARSER) as server:
        yield Chat(server, qwen_dir)


def test_an_adapter_is_a_model_of_its_own(tuned: Chat) -> None:
    def ask(model: str, messages: list[dict[str, Any]]) -> Any:
        return tuned.ask(messages, "so  so\n</think>\n\n I.", extra={"model": model})

    messages = user("which model?")
    first = ask("tuned", messages)
    messages += [first.returned(), *user("go on")]
    for model in ("other", tuned.server.model):
        answer = ask(model, messages)
        assert (answer.prr["outcome"], answer.prr["reason"]) == ("refused", "model_changed")
        assert answer.prompt_ids == rendered(tuned, messages)
    assert_goes_on(tuned, first, ask("tuned", messages))
    for model in ("tuned", "other"):
        body = {"model": model, "messages": messages, "tools": TOOLS}
        shown = httpx.post(f"{tuned.server.base_url}/tokenize", json=body, timeout=60).json()["tokens"]
        # "other" has a turn of its own by now, under a prompt that vLLM rendered
        assert (shown[: len(first.turn)] == first.turn) == (model == "tuned")
