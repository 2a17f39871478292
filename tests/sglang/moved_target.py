"""A process in which places of SGLang have other names: `python moved_target.py PATH...`, PATH as in `hooks.HOOKS`.

SGLang itself goes on finding a moved method. One conversation is run in both modes, then `prr doctor`; prints JSON.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import pkgutil
import sys
from contextlib import redirect_stdout
from typing import Any

from in_process import CALL, TOOLS

from prr_testing.parsers import OURS
from prr_testing.sglang_handler import Handler
from prr_testing.sglang_sampler import SCRIPT


def move(path: str) -> None:
    """Give what is at `path` another name. An object still answers to the old one; its class, or module, does not."""
    owner_path, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    value = getattr(owner, name)
    delattr(owner, name)
    setattr(owner, f"{name}_moved", value)
    if isinstance(owner, type):
        moved = owner.__dict__.get("_moved", set()) | {name}
        owner._moved = moved  # type: ignore[attr-defined]
        owner.__getattr__ = _find  # type: ignore[attr-defined]


def _find(self: Any, name: str) -> Any:
    if name in type(self)._moved:
        return getattr(self, f"{name}_moved")
    raise AttributeError(name)


def main() -> None:
    from sglang.srt.plugins import load_plugins

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("prr_plugins").addHandler(handler)
    logging.getLogger("prr_plugins").setLevel(logging.INFO)
    for path in sys.argv[1:]:
        move(path)
    load_plugins()
    chat = Handler("qwen3.6", OURS["qwen3.6"])
    stop = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    script = [*chat.tokenizer.encode(CALL, add_special_tokens=False), stop]
    body: dict[str, Any] = {"model": "m", "tools": TOOLS, "custom_params": {SCRIPT: script}, "prr": True}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    (whole,) = asyncio.run(chat.respond({**body, "messages": messages}))
    events = asyncio.run(chat.respond({**body, "messages": messages, "stream": True}))
    message = {k: v for k, v in whole["choices"][0]["message"].items() if k in ("role", "content", "tool_calls")}
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}]
    (second,) = asyncio.run(chat.respond({**body, "messages": messages}))

    from prr_plugins.cli import main as prr

    sys.argv = ["prr", "doctor", "--json"]
    told = io.StringIO()
    try:
        with redirect_stdout(told):
            prr()
    except SystemExit:
        pass
    result = {"lines": lines, "whole": whole, "events": events, "second": second, "doctor": json.loads(told.getvalue())}
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
