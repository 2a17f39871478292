"""What only a real SGLang server can show: starting, refusing to start, several API processes, and being inert."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prr_testing.chat import request_fields
from prr_testing.models import model_dir
from prr_testing.server import Server, ServerFailed, serve_sglang
from prr_testing.talk import Talk

pytestmark = pytest.mark.server

BOTH = {"tool_parser": "prr_qwen3", "reasoning_parser": "prr_qwen3"}
slow = partial(pytest.param, marks=pytest.mark.slow)
QUESTION = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        slow({"tool_parser": "prr_qwen9"}, "invalid choice: 'prr_qwen9'"),  # SGLang's own words
        (
            {**BOTH, "reasoning_parser": "qwen3"},
            "ERROR prr-plugins: --tool-call-parser prr_qwen3 and --reasoning",
        ),
        slow({**BOTH, "env": {"PRR_SPLICE": "maybe"}}, "ERROR prr-plugins: PRR_SPLICE='maybe' is not accepted"),
        # found once the tokenizer and the template are there
        slow({**BOTH, "model": "gpt-oss"}, "ERROR prr-plugins: prr_qwen3 does not fit the tokenizer of"),
        slow({"tool_parser": "prr_hermes"}, "; prr_qwen3 does"),
    ],
    ids=["name", "mixed", "setting", "markers", "template"],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    log = tmp_path / "log"
    model = model_dir(options.pop("model", "qwen3.6"))
    with pytest.raises(ServerFailed), serve_sglang(model, log=log, **options):
        pass
    lines = [line for line in log.read_text().splitlines() if says in line]
    assert len(lines) == 1


@pytest.mark.slow
def test_several_api_processes(tmp_path: Path) -> None:
    """The names are known in each; a turn is spliced where it was stored, and never wrongly."""
    folder = model_dir("qwen3.6")
    with serve_sglang(folder, "--tokenizer-worker-num", "2", log=tmp_path / "log", **BOTH) as server:
        talk = Talk(server, folder)
        outcomes = set()
        for number in range(8):
            messages = [{"role": "user", "content": f"question {number}"}]
            first = talk.ask(messages, "so\n</think>\n\n\nyes ", stream=bool(number % 2))
            assert (first.reasoning, first.content) == ("so", "\nyes ")
            second = talk.ask([*messages, first.returned(), {"role": "user", "content": "on"}], "</think>ok")
            assert second.prr is not None
            outcomes.add(second.prr["outcome"])
            if second.prr["outcome"] == "spliced":
                assert second.prompt_ids[: len(first.turn)] == first.turn
        assert outcomes <= {"spliced", "refused"}
        log = server.log_text()  # a process that took too long to start is replaced: more than two may have begun
        assert log.count("for calls and reasoning, splice on") >= log.count("Application startup complete") >= 2


def _text_field(event: dict[str, Any]) -> str | None:
    """The field of a chunk that gives nothing but more text of it."""
    choices = event["choices"]
    if len(choices) != 1 or choices[0]["finish_reason"] is not None:
        return None
    given = [name for name, value in choices[0]["delta"].items() if value is not None]
    return given[0] if given in (["content"], ["reasoning_content"]) else None


def _joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stream with neighbouring chunks of one text made one: how many tokens a chunk carries depends on timing."""
    joined: list[dict[str, Any]] = []
    for event in events:
        field = _text_field(event)
        if field and joined and _text_field(joined[-1]) == field:
            joined[-1]["choices"][0]["delta"][field] += event["choices"][0]["delta"][field]
        else:
            joined.append(event)
    return joined


def _answers(server: Server, script: list[int]) -> list[Any]:
    """Everything a server says to some requests, without what differs between any two."""
    client = server.client()
    answers = []
    for stream in (False, True):
        response = client.chat.completions.create(
            model=server.model,
            messages=QUESTION,  # type: ignore[arg-type]
            max_tokens=64,
            stream=stream,
            extra_body=request_fields("sglang", script),
        )
        parts = [part.model_dump(exclude={"id", "created", "usage"}) for part in (response if stream else [response])]  # type: ignore[union-attr]
        answers += _joined(parts) if stream else parts
    return answers


def test_stock_parsers_answer_as_without_the_package(stock_server: Server) -> None:
    folder = model_dir("qwen3.6")
    talk = Talk(stock_server, folder)
    script = talk.ids("so\n</think>\n\n\nyes  ")
    without = _answers(stock_server, script)
    with serve_sglang(folder, tool_parser="qwen3_coder", reasoning_parser="qwen3") as server:
        assert _answers(server, script) == without
        assert not [name for name, _, _ in server.metrics().samples if name.startswith("prr_")]
        assert "Executed general plugin: prr" in server.log_text()
