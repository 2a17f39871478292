"""Lossless parsers and prompt splicing for vLLM and SGLang (Parse-Render Roundtrip).

Rooms: `common` knows no engine; `vllm` and `sglang` translate between one engine's types and `common`; `cli` is `prr`.
"""
