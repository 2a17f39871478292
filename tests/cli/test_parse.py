"""`prr parse`: the JSON shape, every way to split, and clear words for bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prr_plugins.cli.app import app

CALL = "<tool_call>\n<function=put>\n<parameter=n>\n1.0\n</parameter>\n</function>\n</tool_call>"
COMPLETION = f"Plan.\n</think>\n\nSure.\n\n{CALL}"
TOOLS = [{"type": "function", "function": {"name": "put", "parameters": {"properties": {"n": {"type": "number"}}}}}]


def run(*arguments: str, text: str = COMPLETION):
    return CliRunner().invoke(
        app, ["parse", "--format", "prr_qwen3", "--prompt-tail", r"<think>\n", *arguments], input=text
    )


@pytest.fixture
def tools(tmp_path: Path) -> str:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return str(tmp_path / "tools.json")


@pytest.mark.parametrize("policy", ["eager", "complete"])
@pytest.mark.parametrize("split", ["one", "char", "3", "chunks", "lengths"])
def test_every_split_gives_the_same(split: str, policy: str, tools: str, tmp_path: Path) -> None:
    if split in ("chunks", "lengths"):
        chunks = [COMPLETION[:7], COMPLETION[7:90], COMPLETION[90:]]
        path = tmp_path / "split.json"
        path.write_text(json.dumps(chunks if split == "chunks" else [len(c) for c in chunks]))
        split = str(path)
    out = run("--json", "--tools", tools, "--split", split, "--stream-arguments", policy)
    assert out.exit_code == 0
    got = json.loads(out.stdout)
    assert got["reasoning"] == "Plan."
    assert got["content"] == "Sure."
    assert got["raw_text"] == COMPLETION
    assert "".join(COMPLETION[s["start"] : s["end"]] for s in got["segments"]) == COMPLETION
    [call] = got["parsed_tool_calls"]
    assert (call["name"], call["arguments"], call["status"]) == ("put", '{"n": 1.0}', "ok")
    assert call["raw_arguments"] in COMPLETION
    assert got["stream"]["tool_calls"][0]["arguments"] == call["arguments"]


def test_a_cut_call_is_incomplete(tools: str) -> None:
    got = json.loads(run("--json", "--tools", tools, "--finish-reason", "length", text=COMPLETION[:-40]).stdout)
    assert got["parsed_tool_calls"] == []
    [cut] = got["incomplete_calls"]
    assert cut["name"] == "put"
    assert cut["raw_text"].startswith("\n\n<tool_call>")
    assert got["finish_reason"] == "length"


def test_for_a_person(tools: str) -> None:
    out = run("--tools", tools)
    assert out.exit_code == 0
    assert "put" in out.stdout
    assert "[/" not in out.stdout  # the model's text is never taken for console markup
    for kind in ("reasoning", "content", "markup", "name", "arguments"):  # no colours here: named
        assert f"│ {kind} " in out.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "prr_nope"], "accepted are: "),
        (["--split", "no-such-file"], "accepted are one, char"),
        (["--split", "0"], "at least 1 character"),
        (["--tools", "/no/such/file"], "No such file"),
    ],
)
def test_bad_input_is_named(arguments: list[str], says: str) -> None:
    out = run(*arguments)
    assert out.exit_code == 2
    assert says in out.stderr


def test_text_that_is_not_utf8() -> None:
    out = CliRunner().invoke(app, ["parse", "--format", "prr_qwen3"], input=b"ab\xff")
    assert out.exit_code == 2
    assert "not UTF-8 at byte 2" in out.stderr


def test_control_characters_are_shown_not_obeyed() -> None:
    out = CliRunner().invoke(app, ["parse", "--format", "prr_llama"], input="ab\x1b[2J")
    assert "\x1b[2J" not in out.stdout
    assert "ab␛[2J" in out.stdout
