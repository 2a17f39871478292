"""Which parsers serve which model: an engine's own, and ours. None: the model has no such half."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Engine


@dataclass(frozen=True)
class Parsers:
    """Values of `--tool-call-parser` and `--reasoning-parser`."""

    tool: str | None
    reasoning: str | None


STOCK: dict[Engine, dict[str, Parsers]] = {}
STOCK["vllm"] = {
    "qwen3.6": Parsers("qwen3_xml", "qwen3"),
    "qwen3-coder": Parsers("qwen3_coder", None),
    "glm-5.1": Parsers("glm47", "glm47"),
    "glm-4.7": Parsers("glm47", "glm47"),
    "kimi-k2.6": Parsers("kimi_k2", "kimi_k2"),
    "deepseek-v4": Parsers("deepseek_v4", "deepseek_v4"),
    "gpt-oss": Parsers("openai", "openai_gptoss"),
}
STOCK["sglang"] = {
    "qwen3.6": Parsers("qwen3_coder", "qwen3"),
    "qwen3-coder": Parsers("qwen3_coder", None),
    "glm-5.1": Parsers("glm47", "glm45"),
    "glm-4.7": Parsers("glm47", "glm45"),
    "kimi-k2.6": Parsers("kimi_k2", "kimi_k2"),
    "deepseek-v4": Parsers("deepseekv4", "deepseek-v4"),
    "gpt-oss": Parsers("gpt-oss", "gpt-oss"),
}
OURS = {
    "qwen3.6": Parsers("prr_qwen3", "prr_qwen3"),
    "qwen3-coder": Parsers("prr_qwen3", None),
    "glm-5.1": Parsers("prr_glm", "prr_glm"),
    "glm-4.7": Parsers("prr_glm", "prr_glm"),
    "kimi-k2.6": Parsers("prr_kimi_k2", "prr_kimi_k2"),
    "deepseek-v4": Parsers("prr_deepseek_v4", "prr_deepseek_v4"),
    "gpt-oss": Parsers("prr_gpt_oss", "prr_gpt_oss"),
}
# command line arguments that a model's server needs besides
ARGUMENTS: dict[tuple[Engine, str], tuple[str, ...]] = {
    ("vllm", "deepseek-v4"): ("--tokenizer-mode", "deepseek_v4"),
}
