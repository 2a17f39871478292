"""The publishers' own architectures, as small as an engine takes them: for what a plain attention model cannot show.

`prr_testing.models` gives every vocabulary the same plain network. Some of an engine's behaviour hangs on the real one:
vLLM renders GPT-OSS with Harmony by its `model_type`, and caches layers with a sliding window or a recurrent state in
other ways than full attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "swiglu_limit": 7.0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "tie_word_embeddings": False,
}


def with_network(model: Path, network: dict[str, Any], into: Path) -> Path:
    """A folder under `into` that is `model` with another network; the vocabulary's size and EOS stay."""
    folder = into / f"{model.name}-{network['model_type']}"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    plain = json.loads((model / "config.json").read_text())
    kept = ("vocab_size", "eos_token_id", "max_position_embeddings", "torch_dtype", "transformers_version")
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**{k: plain[k] for k in kept}, **network}, indent=2))
    return folder
