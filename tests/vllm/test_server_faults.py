"""A fault of ours never fails a request (L7): the answer is right, a counter names the reason, the log has one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import PARSER, Chat, call_text

from prr_testing.server import serve

pytestmark = pytest.mark.server

FAULTS = ("parse", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("capture", "store", "bridge", "splice")))
USER = [{"role": "user", "content": "go"}]


@pytest.fixture(scope="module", params=FAULTS)
def faulty(request: pytest.FixtureRequest, qwen_dir: Path) -> Iterator[tuple[str, Chat]]:
    env = {"PRR_TEST": "1", "PRR_FAULT": request.param}
    with serve(qwen_dir, tool_parser=PARSER, reasoning_parser=PARSER, env=env) as server:
        yield request.param, Chat(server, qwen_dir)


def test_requests_succeed_whatever_fails(faulty: tuple[str, Chat]) -> None:
    fault, chat = faulty
    text = f"Hm. \n</think>\n\nI will.{call_text('a', '1e3')}"
    for stream in (False, True):
        counted = chat.turns("fallback", f"error_{fault}")
        logged = _lines(chat)
        messages = [*USER, {"role": "user", "content": f"{stream=}"}]
        first = chat.ask(messages, text, stream=stream)
        assert first.token_ids == chat.ids(text)
        assert first.raw_text == text
        if fault == "parse":
            # All of it reaches the client; what came after the fault as content.
            shown = (first.message.get("reasoning") or "") + (first.message.get("content") or "")
            assert shown.endswith(text[5:])
        else:
            assert first.message["reasoning"] == "Hm. "
            assert first.calls[0][:2] == ("edit", '{"path": "a", "count": 1e3}')
            assert first.finish_reason == "tool_calls"
        following = [*messages, first.returned(), *(first.results() or [{"role": "user", "content": "on"}])]
        second = chat.ask(following, "ok</think>\n\nfine", stream=stream)
        assert second.prr["outcome"] in ("refused", "fallback")
        assert second.raw_text == "ok</think>\n\nfine"
        assert chat.turns("fallback", f"error_{fault}") > counted
        assert logged < _lines(chat) <= logged + 4  # one for each fault: two requests, each may fail in two places


def _lines(chat: Chat) -> int:
    log = chat.server.log_text()
    assert "Traceback" not in log
    return sum("failed" in line for line in log.splitlines())
