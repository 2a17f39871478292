"""The server that this folder shares, and which tests run when."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking import Chat

from prr_testing.server import Server


@pytest.fixture(scope="session")
def talk(server: Server, qwen_dir: Path) -> Chat:
    """The server with both halves, shared by the modules of this folder."""
    return Chat(server, qwen_dir)
