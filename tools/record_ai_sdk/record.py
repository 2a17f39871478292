"""Record what Vercel's AI SDK sends: `npm install` here, then `.venv/vllm/bin/python tools/record_ai_sdk/record.py`.

Drives the SDK through the conversation of tests/parity/test_clients.py on a real vLLM server and writes the messages of
each request, with the versions of the packages, to tests/parity/ai_sdk.json. Done by hand when the versions in
package.json move: the test itself needs no node.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from prr_testing.chat import request_fields
from prr_testing.models import model_dir
from prr_testing.server import serve
from prr_testing.wire import wire

HERE = Path(__file__).parent
PARITY = HERE.parents[1] / "tests" / "parity"


def main() -> None:
    sys.path.insert(0, str(PARITY))
    from test_clients import RECORDED, TOOLS, TURNS  # type: ignore[import-not-found]

    model = model_dir("qwen3.6")
    encode = AutoTokenizer.from_pretrained(model).encode
    added = [request_fields("vllm", encode(f"{turn}<|im_end|>", add_special_tokens=False)) for turn in TURNS]
    recorded: dict[str, Any] = {"packages": json.loads((HERE / "package.json").read_text())["dependencies"]}
    with serve(model, tool_parser="prr_qwen3", reasoning_parser="prr_qwen3") as server:
        for name in ("whole", "stream"):
            with wire(server.base_url, added) as passing:
                job = {"base_url": passing.url, "model": server.model, "stream": name == "stream", "tools": TOOLS,
                       "question": "Edit.", "follow_up": "Sure?", "turns": len(TURNS)}  # fmt: skip
                subprocess.run(["node", "loop.mjs"], cwd=HERE, input=json.dumps(job), text=True, check=True)
            recorded[name] = [
                {**{key: exchange.request[key] for key in ("messages", "tools")}, "call_ids": call_ids(exchange.events)}
                for exchange in passing.exchanges
            ]
    RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


def call_ids(events: list[dict[str, Any]]) -> list[str]:
    """The ids of the calls of a response or of a stream, in order."""
    messages = [choice.get("message") or choice["delta"] for event in events for choice in event["choices"]]
    return [made["id"] for message in messages for made in message.get("tool_calls") or [] if made.get("id")]


if __name__ == "__main__":
    main()
