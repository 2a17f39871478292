"""An engine as far as the splicer sees it, for tests of whole conversations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prr_plugins.common.settings import Settings
from tests.common.prompts._engine import Engine


@pytest.fixture
def engine(real: Callable[[str], Any]) -> Engine:
    return Engine(real("qwen3.6"))


@pytest.fixture
def make(real: Callable[[str], Any]) -> Callable[..., Engine]:
    return lambda name="qwen3.6", **settings: Engine(real(name), Settings(**settings))
