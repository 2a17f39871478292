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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seed_models: more servers of the seed models; only `make seed-models` runs it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "seed_models" in config.getoption("markexpr"):
        return
    extra = [item for item in items if item.get_closest_marker("seed_models")]
    config.hook.pytest_deselected(items=extra)
    items[:] = [item for item in items if item not in extra]
