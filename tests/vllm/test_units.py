"""The plugin's parts without a server: hooks, names, the pair of registered classes, the switch, the flags."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

import prr_plugins.vllm as plugin
from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_plugins.common.parsing.reasoning_tokens import reasoning_markers
from prr_plugins.common.serving import splice_switch
from prr_plugins.common.settings import Settings
from prr_plugins.vllm import hooks, startup
from prr_plugins.vllm.deltas import DeltaAssembler
from prr_plugins.vllm.parser import compose
from prr_plugins.vllm.standalone_parsers import PrrQwen3ReasoningParser, PrrQwen3ToolParser
from prr_plugins.vllm.turn import Choice
from prr_testing.tokens import Vocabulary

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
COMPLETION = (
    "Hm \n</think>\n\n I will. <tool_call>\n<function=f>\n<parameter=a>\n b\n</parameter>\n</function>\n</tool_call>"
)
REQUEST: Any = SimpleNamespace(
    tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="auto", include_reasoning=True
)


@pytest.fixture(autouse=True)
def _registered() -> None:
    plugin.register()


def test_every_hook_is_as_we_know_it() -> None:
    assert {state.hook.name: state.problem for state in hooks.HOOKS.states() if state.problem is not None} == {}


def test_register_may_be_called_again() -> None:
    from vllm.parser.parser_manager import ParserManager

    before = ParserManager._compose_parser.__func__
    plugin.register()
    assert ParserManager._compose_parser.__func__ is before


def test_a_hook_that_moved_is_named_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = dataclasses.replace(next(h for h in hooks.HOOKS.rows if h.name == "prompt"), parameters=("gone",))
    away = dataclasses.replace(moved, name="stream", target="vllm.nowhere:Nothing.at_all")
    monkeypatch.setattr(hooks.HOOKS, "rows", (moved, away))
    monkeypatch.setattr(hooks.HOOKS, "installed", set())
    hooks.install("compose")
    states = {state.hook.name: state for state in hooks.HOOKS.states()}
    assert not any(state.installed for state in states.values())
    assert "no longer takes gone" in (states["prompt"].problem or "")
    assert "is not there" in (states["stream"].problem or "")
    assert hooks.missing_for_splice() == ["prompt", "stream"]
    assert any("splicing" in line for line in hooks.HOOKS.warnings())


def test_a_plugin_that_cannot_load_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "install", lambda stage: 1 / 0)
    plugin.register()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_name_is_registered_for_both_flags(name: str) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    assert ToolParserManager.get_tool_parser(name).prr_format == get_format(name)
    assert ReasoningParserManager.get_reasoning_parser(name).prr_format == get_format(name)


def test_a_reasoning_parser_alone(qwen: Vocabulary) -> None:
    from vllm.reasoning import ReasoningParserManager

    parser = ReasoningParserManager.get_reasoning_parser("prr_qwen3")(qwen.tokenizer)
    prompt, ids = qwen.encode(PROMPT), qwen.encode(COMPLETION)
    # An earlier turn's end of reasoning says nothing about this one.
    spliced = [*prompt, *ids, *qwen.encode("<|im_end|>\n"), *prompt]
    assert not parser.is_reasoning_end(spliced)
    assert parser.is_reasoning_end([*spliced, *ids])
    end = qwen.added["</think>"]
    assert parser.is_reasoning_end_streaming([*spliced, end], [end])
    assert not parser.is_reasoning_end_streaming([*spliced, end, end + 1], [end + 1])
    assert parser.extract_content_ids(ids) == ids[ids.index(end) + 1 :]
    assert parser.count_reasoning_tokens(ids) == ids.index(end)
    reasoning, content = parser.extract_reasoning(COMPLETION, REQUEST)
    assert reasoning == "Hm "
    assert content == COMPLETION.partition("</think>\n\n")[2]
    assert (parser.reasoning_start_str, parser.reasoning_end_str) == ("<think>", "</think>")


def test_a_tool_parser_alone(qwen: Vocabulary) -> None:
    from vllm.tool_parsers import ToolParserManager

    made = ToolParserManager.get_tool_parser("prr_qwen3")
    found = made(qwen.tokenizer).extract_tool_calls(COMPLETION, REQUEST)
    assert found.content == COMPLETION.partition("<tool_call>")[0]
    assert [(c.function.name, c.function.arguments) for c in found.tool_calls] == [("f", '{"a": " b"}')]
    parser, assembler = made(qwen.tokenizer), DeltaAssembler()
    deltas = [parser.extract_tool_calls_streaming("", "", c, [], [], [], REQUEST) for c in COMPLETION]
    arguments = [t.function.arguments for d in deltas if d for t in d.tool_calls if t.function]
    assert "".join(a or "" for a in arguments) == '{"a": " b"}'
    assert assembler.sent.message("reasoning") == {"role": "assistant", "content": None}


@pytest.mark.parametrize("hide", [False, True])
def test_after_a_fault_the_rest_is_content(qwen: Vocabulary, hide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, in both modes, but never reasoning that is to be hidden."""
    made = compose(get_format("prr_qwen3"), PrrQwen3ReasoningParser, PrrQwen3ToolParser, ToolStrictLevel.AUTO)
    failed: list[str] = []
    faulty = SimpleNamespace(
        settings=Settings(fault="parse", test=True, stream_arguments="eager"), parse_failed=lambda: failed.append("x")
    )
    monkeypatch.setattr(made, "runtime", faulty)
    request = SimpleNamespace(**{**vars(REQUEST), "include_reasoning": not hide})
    prompt, ids = qwen.encode(PROMPT), qwen.encode(COMPLETION)
    behind = COMPLETION.partition("</think>")[2]

    whole = made(qwen.tokenizer, None)
    whole.set_prompt_token_ids(prompt)
    assert whole.parse(COMPLETION, request, True, ids) == (None, behind if hide else COMPLETION, None)

    streamed = made(qwen.tokenizer, None)
    deltas = [
        streamed.parse_delta(qwen.text_of([i]), [i], request, prompt, finished=n == len(ids) - 1)
        for n, i in enumerate(ids)
    ]
    reasoning = "".join(d.reasoning or "" for d in deltas if d)
    content = "".join(d.content or "" for d in deltas if d)
    assert (reasoning, content) == (("", behind) if hide else ("H", COMPLETION[1:]))
    assert len(failed) == 2
    assert streamed.parsed is None


