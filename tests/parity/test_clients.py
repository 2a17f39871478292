"""Real client packages against a real server of either engine: a tool loop, then a question, and every turn is exact.

The packages are those of tools/engines/clients.lock; each is used as its documentation shows. What is sampled is what
clients are known to stumble over: no content beside calls, parallel calls, text that is not ASCII, numbers like `1e3`.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prr_testing.chat import request_fields
from prr_testing.server import Server
from prr_testing.talk import Message, Talk, edit_tool
from prr_testing.wire import Exchange, wire

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
TENANT = uuid.uuid4().hex
TOOLS = [
    edit_tool(["path"], path="string", count="number", all="boolean", more="object"),
]


def call(**values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>"


TURNS = (
    "Hm, \n so.  \n</think>\n\n"
    + call(path="/srv/ü 漢 \\n", count="1e3")
    + call(path='a "quoted" b', count="1.0", more='{"z": [1.50, 2e-3], "ä":  null}'),
    f"</think>\n\n  Once more: …  \n\n{call(path='', all='true')}",
    "Well.</think>\n\nDone —  all\n\nof it.  ",
    "\n</think>\n\nYes.",
)


def tool_turn(results: int) -> str:
    written = "\n".join(["<tool_response>\ndone\n</tool_response>"] * results)
    return f"\n<|im_start|>user\n{written}<|im_end|>\n<|im_start|>assistant\n<think>\n"


ADDED = ("", tool_turn(2), tool_turn(1), "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n<think>\n")


@dataclass(frozen=True)
class Client:
    """name: see `prr_testing.clients`; path: the route it asks; engines: those that have it."""

    name: str
    path: str = "/v1/chat/completions"
    engines: tuple[str, ...] = ("vllm", "sglang")


CLIENTS = (
    Client("openai"),
    Client("openai-responses", "/v1/responses", ("vllm",)),
    Client("anthropic", "/v1/messages", ("vllm",)),
    Client("langchain"),
    Client("litellm"),
)


@pytest.fixture(scope="module")
def talk(server: Server, qwen_dir: Path) -> Talk:
    return Talk(server, qwen_dir)


def fields(talk: Talk, stream: bool, name: str, script: str) -> dict[str, Any]:
    """What is added to a request on its way."""
    ids = talk.ids(script)
    options = {"return_token_ids": True, "enable_response_messages": True} if talk.server.engine == "vllm" else {}
    tenant = {"cache_salt": f"{TENANT} {name} {stream}"}
    return {**request_fields(talk.server.engine, ids), **options, **tenant, "prr": True}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client(talk: Talk, client: Client, stream: bool) -> None:
    if talk.server.engine not in client.engines:
        pytest.skip(f"nothing is spliced on {client.path} of {talk.server.engine}")
    if not PYTHON.exists():
        pytest.skip("no client packages here: python tools/setup_engine.py clients")
    before = {name: talk.counter("prr_turns_total", outcome=name) for name in ("first_turn", "spliced")}
    added = [fields(talk, stream, client.name, script) for script in TURNS]
    with wire(talk.server.base_url, added) as passing:
        job = {"base_url": passing.url, "model": talk.server.model, "stream": stream, "tools": TOOLS,
               "question": "Edit.", "follow_up": "Sure?", "turns": len(TURNS)}  # fmt: skip
        done = subprocess.run(
            [PYTHON, "-W", "ignore", ROOT / "testing" / "prr_testing" / "clients.py", client.name],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=600,
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "PATH": ""},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [exchange.path for exchange in passing.exchanges] == [client.path] * len(TURNS)
    exact(talk, passing.exchanges)
    outcomes = {name: talk.counter("prr_turns_total", outcome=name) - count for name, count in before.items()}
    assert outcomes == {"first_turn": 1, "spliced": len(TURNS) - 1}


def exact(talk: Talk, exchanges: list[Exchange]) -> None:
    """Each prompt is the one before, what was sampled, and what is new."""
    turn: list[int] = []
    for exchange, script, new in zip(exchanges, TURNS, ADDED, strict=True):
        prompt_ids = _prompt_ids(exchange)
        if prompt_ids is None:  # Anthropic's route shows no ids: the counters must do
            continue
        if turn:
            assert prompt_ids == turn + talk.ids(new, stop=False)
        turn = prompt_ids + talk.ids(script)


def _prompt_ids(exchange: Exchange) -> list[int] | None:
    told = exchange.find("sglext") or {}
    response = exchange.find("response") or {}
    messages = exchange.find("input_messages") or response.get("input_messages")
    if messages:
        return list(messages[0]["tokens"])
    found: list[int] | None = told.get("input_ids") or exchange.find("prompt_token_ids")
    return found


RECORDED = Path(__file__).parent / "ai_sdk.json"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_vercels_ai_sdk(talk: Talk, stream: bool) -> None:
    """Its requests as they were recorded (tools/record_ai_sdk); only the call ids are those of today."""
    recorded = json.loads(RECORDED.read_text())["whole" if not stream else "stream"]
    names: dict[str, str] = {}
    exchanges: list[Exchange] = []
    for number, script in enumerate(TURNS):
        text = json.dumps(recorded[number]["messages"])
        for old, new in names.items():
            text = text.replace(old, new)
        messages: list[Message] = json.loads(text)
        extra = fields(talk, stream, "ai-sdk", script)
        answer = talk.ask(messages, script, stream=stream, tools=recorded[number]["tools"], extra=extra)
        assert answer.prr is not None
        assert answer.prr["outcome"] == ("spliced" if number else "first_turn"), answer.prr
        if number:
            assert answer.prompt_ids == exchanges[-1].request["turn"] + talk.ids(ADDED[number], stop=False)
        exchanges.append(Exchange("", {"turn": answer.turn}, 200, []))
        ids = [made["id"] for made in answer.message.get("tool_calls") or []]
        names |= dict(zip(recorded[number]["call_ids"], ids, strict=True))
