"""Every `prr_*` name for both flags, and all that SGLang hangs on its own names kept for ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import Tool, ToolChoice
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.server_args import prepare_server_args

from prr_plugins.common.parsing.formats import FORMATS
from prr_plugins.sglang import detectors, startup

# Formats that this SGLang has no parser of: it does not offer them. With a row in FAMILIES a name leaves this set.
WITHOUT: set[str] = set()
OFFERED = sorted(set(FORMATS) - WITHOUT)
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "number"}}}
EDIT = [Tool(type="function", function={"name": "edit", "parameters": PARAMETERS})]
CALL = (
    "<tool_call>\n<function=edit>\n<parameter=path>\n /x \n</parameter>\n"
    "<parameter=count>\n1e3\n</parameter>\n</function>\n</tool_call>"
)


@pytest.fixture(scope="module", autouse=True)
def names() -> None:
    detectors.register_names()


def test_every_format_has_both_names() -> None:
    assert set(detectors.FAMILIES) == set(OFFERED)
    assert detectors.missing() == sorted(WITHOUT)


@pytest.mark.parametrize("name", OFFERED)
def test_the_flags_take_them(name: str) -> None:
    arguments = prepare_server_args(["--model-path", "x", "--tool-call-parser", name, "--reasoning-parser", name])
    assert (arguments.tool_call_parser, arguments.reasoning_parser) == (name, name)


def test_further_api_processes_know_every_name() -> None:
    """With `--tokenizer-worker-num` the web server starts them from the path of an application, ours."""
    code = (
        "from prr_testing import sglang_cpu; import prr_plugins.sglang.worker; import json;"
        "from sglang.srt.function_call.function_call_parser import FunctionCallParser;"
        "from sglang.srt.parser.reasoning_parser import ReasoningParser;"
        "print(json.dumps([list(FunctionCallParser.ToolCallParserEnum), list(ReasoningParser.DetectorMap)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for known in json.loads(done.stdout.splitlines()[-1]):
        assert set(OFFERED) <= set(known)


@pytest.mark.parametrize("name", OFFERED)
def test_guided_decoding_is_the_family_s_own(name: str) -> None:
    strict = [Tool(type="function", function={"name": "edit", "parameters": PARAMETERS, "strict": True})]
    for tools, choice in ((EDIT, "auto"), (strict, "auto"), (EDIT, "required"), (EDIT, {"name": "edit"})):
        wanted: Any = ToolChoice(function=choice) if isinstance(choice, dict) else choice
        ours, stock = (FunctionCallParser(tools, n) for n in (name, detectors.FAMILIES[name].tool))
        assert ours.owns_tool_format() == stock.owns_tool_format()
        assert _plain(ours.get_structure_constraint(wanted)) == _plain(stock.get_structure_constraint(wanted))


def _plain(constraint: Any) -> Any:
    if constraint is None:
        return None
    kind, value = constraint
    return kind, value.model_dump() if hasattr(value, "model_dump") else value


@pytest.mark.parametrize("name", OFFERED)
def test_the_scheduler_sees_the_same_end_of_reasoning(name: str) -> None:
    ours, stock = (
        ReasoningParser(n, stream_reasoning=False).detector for n in (name, detectors.FAMILIES[name].reasoning)
    )
    for attribute in (
        "think_start_token",
        "think_end_token",
        "think_excluded_tokens",
        "reasoning_default",
        "thinks_internally",
    ):
        assert getattr(ours, attribute) == getattr(stock, attribute)
    assert isinstance(ours, type(stock))


def test_a_name_counts_as_sglang_s_own() -> None:
    name = startup.ParserName("prr_glm", "glm47")
    assert name == "glm47"
    assert name == "prr_glm"
    assert name != "kimi_k2"
    assert FunctionCallParser.ToolCallParserEnum[name] is FunctionCallParser.ToolCallParserEnum["prr_glm"]


# ---------------------------------------------------------------------------------------- detectors by themselves


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_tool_detector_streams_as_it_parses(size: int) -> None:
    text = f"Before.\n\n{CALL}\nbetween{CALL.replace('1e3', '2')} after"
    content, calls = FunctionCallParser(EDIT, "prr_qwen3").parse_non_stream(text)
    assert [(c.name, c.parameters) for c in calls] == [
        ("edit", '{"path": " /x ", "count": 1e3}'),
        ("edit", '{"path": " /x ", "count": 2}'),
    ]
    parser = FunctionCallParser(EDIT, "prr_qwen3")
    streamed = ""
    arguments: dict[int, str] = {}
    steps = [parser.parse_stream_chunk(text[at : at + size]) for at in range(0, len(text), size)]
    for normal, items in [*steps, parser.parse_stream_end()]:
        streamed += normal
        for item in items:
            arguments[item.tool_index] = arguments.get(item.tool_index, "") + item.parameters
    assert streamed == content
    assert list(arguments.values()) == [c.parameters for c in calls]
    assert parser.detector.incomplete_tool_call_indices == set()


def test_a_cut_call_is_not_dropped() -> None:
    text = f"Before.{CALL[:-30]}"
    parser = FunctionCallParser(EDIT, "prr_qwen3")
    assert not parser.has_tool_call(text)
    assert parser.parse_non_stream(text) == (text, [])
    streaming = FunctionCallParser(EDIT, "prr_qwen3")
    streaming.parse_stream_chunk(text)
    streaming.parse_stream_end()
    assert streaming.detector.incomplete_tool_call_indices == {0}


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("forced", "text", "reasoning", "content"),
    [
        (True, " so \n\n</think>\n\n\nok ", " so \n", "\nok "),
        (True, "so", "so", ""),
        (False, "plain </think> text", "", "plain </think> text"),
        (False, "<think>\nso\n</think>\n\nok", "so", "ok"),
    ],
)
def test_a_reasoning_detector_streams_as_it_parses(
    forced: bool, text: str, reasoning: str, content: str, size: int
) -> None:
    assert ReasoningParser("prr_qwen3", force_reasoning=forced).parse_non_stream(text) == (reasoning, content)
    parser = ReasoningParser("prr_qwen3", force_reasoning=forced)
    steps = [parser.parse_stream_chunk(text[at : at + size]) for at in range(0, len(text), size)]
    steps.append(parser.parse_stream_end())
    assert ("".join(r or "" for r, _ in steps), "".join(n or "" for _, n in steps)) == (reasoning, content)


def test_reasoning_alone_may_be_the_answer() -> None:
    """SGLang's `force_nonempty_content`."""
    detector = ReasoningParser.DetectorMap["prr_qwen3"](force_reasoning=True, force_nonempty_content=True)
    result = detector.detect_and_parse("all of it")
    assert (result.normal_text, result.reasoning_text) == ("all of it", "")


@pytest.mark.parametrize(
    ("tool", "reasoning", "says"),
    [("prr_qwen3", "qwen3", "do not go together"), ("prr_qwen3", "prr_glm", "do not go together")],
)
def test_names_that_do_not_go_together(tool: str, reasoning: str, says: str) -> None:
    with pytest.raises(startup.StartupError, match=says):
        startup.chosen_format(tool, reasoning)
    assert startup.chosen_format("qwen3_coder", "qwen3") is None
