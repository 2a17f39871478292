"""What finding, continuing and recording turns takes of a request, by the server's own timers and history length."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean
from typing import Any

from ..redis_server import RedisServer
from ..server import Server, serve
from ..talk import Talk

PARSER = "prr_qwen3"
_TURNS = 12
_COMPLETION = 48  # tokens, about
_LINE = "The quick brown fox jumps over the lazy dog near the river bank today.\n"


def measure(model: Path, redis: RedisServer, histories: tuple[int, ...]) -> dict[str, Any]:
    """For each length (tokens) the share of the request path, and the milliseconds of each stage for one request.

    One client, one request at a time, on a network that takes next to nothing itself: a real model's requests take far
    longer, and the share is so much smaller.
    """
    longest = max(histories) + 16_384
    environment = {"PRR_STORE_URL": redis.unix_url, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    shares: dict[str, Any] = {}
    with serve(
        model, env=environment, tool_parser=PARSER, reasoning_parser=PARSER, max_model_len=longest,
        kv_cache_bytes=512 * (longest + max(histories) + 65_536),
    ) as server:  # fmt: skip
        talk = Talk(server, model)
        for history in histories:
            shares[str(history)] = _share(server, talk, history)
    return shares


def _share(server: Server, talk: Talk, history: int) -> dict[str, Any]:
    tokens = len(talk.ids(_LINE * 20, stop=False)) // 20
    messages: list[Any] = [{"role": "user", "content": _LINE * (history // tokens)}]
    # No seed: vLLM's CPU engine dies of one where a prompt is computed in several steps.
    answer = talk.ask(messages, "so\n</think>\n\nRead.", seed=None)
    before, took = server.metrics(), []
    for number in range(_TURNS):
        messages += [answer.returned(), {"role": "user", "content": f"and line {number}?"}]
        began = time.perf_counter()
        answer = talk.ask(messages, f"line {number}\n</think>\n\n" + "a word " * (_COMPLETION // 2), seed=None)
        took.append(time.perf_counter() - began)
        assert answer.prr is not None
        assert answer.prr["outcome"] == "spliced", answer.prr
    after = server.metrics().by_label("prr_seconds_total", "stage")
    stages = {stage: (seconds - before.by_label("prr_seconds_total", "stage").get(stage, 0.0)) / _TURNS
              for stage, seconds in after.items()}  # fmt: skip
    return {
        "share": round(sum(stages.values()) / mean(took), 5),
        "request_ms": round(1000 * mean(took), 2),
        "stages_ms": {stage: round(1000 * seconds, 3) for stage, seconds in sorted(stages.items())},
        "prompt_tokens": len(answer.prompt_ids),
    }
