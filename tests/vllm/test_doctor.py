"""`prr doctor` says what a start would say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prr_plugins.vllm.hooks import ROWS
from prr_testing.models import model_dir

pytestmark = pytest.mark.server  # it imports vLLM


def doctor(*arguments: str | Path, **env: str) -> tuple[int, dict[str, Any]]:
    command = [
        sys.executable,
        "-c",
        "from prr_plugins.cli import main; main()",
        "doctor",
        "--json",
        *map(str, arguments),
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PRR_", "VLLM_"))}
    done = subprocess.run(command, env={**kept, **env}, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_all_well() -> None:
    code, report = doctor(model_dir("qwen3.6"), "--tool-call-parser", "prr_qwen3", "--reasoning-parser", "prr_qwen3")
    assert code == 0, report
    assert report["level"] == "ok"
    hooks = [f["check"].removeprefix("hook ") for f in report["findings"] if f["check"].startswith("hook ")]
    assert hooks == [hook.name for hook in ROWS]
    assert {"tokenizer", "template", "plugin", "settings"} <= {f["check"] for f in report["findings"]}


def test_no_parser_of_ours_is_said() -> None:
    code, report = doctor("/no/such/model", "--tool-call-parser", "qwen3_xml")
    assert code == 1
    assert "nothing of '/no/such/model' was checked" in report["findings"][-1]["detail"]
    code, report = doctor()
    assert code == 0
    assert "no prr_* parser is chosen" in report["findings"][-1]["detail"]


def test_the_rust_front_end_is_a_warning() -> None:
    code, report = doctor(VLLM_USE_RUST_FRONTEND="1")
    assert code == 1
    assert "Rust" in next(f["detail"] for f in report["findings"] if f["level"] == "warning")


def test_a_shared_store_that_is_not_there_is_a_warning_without_its_password() -> None:
    code, report = doctor(PRR_STORE_URL="redis://prr:s3cret@127.0.0.1:1/0", PRR_STORE_KEY="ab" * 32)
    assert code == 1
    (found,) = [f for f in report["findings"] if f["check"] == "store"]
    assert found["level"] == "warning"
    assert "unreachable" in found["detail"]
    assert "s3cret" not in str(report)
    assert "abab" not in str(report)


def test_a_plugin_left_out_is_an_error() -> None:
    code, report = doctor(VLLM_PLUGINS="")
    assert code == 2
    assert "VLLM_PLUGINS" in next(f["detail"] for f in report["findings"] if f["level"] == "error")


def test_a_wrong_parser_is_an_error() -> None:
    code, report = doctor(model_dir("qwen3.6"), "--tool-call-parser", "prr_hermes")
    assert code == 2
    assert "prr_qwen3 does" in report["findings"][-1]["detail"]


@pytest.mark.parametrize("files", [None, {"tokenizer.json": "{}"}, {"tokenizer.json": "{", "config.json": "{}"}])
def test_a_tokenizer_that_cannot_be_read(files: dict[str, str] | None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    code, report = doctor(folder, "--tool-call-parser", "prr_qwen3", "--reasoning-parser", "prr_qwen3")
    assert code == 2
    [found] = [f for f in report["findings"] if f["level"] == "error"]
    assert found["check"] == "tokenizer"
    assert str(folder) in found["detail"]
    assert "\n" not in found["detail"]
