"""Fixtures that more than one room of the tests uses: models, vocabularies, and one stock and one prr server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from prr_testing.models import model_dir
from prr_testing.server import Server, serve
from prr_testing.tokens import Vocabulary


@pytest.fixture(scope="session")
def qwen_dir() -> Path:
    """The folder of the Qwen3.6 model."""
    return model_dir("qwen3.6")


@pytest.fixture(scope="session")
def qwen(qwen_dir: Path) -> Vocabulary:
    """The vocabulary of Qwen3.6; its `.tokenizer` is the `AutoTokenizer`."""
    return Vocabulary(AutoTokenizer.from_pretrained(qwen_dir))


@pytest.fixture(scope="session")
def stock_server(qwen_dir: Path) -> Iterator[Server]:
    """Qwen3.6 with vLLM's own parsers and no plugin at all."""
    with serve(qwen_dir, tool_parser="qwen3_xml", reasoning_parser="qwen3", plugins="") as server:
        yield server


@pytest.fixture(scope="session")
def server(qwen_dir: Path) -> Iterator[Server]:
    """Qwen3.6 with `prr_qwen3` for both parser flags."""
    env = {"PRR_ADMIN": "1", "PRR_TENANT_HEADER": "X-Tenant"}
    with serve(qwen_dir, tool_parser="prr_qwen3", reasoning_parser="prr_qwen3", env=env) as running:
        yield running
