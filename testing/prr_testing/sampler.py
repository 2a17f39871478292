"""Scripted sampling: the engine "samples" exactly the token ids that a request brings along.

A vLLM V1 logits processor, loaded with `--logits-processors prr_testing.sampler:ScriptedSampler`. A request carries its
completion in `vllm_xargs: {"script_ids": [...]}`, stop token included; every step then has one possible token. Behind
the end of a script comes the model's EOS token, so that a script without a stop token ends too. Requests without a
script are sampled as ever.

With `n > 1` one request can carry several scripts, separated by `-1`: choice `i` of a request with `"seed": 0` gets the
`i`-th one, since vLLM gives each choice the seed of the request plus its index.

Not loaded under speculative decoding. A script that breaks an active grammar makes the engine fail the request. One
with an id that the model does not have is cut there: an exception at this place would take the whole engine down.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SCRIPT = "script_ids"
SEPARATOR = -1


def select_script(ids: Sequence[int], seed: int | None) -> list[int]:
    """The script of one choice out of scripts joined by SEPARATOR; `seed` counts round."""
    scripts: list[list[int]] = [[]]
    for token_id in ids:
        if token_id == SEPARATOR:
            scripts.append([])
        else:
            scripts[-1].append(token_id)
    return scripts[(seed or 0) % len(scripts)]


class ScriptedSampler(AdapterLogitsProcessor):
    """Leaves one token possible at each step of a request that brings a script."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._vocab_size = vllm_config.model_config.get_vocab_size()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse (ValueError, HTTP 400) a script that is not a list of token ids."""
        ids = (sampling_params.extra_args or {}).get(SCRIPT)
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int and i >= SEPARATOR for i in ids)):
            raise ValueError(f"{SCRIPT} must be a list of token ids")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        ids = (params.extra_args or {}).get(SCRIPT)
        if ids is None:
            return None
        script = select_script(ids, params.seed)
        script = list(itertools.takewhile(lambda token_id: token_id < self._vocab_size, script))
        stops = params.all_stop_token_ids
        end = params.eos_token_id if params.eos_token_id is not None else min(stops, default=0)

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            step = len(output_ids)
            token_id = script[step] if step < len(script) else end
            logits.fill_(float("-inf"))
            logits[token_id] = 0.0
            return logits

        return force
