"""Handlers of SGLang in this process, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from in_process import Chat

from prr_testing.parsers import Parsers

Make = Callable[..., Chat]


@pytest.fixture(scope="session")
def made() -> dict[Any, Chat]:
    """Handlers by what they were made with: making one costs seconds."""
    return {}


@pytest.fixture
def chat_of(made: dict[Any, Chat], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes (or finds) the handler of a model; `env` holds the plugin's settings."""

    def make(
        model: str = "qwen3.6", chosen: Parsers | None = None, env: tuple[tuple[str, str], ...] = (), **flags: Any
    ) -> Chat:
        key = (model, chosen, env, tuple(sorted(flags.items())))
        if key not in made:
            for name, value in env:
                monkeypatch.setenv(name, value)
            made[key] = Chat(model, chosen, **flags)
        return made[key]

    return make
