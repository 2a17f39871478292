"""The demo's promise on the real server: ours keeps every token of the session, however it is spelt."""

from __future__ import annotations

import sys

import pytest
from random_sessions import random_session

from prr_testing.demo.replay import ReplayError, best_hit_rate, hit_rate, replay
from prr_testing.demo.session import DEFAULT_SESSION, load, parse
from prr_testing.server import Server
from prr_testing.tokens import Vocabulary

pytestmark = pytest.mark.server


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_ours_keeps_every_token(server: Server, qwen: Vocabulary, seed: int | None) -> None:
    rows = replay(server, load(DEFAULT_SESSION), qwen, seed=seed, body={"prr": True, "cache_salt": f"demo-{seed}"})
    assert [row.figures.drift for row in rows] == [None] * len(rows)
    assert all(row.figures.prefix_exact and row.figures.text_prefix_exact for row in rows)
    assert [row.figures.cached_tokens for row in rows] == [row.figures.max_cached_tokens for row in rows]
    assert [row.outcome for row in rows] == ["first_turn", *["spliced"] * (len(rows) - 1)]
    assert hit_rate(rows) == best_hit_rate(rows)
    assert [row.finish_reason for row in rows].count("length") == 2


def test_stock_does_not(stock_server: Server, qwen: Vocabulary) -> None:
    rows = replay(stock_server, load(DEFAULT_SESSION), qwen, body={"cache_salt": "demo"})
    drifted = [row.figures for row in rows if not row.figures.prefix_exact]
    assert len(drifted) >= 8
    assert all(figures.drift and figures.kept_tokens < figures.reusable_tokens for figures in drifted)
    assert hit_rate(rows) < best_hit_rate(rows)


def test_a_run_in_which_the_engine_goes_its_own_way_is_no_evidence(
    stock_server: Server, qwen: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[replay.__module__], "script", lambda *_: [1, 2, 999_999])
    with pytest.raises(ReplayError, match="turn 1: the engine did not sample the script"):
        replay(stock_server, load(DEFAULT_SESSION), qwen)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("spelling", ["plain", "odd"])
def test_ours_keeps_every_token_of_sessions_that_nobody_wrote(
    server: Server, qwen: Vocabulary, number: int, spelling: str
) -> None:
    session, seed = parse(random_session(number)), None if spelling == "plain" else number
    rows = replay(server, session, qwen, seed=seed, body={"prr": True, "cache_salt": f"random-{number}-{spelling}"})
    assert [row.figures.drift for row in rows] == [None] * len(rows)
    assert [row.figures.cached_tokens for row in rows] == [row.figures.max_cached_tokens for row in rows]
