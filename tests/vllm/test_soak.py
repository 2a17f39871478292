"""A small size of `make soak`: clients of all kinds, two API processes, a store whose turns are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prr_testing import soak
from prr_testing.redis_server import MISSING, PROGRAM

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason=MISSING),
]


def test_a_damaged_store_breaks_nothing(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    assert soak.run(300, out, faults=("corrupted",), histories=())
    figures = json.loads(out.read_text())
    assert figures["requests"] == 300
    assert figures["wrong_splices"] == figures["http_5xx"] == figures["unnamed_breaks"] == 0
    assert figures["continued"] > 100
    assert figures["exact"] > 50
    fault = figures["redis_faults"]["corrupted"]
    assert fault["requests"] > 0  # how many come in meanwhile is the machine's
    assert fault["failed_requests"] == 0
    assert fault["store_errors"].get("corrupt", 0) + fault["store_errors"].get("version", 0) > 0, "it was damaged"
