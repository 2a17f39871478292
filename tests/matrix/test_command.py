"""`prr matrix` around its workers: what it says, what it writes, how it exits."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_report import LOST, cell
from typer.testing import CliRunner

from prr_plugins.cli import matrix
from prr_plugins.cli.app import app


def run(monkeypatch: pytest.MonkeyPatch, cells: list[dict[str, Any]], *arguments: str) -> Any:
    def worker(engine: matrix.Engine, models: list[str]) -> Iterator[dict[str, Any]]:
        if engine == matrix.Engine.sglang:
            raise matrix.EngineFailed("its environment is not set up; run `make setup ENGINE=sglang`")
        yield {"engine": "vllm", "version": "0.32.0"}
        yield from (c for c in cells if c["model"] in models)

    monkeypatch.setattr(matrix, "_worker", worker)
    return CliRunner().invoke(app, ["matrix", *arguments], env={"COLUMNS": "200"})


CELLS = [cell("qwen3.6", "bpe_seam", "vllm", **LOST), cell("qwen3.6", "bpe_seam", "ours_vllm")]


def test_writes_the_report_and_names_what_did_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, CELLS, "--out", str(tmp_path))
    assert result.exit_code == 0
    assert "sglang did not run: its environment is not set up; run `make setup ENGINE=sglang`" in result.output
    assert "0/1  −30 tokens" in result.output
    assert {file.name for file in tmp_path.iterdir()} == {"matrix.json", "matrix.md", "matrix.html"}


def test_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, CELLS, "--json", "--out", str(tmp_path))
    report = json.loads(result.stdout)
    assert report == json.loads((tmp_path / "matrix.json").read_text())
    assert report["not_run"] == {"sglang": "its environment is not set up; run `make setup ENGINE=sglang`"}
    assert report["totals"]["ours_vllm"]["exact"] == 1


def test_a_drift_of_ours_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = [cell("qwen3.6", "bpe_seam", "ours_vllm", exact=False, kept=3)]
    result = run(monkeypatch, cells, "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "not exact: qwen3.6 bpe_seam ours_vllm: no reason" in result.output


def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, CELLS, "--engine", "sglang", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "no engine ran: sglang: its environment is not set up" in result.output
    assert not list(tmp_path.iterdir())


def test_an_unknown_model(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, CELLS, "--model", "qwen")
    assert result.exit_code == 2
    assert "accepted are qwen3.6, glm-5.1, kimi-k2.6, deepseek-v4, gpt-oss" in result.output


def test_without_the_test_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "prr_testing" else find(name))
    result = run(monkeypatch, CELLS)
    assert result.exit_code == 2
    assert "run `make matrix` there" in result.output


def test_a_worker_that_fails_says_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho \'{"engine": "vllm", "version": "1"}\'\necho "no such thing" >&2\nexit 3\n')
    python.chmod(0o755)
    monkeypatch.setattr("prr_testing.paths.CHECKOUT", tmp_path)
    said = matrix._worker(matrix.Engine.vllm, [])
    assert next(said) == {"engine": "vllm", "version": "1"}
    with pytest.raises(matrix.EngineFailed, match="ended with code 3: no such thing"):
        next(said)
    with pytest.raises(matrix.EngineFailed, match="make setup ENGINE=sglang"):
        next(matrix._worker(matrix.Engine.sglang, []))
