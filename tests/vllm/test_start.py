"""A server that cannot do what its flags ask for refuses to start, with one line and no traceback."""

from __future__ import annotations

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


def refusal(name: str, says: str, **options: Any) -> Any:
    return pytest.param(options, says, id=name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        refusal(
            "tool_name",
            "--tool-call-parser prr_qwen9: there is no such parser; there are prr_",
            tool_parser="prr_qwen9",
        ),
        refusal(
            "reasoning_name",
            "--reasoning-parser prr_qwen9: there is no such parser; there are prr_",
            reasoning_parser="prr_qwen9",
        ),
        pytest.param({**BOTH, "reasoning_parser": "qwen3"}, "do not go together", id="mixed"),
        refusal(
            "choice",
            "PRR_SPLICE='maybe' is not accepted; it takes on | observe | off",
            **BOTH,
            env={"PRR_SPLICE": "maybe"},
        ),
        refusal("size", "PRR_STORE_BYTES='lots' is not accepted", **BOTH, env={"PRR_STORE_BYTES": "lots"}),
        # found once the tokenizer and the template are there
        refusal("markers", "prr_qwen3 does not fit the tokenizer of", **BOTH, model="gpt-oss"),
        refusal("template", "; prr_qwen3 does", tool_parser="prr_hermes"),
    ],
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
