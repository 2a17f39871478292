"""The drift matrix: what each engine's own parser and renderer keep of a turn, cell by cell, and where they lose it.

turns.py       the rows: what a model samples, written for each family, and what the client sends next
vllm_chat.py   vLLM's own serving classes around a scripted completion, without weights
sglang_chat.py the same of SGLang
cells.py       one cell: the turn, the message that comes back, the next prompt, the first drift and its cause
blame.py       which line of an engine made a text
worker.py      all cells of one engine, run inside that engine's environment
page.py        out/matrix.json, .md and .html
"""
