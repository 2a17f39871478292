"""The rooms of `common/`: what importing one brings along, seen in a fresh process. `make lint` has the whole table."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINES = ("vllm", "sglang", "torch", "transformers")


def loaded(room: str) -> set[str]:
    """The modules that are there after importing a room of `prr_plugins.common`."""
    code = f"import sys, prr_plugins.common.{room}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


ROOMS = ("parsing", "bridge", "store", "matching", "prompts", "serving")


@pytest.mark.parametrize("room", [*ROOMS, "settings", "metrics"])
def test_no_room_brings_an_engine(room: str) -> None:
    assert not loaded(room) & set(ENGINES)


@pytest.mark.parametrize("room", ["parsing", "settings", "metrics"])
def test_these_stand_alone(room: str) -> None:
    ours = {name for name in loaded(room) if name.startswith("prr_plugins.")}
    assert all(name == "prr_plugins.common" or name.startswith(f"prr_plugins.common.{room}") for name in ours)


def test_the_bridge_needs_no_parser() -> None:
    assert not any(name.startswith("prr_plugins.common.parsing") for name in loaded("bridge"))


def test_the_store_needs_no_redis() -> None:
    assert "redis" not in loaded("prompts")
