"""Scripted sampling in SGLang: the engine "samples" exactly the token ids that a request brings along.

A custom logit processor (`--enable-custom-logit-processor`). A request names it (`REQUEST_FIELDS`) and carries its
completion in `custom_params: {"script_ids": [...]}`, stop token included; every step then has one possible token.
Behind the end of a script comes the model's EOS token, so that a script without a stop token ends too.

With `n > 1` one request can carry several scripts, separated by `-1`: the choices take them in turn.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

SCRIPT = "script_ids"
SEPARATOR = -1

# SGLang takes a pickled class; the opcode GLOBAL names one, so nothing has to be imported (or pickled) here.
_REFERENCE = b"cprr_testing.sglang_sampler\nScriptedSampler\n."
REQUEST_FIELDS = {"custom_logit_processor": json.dumps({"callable": _REFERENCE.hex()})}


class ScriptedSampler:
    """Leaves one token possible at each step of a request that brings a script."""

    def __init__(self) -> None:
        self._taken: Counter[tuple[int, ...]] = Counter()
        self._scripts: dict[str, list[int]] = {}

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        for row, params in zip(logits, custom_param_list, strict=True):
            if SCRIPT not in params:
                continue
            request = params["__req__"]
            script = self._script(request, params[SCRIPT])
            step = len(request.output_ids)
            token = script[step] if step < len(script) else min(request.eos_token_ids)
            row.fill_(float("-inf"))
            row[token] = 0.0
        return logits

    def _script(self, request: Any, ids: list[int]) -> list[int]:
        """The script of one choice; SGLang sends the choices of a request in their order."""
        if SEPARATOR not in ids:
            return ids
        if request.rid not in self._scripts:
            scripts: list[list[int]] = [[]]
            for token in ids:
                if token == SEPARATOR:
                    scripts.append([])
                else:
                    scripts[-1].append(token)
            if request.sampling_params.max_new_tokens == 0:
                return scripts[0]  # the prompt, computed once before the choices
            key = (*ids, SEPARATOR, *request.origin_input_ids)
            self._scripts[request.rid] = scripts[self._taken[key] % len(scripts)]
            self._taken[key] += 1
        return self._scripts[request.rid]
