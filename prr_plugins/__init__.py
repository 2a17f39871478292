"""Lossless parsers and prompt splicing for vLLM and SGLang (Parse-Render Roundtrip).

Rooms: `common` knows no engine; `vllm` and `sglang` translate between one engine's types and `common`; `cli` is `prr`.
"""

__version__ = "0.1.0"  # the one place: the build reads it here, and `prr --version` prints it