def test_the_tail_of_a_prompt(qwen: Vocabulary) -> None:
    view = reasoning_markers(qwen.tokenizer, get_format("prr_qwen3"))
    assert (
        view.tail_text(qwen.encode(PROMPT + COMPLETION + "<|im_end|>\n" + PROMPT)) == "<|im_start|>assistant\n<think>\n"
    )
    assert view.tail_text(qwen.encode("no turn at all")) == "no turn at all"
    ids = qwen.encode(COMPLETION)
    assert view.reasoning_span(ids, opened=True) == (0, ids.index(qwen.added["</think>"]))
    assert view.reasoning_span(ids, opened=False) is None


def test_a_finish_reason_that_names_calls_needs_some() -> None:
    choice = Choice(0, finish_reason="stop")
    assert choice.truth("tool_calls", called=True) == "tool_calls"
    assert choice.truth("tool_calls", called=False) == "stop"
    assert Choice(0, finish_reason="length").truth("tool_calls", called=True) == "length"


def test_a_request_may_only_ask_for_less() -> None:
    server = splice_switch.Switch("observe")
    assert server.for_request(None) == "observe"
    assert server.for_request("on") == "observe"
    assert server.for_request("off") == "off"


def test_the_switch_is_one_for_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv(splice_switch.ENVIRONMENT, raising=False)
    program = (
        "import os, subprocess, sys\n"
        "from prr_plugins.common.serving.splice_switch import Switch, share\n"
        "share('observe')\n"
        "child = 'from prr_plugins.common.serving.splice_switch import Switch\\n'\n"
        'child += \'s = Switch("on"); print(s.mode); s.mode = "off"\'\n'
        "subprocess.run([sys.executable, '-c', child], check=True)\n"
        "print(Switch('on').mode)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["observe", "off"]
    assert list(tmp_path.iterdir()) == []


def test_what_the_flags_choose() -> None:
    assert startup.Chosen("hermes", "qwen3", True).format() is None
    assert startup.Chosen("prr_qwen3", None, False).format() is None
    assert startup.Chosen("prr_qwen3", None, True).format() == get_format("prr_qwen3")
    assert startup.Chosen("prr_qwen3", "prr_qwen3", False).format() == get_format("prr_qwen3")
    with pytest.raises(startup.StartupError, match="do not go together"):
        startup.Chosen("prr_qwen3", "prr_hermes", True).format()
    with pytest.raises(startup.StartupError, match="no such parser"):
        startup.Chosen("prr_qwen3", "prr_nothing", True).format()
