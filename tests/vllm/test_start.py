"""A server that cannot do what its flags ask for refuses to start, with one line and no traceback."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prr_testing.models import model_dir
from prr_testing.server import ServerFailed, serve

pytestmark = pytest.mark.server

BOTH = {"tool_parser": "prr_qwen3", "reasoning_parser": "prr_qwen3"}


def failed_start(log: Path, model: str = "qwen3.6", *arguments: str, **options: Any) -> str:
    """The log of a server that did not come up."""
    with pytest.raises(ServerFailed), serve(model_dir(model), *arguments, log=log, **options):
        pass
    return log.read_text()


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        slow({"tool_parser": "prr_qwen9"}, "--tool-call-parser prr_qwen9: there is no such parser; there are prr_"),
        slow(
            {"reasoning_parser": "prr_qwen9"}, "--reasoning-parser prr_qwen9: there is no such parser; there are prr_"
        ),
        ({**BOTH, "reasoning_parser": "qwen3"}, "do not go together"),
        slow(
            {**BOTH, "env": {"PRR_SPLICE": "maybe"}}, "PRR_SPLICE='maybe' is not accepted; it takes on | observe | off"
        ),
        slow({**BOTH, "env": {"PRR_STORE_BYTES": "lots"}}, "PRR_STORE_BYTES='lots' is not accepted"),
        # found once the tokenizer and the template are there
        slow({**BOTH, "model": "gpt-oss"}, "prr_qwen3 does not fit the tokenizer of"),
        slow({"tool_parser": "prr_hermes"}, "; prr_qwen3 does"),
    ],
    ids=["tool_name", "reasoning_name", "mixed", "choice", "size", "markers", "template"],
)
def test_refusals(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    log = failed_start(tmp_path / "log", **options)
    lines = [line for line in log.splitlines() if "ERROR prr-plugins" in line]
    assert len(lines) == 1
    assert says in lines[0]
    assert "Traceback" not in log


@pytest.mark.slow
def test_the_rust_front_end_is_named(tmp_path: Path) -> None:
    """It would bypass us; the binary is not part of this vLLM, so the server ends by itself."""
    log = failed_start(tmp_path / "log", **BOTH, env={"VLLM_USE_RUST_FRONTEND": "1"})
    assert "prr-plugins: VLLM_USE_RUST_FRONTEND=1" in log
