"""The documents name every reason that the code gives, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prr_testing.models import model_dir

ROOT = Path(__file__).parents[2]
COMMON = ROOT / "prr_plugins" / "common"


def test_refusals_are_documented() -> None:
    paths = [path for room in ("bridge", "prompts") for path in sorted((COMMON / room).glob("*.py"))]
    source = "\n".join(path.read_text() for path in paths)
    given = set(re.findall(r'(?:_?Refused|Refusal)\(\s*"([a-z_]+)"', source))
    given |= {f"{what}_changed" for what in ("template", "tools", "template_kwargs", "model")}
    given |= {f"error_{stage}" for stage in ("splice", "store", "bridge", "capture")}
    given |= {"edited", "unknown_turn", "ambiguous", "multimodal", "too_long", "off", "observe", "store_full"}
    text = (ROOT / "docs" / "refusals.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)(?::messages\[i\])?`", text))
    assert given <= documented


def test_the_parsing_runs() -> None:
    """The code of docs/parsing.md, which asserts what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parsing.md").read_text(), re.S)
    exec(compile(code, "parsing.md", "exec"), {})


def test_the_rollout_runs(real: Callable[[str], Any]) -> None:
    """The code of docs/rl.md: the rollout with a sampler and tools of ours, then the trainer's check of two replies."""
    rollout, check = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rl.md").read_text(), re.S)
    model = real("qwen3.6")
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
    sampled = model.encode("Hm.</think>x<|im_end|>")
    prompts: list[list[int]] = []

    def sample(ids: list[int]) -> list[int]:
        prompts.append(list(ids))
        return list(sampled)

    names: dict[str, Any] = {
        "MODEL": model_dir("qwen3.6"),
        "TOOLS": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
        "TURNS": 4,
        "sample": sample,
        "parse_completion": lambda ids: {"role": "assistant", "content": "x", "tool_calls": [call]},
        "run_tools": lambda _: [{"role": "tool", "tool_call_id": "c1", "content": "a"}] if len(prompts) < 3 else [],
    }
    exec(compile(rollout, "rl.md", "exec"), names)
    ids, mask = names["ids"], names["mask"]
    assert len(prompts) == 3
    assert len(mask) == len(ids)
    assert [token for token, counts in zip(ids, mask, strict=True) if counts] == sampled * 3
    replies: dict[str, Any] = {"lineage": []}
    for prompt in prompts:
        replies["reply"] = SimpleNamespace(prompt_token_ids=prompt, choices=[SimpleNamespace(token_ids=sampled)])
        exec(compile(check, "rl.md", "exec"), replies)
    assert replies["lineage"] == ids
