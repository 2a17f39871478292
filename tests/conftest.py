"""Fixtures that more than one room of the tests uses: models, vocabularies, and one stock and one prr server.

The servers are those of the engine that is installed here; the room of the other one is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prr_testing import effort  # noqa: F401 - sets hypothesis up
from prr_testing.models import model_dir
from prr_testing.real_model import RealModel, real_model
from prr_testing.server import ENGINE, STARTS, Server, serve, serve_sglang
from prr_testing.tokens import Vocabulary, load_tokenizer


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a run: what it started, what it did not try, and how to try it."""
    counts = ", ".join(f"{engine} {number}" for engine, number in STARTS.counts.items())
    if counts:
        waited = f"{STARTS.seconds:.0f} s waiting for them"
        terminalreporter.write_line(f"servers started: {STARTS.counts.total()} ({counts}), {waited}")
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        told = "; ".join(f"{number} × {reason}" for reason, number in reasons.most_common())
        terminalreporter.write_line(f"not tried: {told}")
    if slow := [item for item in terminalreporter.stats.get("deselected", []) if item.get_closest_marker("slow")]:
        terminalreporter.write_line(f"left to `make test-all`: {len(slow)}")


# what only the other engine has: its plugin, and the harness's own tests of vLLM
_OTHERS = {"vllm": ["sglang"], "sglang": ["vllm", "harness/test_server.py", "matrix/test_vllm.py"]}
collect_ignore = _OTHERS[ENGINE]


@pytest.fixture(scope="session")
def qwen_dir() -> Path:
    """The folder of the Qwen3.6 model."""
    return model_dir("qwen3.6")


@pytest.fixture(scope="session")
def qwen(qwen_dir: Path) -> Vocabulary:
    """The vocabulary of Qwen3.6; its `.tokenizer` is the `AutoTokenizer`."""
    return Vocabulary(load_tokenizer(qwen_dir))


@pytest.fixture(scope="session")
def real() -> Callable[[str], RealModel]:
    """`real("qwen3.6")`: that model's real tokenizer and template."""
    return real_model


@pytest.fixture(scope="session")
def stock_server(qwen_dir: Path) -> Iterator[Server]:
    """Qwen3.6 with the engine's own parsers and no plugin at all."""
    if ENGINE == "sglang":
        with serve_sglang(qwen_dir, tool_parser="qwen3_coder", reasoning_parser="qwen3", plugins=False) as server:
            yield server
        return
    with serve(qwen_dir, tool_parser="qwen3_xml", reasoning_parser="qwen3", plugins="") as server:
        yield server


@pytest.fixture(scope="session")
def server(qwen_dir: Path) -> Iterator[Server]:
    """Qwen3.6 with `prr_qwen3` for both parser flags."""
    env = {"PRR_ADMIN": "1", "PRR_TENANT_HEADER": "X-Tenant"}
    halves = {"tool_parser": "prr_qwen3", "reasoning_parser": "prr_qwen3"}
    if ENGINE == "sglang":
        with serve_sglang(qwen_dir, env=env, **halves) as running:
            yield running
        return
    # `previous_response_id` and the `/render` routes are vLLM's to allow
    env |= {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    with serve(qwen_dir, "--enable-scale-out", env=env, **halves) as running:
        yield running
