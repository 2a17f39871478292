"""`prr_mistral`: the three ways in which the family writes calls, and its two ways to write reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.stream_parser import StreamParser
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_mistral"
ADD = tool("add", a="number", b="number", note="string")
NOTE = tool("note", name="string", arguments="string")


def mistral(text: str, **expected: Any) -> ParsedCompletion:
    return check(FORMAT, text, **{"prompt_tail": "[/INST]", "tools": [ADD, NOTE], **expected})


# ------------------------------------------------------------------------------------ v11 and later


def test_named_calls() -> None:
    result = mistral(
        'Sure.\n[TOOL_CALLS]add[ARGS]{"a": 1.0, "b":2}[TOOL_CALLS]note[ARGS]{}', content="Sure.\n", reasoning=None,
        calls=[("add", '{"a": 1.0, "b":2}'), ("note", "{}")], statuses=["ok", "ok"], ids=[None, None],
    )  # fmt: skip
    assert result.parsed_tool_calls[0].raw_arguments == '{"a": 1.0, "b":2}'


def test_call_ids_are_kept() -> None:
    mistral(
        '[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]000000002[ARGS]{"a": 2}',
        calls=[("add", {"a": 1}), ("add", {"a": 2})], ids=["a1b2c3d4e", "000000002"], content=None,
    )  # fmt: skip


@pytest.mark.parametrize("text", ['[TOOL_CALLS]add{"a": 1}', '[TOOL_CALLS] add [ARGS] {"a": 1}'])
def test_loose_spellings(text: str) -> None:
    mistral(text, calls=[("add", '{"a": 1}')], statuses=["ok"], content=None)


def test_keys_that_look_like_an_array_of_calls() -> None:
    mistral(
        '[TOOL_CALLS]note[ARGS]{"name": "add", "arguments": "[{\\"name\\": \\"add\\"}]"}', content=None,
        calls=[("note", {"name": "add", "arguments": '[{"name": "add"}]'})],
    )  # fmt: skip


def test_markers_in_a_string() -> None:
    text = "See [TOOL_CALLS]add[ARGS]{} and [THINK]..[/THINK] and </s>."
    mistral(f'[TOOL_CALLS]add[ARGS]{{"note": "{text}"}}', calls=[("add", {"note": text})], content=None)


def test_text_behind_a_call() -> None:
    mistral('[TOOL_CALLS]add[ARGS]{"a": 1} Done.', calls=[("add", {"a": 1})], content=" Done.")


@pytest.mark.parametrize(
    ("arguments", "value"),
    [('{"a": 1,}', {"a": 1}), ("{'note': 'x'}", {"note": "x"}), ('{"note": "a\nb"}', {"note": "a\nb"}), ("", {})],
)
def test_repaired_arguments(arguments: str, value: dict[str, Any]) -> None:
    mistral(f"[TOOL_CALLS]add[ARGS]{arguments}", calls=[("add", value)], statuses=["repaired"], content=None)
    mistral(
        f"[TOOL_CALLS]add[ARGS]{arguments}[TOOL_CALLS]add[ARGS]{{}}", calls=[("add", value), ("add", {})],
        statuses=["repaired", "ok"], content=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "finish_reason", "name", "status"),
    [
        ("[TOOL_CALLS]", "length", None, "incomplete"),
        ("[TOOL_CALLS]ad", "length", None, "incomplete"),
        ("[TOOL_CALLS]add[ARGS]", "length", "add", "incomplete"),
        ('[TOOL_CALLS]add[ARGS]{"note": "rm -rf /', "length", "add", "incomplete"),
        ('[TOOL_CALLS]add[ARGS]{"a": {"b": 1}', "stop", "add", "incomplete"),
        ("[TOOL_CALLS]add[ARGS]null", "stop", "add", "malformed"),
        ('[TOOL_CALLS]add[ARGS]{"a": b c}', "stop", "add", "malformed"),
    ],
)
def test_no_call(text: str, finish_reason: str, name: str | None, status: str) -> None:
    result = mistral(text, finish_reason=finish_reason, calls=[], incomplete=[name], content=None)
    assert result.incomplete_calls[0].status == status


def test_a_string_that_never_ends_costs_only_its_own_call() -> None:
    mistral(
        '[TOOL_CALLS]add[ARGS]{"note": "open[TOOL_CALLS]add[ARGS]{"a": 2}[TOOL_CALLS]add[ARGS]{"a": 3}',
        calls=[("add", {"a": 2}), ("add", {"a": 3})], incomplete=["add"], content=None,
    )  # fmt: skip
    mistral('[TOOL_CALLS]add[ARGS]{"a": [1[TOOL_CALLS]add[ARGS]{"a": 2}', calls=[("add", {"a": 2})], incomplete=["add"])


def test_a_mention_is_text() -> None:
    for text in ("[TOOL_CALLS] stands before a call.", "[TOOL_CALLS] not json", "[TOOL_CALLS][]", "Use [ARGS] too."):
        mistral(text, content=text, calls=[])


# ------------------------------------------------------------------------------------ v3


@pytest.mark.parametrize("space", ["", " "])
def test_array_of_calls(space: str) -> None:
    mistral(
        f'Ok[TOOL_CALLS]{space}[{{"name": "add", "arguments":{{"a": 1, "b": 2}}}}, '
        '{"arguments": {"name": "Jo", "arguments": "x"}, "name": "note"}]',
        calls=[("add", '{"a": 1, "b": 2}'), ("note", {"name": "Jo", "arguments": "x"})], content="Ok",
    )  # fmt: skip


def test_single_object() -> None:
    mistral('[TOOL_CALLS] {"name": "add", "arguments": {"a": 1}}', calls=[("add", {"a": 1})], content=None)


def test_cut_array_keeps_its_whole_calls() -> None:
    """Each object of the array is complete by itself."""
    mistral(
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "note", "arguments": {"name": "J',
        finish_reason="length", calls=[("add", {"a": 1})], incomplete=["note"], content=None,
    )  # fmt: skip


# ------------------------------------------------------------------------------------ reasoning


def test_control_tokens() -> None:
    mistral(
        '[THINK] A [TOOL_CALLS] is near.\n[/THINK]Hi.[TOOL_CALLS]add[ARGS]{"a": 1}', content="Hi.",
        reasoning=" A [TOOL_CALLS] is near.\n", calls=[("add", {"a": 1})],
    )  # fmt: skip
    mistral("[THINK]cut", finish_reason="length", reasoning="cut", content=None)
    mistral("so.[/THINK]Yes", prompt_tail="[/INST][THINK]", reasoning="so.", content="Yes")


def test_plain_text_tags() -> None:
    mistral("<think>\nA\n</think>\n\nB", reasoning="A", content="B")
    mistral("<think>A</think>B", reasoning="A", content="B")
    mistral(
        "Tags such as <think> and [THINK] are text here.",
        reasoning=None,
        content="Tags such as <think> and [THINK] are text here.",
    )


def test_calls_in_reasoning() -> None:
    draft = 'Maybe [TOOL_CALLS]add[ARGS]{"a": 1} or not'
    mistral(
        f'[THINK]{draft}[/THINK][TOOL_CALLS]add[ARGS]{{"a": 2}}',
        reasoning=draft,
        calls=[("add", {"a": 2})],
        content=None,
    )
    meant = mistral(
        '[THINK]Go. [TOOL_CALLS]add[ARGS]{"a": 1}', reasoning="Go. ", calls=[("add", {"a": 1})], content=None
    )
    assert meant.parsed_tool_calls[0].flags == ("from_reasoning",)
    broken = '[TOOL_CALLS]add[ARGS]{"note": "o'
    mistral(f"[THINK]{broken}[/THINK]No.", reasoning=broken, content="No.", calls=[])


def test_stop_token_in_the_text() -> None:
    mistral("Bye</s>", content="Bye")
    mistral('[TOOL_CALLS]add[ARGS]{"a": 1}</s>', content=None, calls=[("add", {"a": 1})])


def test_halves_switched_off() -> None:
    text = '[THINK]T[/THINK][TOOL_CALLS]add[ARGS]{"a": 1}'
    mistral(text, with_reasoning=False, with_tool_calls=False, content=text, calls=[])
    mistral(text, with_tool_calls=False, reasoning="T", content=text[len("[THINK]T[/THINK]") :], calls=[])
    mistral(text, with_reasoning=False, content="[THINK]T[/THINK]", calls=[("add", {"a": 1})])


def test_linear() -> None:
    def parse(n: int) -> None:
        for text in ("[TOOL_CALLS]" * n, "[TOOL_CALLS]add[ARGS]{" * n, '[TOOL_CALLS]add[ARGS]{"a": "' * n,
                     '[TOOL_CALLS] [{"name": ' * n, "[THINK]" * n,
                     "[THINK]" + '[TOOL_CALLS]add[ARGS]{"a": "' * n):  # fmt: skip
            parser = StreamParser(FORMAT, prompt_tail="[/INST]")
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 300)
