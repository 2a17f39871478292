"""`prr_deepseek_v3` and `prr_deepseek_v4`: public reports, one test each, then the kinds that they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

V3, V4 = "prr_deepseek_v3", "prr_deepseek_v4"
THINKING, CLOSED = "<｜Assistant｜><think>", "<｜Assistant｜></think>"

LOOK = tool("look", place="string", days="integer")
PING = tool("ping", host="string")
NOW = tool("now")
SAVE = tool("save", path="string", text="string")


def fenced(name: str, arguments: str, kind: str = "function") -> str:
    return f"<｜tool▁call▁begin｜>{kind}<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def plain(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def section(*calls: str, between: str = "") -> str:
    return f"<｜tool▁calls▁begin｜>{between.join(calls)}<｜tool▁calls▁end｜>"


def invoke(name: str, *parameters: tuple[str, str, str], blank: str = "") -> str:
    """A DSML call as the encoder writes it; a parameter is `(key, "true" or "false", value)`."""
    d = f"｜DSML｜{blank}"
    lines = [
        f'<{d}parameter name="{key}" string="{string}">{value}</{d}parameter>' for key, string, value in parameters
    ]
    return f'<{d}invoke name="{name}">\n' + "\n".join(lines) + f"\n</{d}invoke>"


def dsml(*calls: str, name: str = "tool_calls") -> str:
    return f"<｜DSML｜{name}>\n" + "\n".join(calls) + f"\n</｜DSML｜{name}>"


# ---------------------------------------------------------------------------------------- public reports: V3


def test_a_name_and_a_fence_behind_the_separator() -> None:
    """Rapid-MLX#795: V3's type is not a tool called `function`."""
    text = section(fenced("look", '{"place": "Turku"}'))
    check(V3, text, tools=[LOOK], calls=[("look", '{"place": "Turku"}')], content=None)


def test_a_tool_called_function_in_the_plain_layout() -> None:
    """The kind of Rapid-MLX#795: the layout shows behind the separator, not before it."""
    text = section(plain("function", '{"place": "Turku"}'), fenced("function", "{}"))
    check(V3, text, calls=[("function", {"place": "Turku"}), ("function", {})])


def test_one_delta_over_two_calls() -> None:
    """sglang#35153: names hold no markers."""
    text = section(plain("one", '{"i": 4}'), plain("two", '{"t": "u"}'))
    first, second = text.index("<｜tool▁call▁end｜>"), text.index('{"t"')
    check(
        V3, text, tools=[tool("one", i="integer"), tool("two", t="string")],
        chunks=[text[:first], text[first:second], text[second:]], calls=[("one", {"i": 4}), ("two", {"t": "u"})],
    )  # fmt: skip


def test_begin_and_end_in_one_delta() -> None:
    """vllm#48020: a short call arrives whole."""
    text = section(plain("now", "{}"))
    check(V3, text, tools=[NOW], chunks=[text], calls=[("now", "{}")], content=None)


def test_think_tags_in_pieces_of_three() -> None:
    """sglang#34458: what may still become a marker waits."""
    text = "<think>weigh it</think>fine"
    chunks = [text[i : i + 3] for i in range(0, len(text), 3)]
    for format in (V3, V4):
        check(format, text, chunks=chunks, calls=[], reasoning="weigh it", content="fine")


@pytest.mark.parametrize("format", [V3, V4])
def test_the_prompt_closed_reasoning_behind_a_tool_result(format: str) -> None:
    """sglang#17551: only the prompt's tail says whether reasoning is open."""
    tail = f"{THINKING}Let me see.</think><｜tool▁output▁begin｜>7 C<｜tool▁output▁end｜>"
    for prompt_tail in (tail, CLOSED, "<｜tool▁output▁end｜>"):
        check(format, "Cold today.", prompt_tail=prompt_tail, calls=[], content="Cold today.", reasoning=None)


# ---------------------------------------------------------------------------------------- public reports: DSML


def test_a_closer_in_two_deltas() -> None:
    """vllm#53227: a closer that has half arrived is no value."""
    text = dsml(invoke("look", ("place", "true", "Turku")))
    cut = text.index(">\n</｜DSML｜invoke>")
    chunks = [text[:cut], text[cut:]]
    check(V4, text, tools=[LOOK], chunks=chunks, calls=[("look", {"place": "Turku"})], content=None)


def test_the_string_attribute_decides() -> None:
    """vllm#41240: `string="true"` is that text whatever it looks like; the frame before a section is not content."""
    given = invoke(
        "set",
        ("code", "true", "007"),
        ("on", "false", "false"),
        ("n", "false", "98765432109876543210"),
        ("t", "true", "null"),
    )
    tools = [tool("set", code="integer", on="string", n="integer", t="string")]
    made = '{"code": "007", "on": false, "n": 98765432109876543210, "t": "null"}'
    check(V4, "1 < 2\n\n" + dsml(given), tools=tools, calls=[("set", made)], content="1 < 2", statuses=["ok"])


def test_held_text_comes_out_at_the_end() -> None:
    """vllm#41240, its variant: `<` could have begun a marker."""
    check(V4, "3 <", calls=[], content="3 <")


def test_arguments_in_one_wrapper() -> None:
    """vllm#41240: all arguments in one parameter nobody declared, as the encoder writes what is no object."""
    text = dsml(invoke("look", ("arguments", "true", '{"place": "Turku", "days": 2}')))
    result = check(V4, text, tools=[LOOK], calls=[("look", '{"place": "Turku", "days": 2}')], statuses=["repaired"])
    assert result.parsed_tool_calls[0].flags == ("unwrapped",)


@pytest.mark.parametrize(
    ("tools", "value", "made"),
    [
        ([tool("look", arguments="string")], '{"place": "Turku"}', {"arguments": '{"place": "Turku"}'}),  # declared
        ([LOOK], '{"town": "Turku"}', {"arguments": '{"town": "Turku"}'}),  # not the tool's arguments
        ([], '{"place": "Turku"}', {"arguments": '{"place": "Turku"}'}),  # nothing says that it is no parameter
    ],
)
def test_a_parameter_called_arguments(tools: list[dict[str, Any]], value: str, made: dict[str, Any]) -> None:
    """vllm#41240: `arguments` may well be a parameter."""
    check(V4, dsml(invoke("look", ("arguments", "true", value))), tools=tools, calls=[("look", made)], statuses=["ok"])
    two = invoke("look", ("arguments", "true", value), ("days", "false", "1"))
    check(V4, dsml(two), tools=tools, calls=[("look", made | {"days": 1})])


def test_two_deltas_and_an_empty_invoke() -> None:
    """sglang#35563: every call and name of a stream in two deltas."""
    empty = '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>'
    text = dsml(empty, invoke("look", ("days", "false", "-3")), name="function_calls")
    chunks = [text[:-30], text[-30:]]
    check(V4, text, tools=[NOW, LOOK], chunks=chunks, calls=[("now", "{}"), ("look", {"days": -3})], content=None)


def test_an_invoke_without_a_section() -> None:
    """sglang#40236: it is a call all the same."""
    text = invoke("ping", ("host", "true", "db7")) + "\n"
    result = check(V4, text, tools=[PING], calls=[("ping", {"host": "db7"})], content=None)
    assert result.parsed_tool_calls[0].flags == ("no_section",)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_a_section_that_never_closes(finish_reason: str) -> None:
    """sglang#40236, its variant: the whole call stands, the finish reason too."""
    text = dsml(invoke("ping", ("host", "true", "db7"))).removesuffix("\n</｜DSML｜tool_calls>")
    check(V4, text, tools=[PING], finish_reason=finish_reason, calls=[("ping", {"host": "db7"})], content=None)


def test_a_bad_sibling() -> None:
    """sglang#40236: one call that cannot be read takes no other with it."""
    bad = '<｜DSML｜invoke name="ping">\n<｜DSML｜parameter key=host>db1</｜DSML｜parameter>\n</｜DSML｜invoke>'
    text = dsml(invoke("ping", ("host", "true", "a")), bad, invoke("ping", ("host", "true", "b")))
    result = check(
        V4, text, tools=[PING], calls=[("ping", {"host": "a"}), ("ping", {"host": "b"})], incomplete=["ping"]
    )
    assert (result.incomplete_calls[0].status, result.incomplete_calls[0].raw_text) == ("malformed", bad)


def test_repeated_closers() -> None:
    """local-inference-lab/vllm#296: closers may stand twice, the text behind them is kept."""
    text = dsml(invoke("ping", ("host", "true", "db7"))) + "</｜DSML｜tool_calls></think>All good."
    check(V4, text, tools=[PING], calls=[("ping", {"host": "db7"})], content="All good.", reasoning=None)


def test_reasoning_ends_before_a_call() -> None:
    """free-claude-code#1126: one completion's views depend on nothing but itself and its prompt's tail."""
    text = "I need a list.</think>\n\n" + dsml(invoke("now"))
    check(V4, text, prompt_tail=THINKING, tools=[NOW], calls=[("now", "{}")], reasoning="I need a list.", content=None)


# ---------------------------------------------------------------------------------------- their kinds


@pytest.mark.parametrize("between", ["", "\n"])
def test_parallel_calls_in_both_layouts(between: str) -> None:
    text = "Right.\n" + section(fenced("now", "{}"), plain("look", '{"days": 1.0}'), between=between) + "\nMore."
    check(V3, text, calls=[("now", "{}"), ("look", '{"days": 1.0}')], content="Right.\n\nMore.")


def test_whitespace_is_the_models() -> None:
    """Both families write reasoning and content back as they were."""
    text = "\n why \n</think>\n\nSo. \n"
    for format in (V3, V4):
        check(format, text, prompt_tail=THINKING, reasoning="\n why \n", content="\n\nSo. \n", calls=[])


@pytest.mark.parametrize(
    ("behind", "made"),
    [
        ("look\n{}", "{}"), ("look\n```json\n\n```", "{}"), ("look```\n{}\n```", "{}"), ("look", "{}"),
        ("look\n```json\n{'days': 3,}\n```", '{"days": 3}'),
    ],
)  # fmt: skip
def test_sloppy_fences(behind: str, made: str) -> None:
    text = section(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{behind}<｜tool▁call▁end｜>")
    check(V3, text, tools=[LOOK], calls=[("look", made)], content=None)


def test_plain_arguments_in_a_fence() -> None:
    check(V3, section(plain("look", '\n```json\n{"days": 2}\n```')), calls=[("look", '{"days": 2}')], statuses=["ok"])


def test_markers_in_json_strings() -> None:
    value = json.dumps({"text": f"{section(plain('x', '{}'))} ```json </think>"}, ensure_ascii=False)
    check(V3, section(plain("save", value)), prompt_tail=CLOSED, calls=[("save", value)], content=None)
    check(V3, section(fenced("save", value)), prompt_tail=CLOSED, calls=[("save", value)], content=None)


def test_calls_in_open_reasoning() -> None:
    """Meant if nothing but closers follows to the end, else text."""
    text = "Check it." + section(plain("now", "{}"))
    result = check(V3, text, prompt_tail=THINKING, calls=[("now", "{}")], reasoning="Check it.", content=None)
    assert result.parsed_tool_calls[0].flags == ("from_reasoning",)
    check(
        V3, text + "\nHm, no.</think>No.", prompt_tail=THINKING, calls=[], reasoning=text + "\nHm, no.", content="No."
    )
    draft = 'I could write <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>save<｜tool▁sep｜>{"text": "abc'
    check(V3, draft + "</think>No.", prompt_tail=THINKING, calls=[], reasoning=draft, content="No.")
    begun = dsml(invoke("save", ("text", "true", "abc"))).split("abc")[0] + "abc"
    check(V4, begun + "</think>No.", prompt_tail=THINKING, calls=[], reasoning=begun, content="No.")


def test_a_section_in_open_reasoning() -> None:
    """Its frame is the section's there too; a repeated `<think>` is markup."""
    text = "<think>Check it.\n\n" + dsml(invoke("now"))
    for end in ("", "\n</think>", "<｜end▁of▁sentence｜>"):
        check(V4, text + end, prompt_tail=THINKING, calls=[("now", {})], reasoning="Check it.", content=None)


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_missing_call_closer(finish_reason: str) -> None:
    """The model ended its turn behind whole arguments: a call; the text was cut there: none."""
    text = "<｜tool▁calls▁begin｜>" + plain("look", '{"days": 2}').removesuffix("<｜tool▁call▁end｜>")
    stopped = finish_reason == "stop"
    result = check(
        V3, text, finish_reason=finish_reason, calls=[("look", {"days": 2})] if stopped else [],
        incomplete=[] if stopped else ["look"], content=None,
    )  # fmt: skip
    if stopped:
        assert result.parsed_tool_calls[0].flags == ("missing_closer",)


def test_a_string_that_never_ends_swallows_no_sibling() -> None:
    text = section(plain("save", '{"text": "oops}'), plain("look", '{"days": 2}'), plain("now", "{}"))
    result = check(V3, text, calls=[("look", {"days": 2}), ("now", {})], incomplete=["save"], content=None)
    assert result.incomplete_calls[0].status == "malformed"


def test_prose_about_the_markers_is_content() -> None:
    for format, text in [
        (V3, "A section opens with <｜tool▁calls▁begin｜>, a call with <｜tool▁call▁begin｜>; that is all."),
        (V4, 'Write <｜DSML｜tool_calls> first, then <｜DSML｜invoke name="x"> and so on.'),
    ]:
        check(format, text, calls=[], content=text)


def test_the_stop_token_as_text() -> None:
    for format in (V3, V4):
        check(format, "Done.<｜end▁of▁sentence｜>", calls=[], content="Done.")
        text = "It writes <｜end▁of▁sentence｜> there."
        check(format, text, calls=[], content=text)


@pytest.mark.parametrize("name", ["tool_calls", "function_calls", " calls", "toolcalls", "tool"])
def test_section_names(name: str) -> None:
    text = "Hm.\n\n" + dsml(invoke("ping", ("host", "true", " a\n"), blank=" " * (name[0] == " ")), name=name)
    check(V4, text, tools=[PING], calls=[("ping", {"host": " a\n"})], content="Hm.")


def test_a_document_about_calls_as_a_value() -> None:
    """A whole call inside a value, and closers in its text, are part of it."""
    inner = dsml(invoke("ping", ("host", "true", "db7")))
    value = f"Use </｜DSML｜parameter> so:\n\n{inner}\n\nThat is </｜DSML｜invoke> it."
    text = dsml(invoke("save", ("path", "true", "a.md"), ("text", "true", value)), invoke("now"))
    check(V4, text, tools=[SAVE, NOW], calls=[("save", {"path": "a.md", "text": value}), ("now", {})], content=None)


@pytest.mark.parametrize(
    ("values", "made", "statuses"),
    [
        ([("a", "false", ' {"k": [1e3, 1.0]} ')], '{"a": {"k": [1e3, 1.0]}}', ["ok"]),
        ([("a", "false", '"quoted"')], '{"a": "quoted"}', ["ok"]),
        ([("a", "false", "True")], '{"a": true}', ["ok"]),
        ([("a", "false", "{'k': None}")], '{"a": {"k": null}}', ["repaired"]),
        ([("a", "false", "Turku")], '{"a": "Turku"}', ["repaired"]),
        ([("a", "true", "x"), ("a", "true", "y")], '{"a": "x"}', ["repaired"]),
    ],
)
def test_values(values: Sequence[tuple[str, str, str]], made: str, statuses: list[str]) -> None:
    check(V4, dsml(invoke("f", *values)), calls=[("f", made)], statuses=statuses)


def test_without_the_attribute_the_schema_decides() -> None:
    text = dsml(invoke("look", ("place", "", "12"), ("days", "", "12"))).replace(' string=""', "")
    check(V4, text, tools=[LOOK], calls=[("look", '{"place": "12", "days": 12}')])


def test_a_json_body() -> None:
    text = dsml('<｜DSML｜invoke name="look">\n{"days": 1e1}\n</｜DSML｜invoke>')
    result = check(V4, text, tools=[LOOK], calls=[("look", '{"days": 1e1}')], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == '{"days": 1e1}'
    check(V4, text.replace("}", ""), tools=[LOOK], calls=[], incomplete=["look"], content=None)


def test_missing_dsml_closers() -> None:
    whole = invoke("save", ("path", "true", "a.md"), ("text", "true", "x"))
    for missing in ("a.md</｜DSML｜parameter>", "x</｜DSML｜parameter>", "\n</｜DSML｜invoke>"):
        text = dsml(whole.replace(missing, missing.split("<")[0].rstrip("\n")))
        result = check(V4, text, tools=[SAVE], calls=[("save", {"path": "a.md", "text": "x"})], content=None)
        assert result.parsed_tool_calls[0].flags == ("missing_closer",), missing


@pytest.mark.parametrize("cut", range(1, 12))
def test_cut_calls_are_incomplete(cut: int) -> None:
    whole = dsml(invoke("now"), invoke("save", ("path", "true", "a.md"), ("text", "true", "some text")))
    end = whole.index("save") + 10 * cut
    if end >= whole.rindex("</｜DSML｜invoke>") + len("</｜DSML｜invoke>"):
        pytest.skip("nothing is cut")
    result = check(V4, whole[:end], finish_reason="length", calls=[("now", {})], incomplete=["save"], content=None)
    assert result.incomplete_calls[0].raw_text == whole[whole.index('<｜DSML｜invoke name="save"') : end]


def test_halves_switched_off() -> None:
    text = f"Why.</think>So.{section(plain('now', '{}'))}"
    calls = section(plain("now", "{}"))
    check(V3, text, prompt_tail=THINKING, with_reasoning=False, calls=[("now", {})], content="Why.</think>So.")
    check(V3, text, prompt_tail=THINKING, with_tool_calls=False, calls=[], reasoning="Why.", content="So." + calls)
    check(V3, text, prompt_tail=THINKING, with_tool_calls=False, with_reasoning=False, calls=[], content=text)


def test_linear_time() -> None:
    def run(format: str, text: str) -> None:
        parser = StreamParser(format, tools=[SAVE])
        for i in range(0, len(text), 4):
            parser.feed(text[i : i + 4])
        parser.finish()

    assert_linear(lambda n: run(V4, dsml(invoke("save", ("text", "true", "a < b\n" * n)))), 500)
    assert_linear(lambda n: run(V3, section(plain("save", json.dumps({"text": "a\n" * n})))), 1000)
    assert_linear(lambda n: parse(V3, "<｜tool▁calls▁begin｜>" * n), 2000)
    assert_linear(lambda n: parse(V4, '<｜DSML｜tool_calls><｜DSML｜invoke name="a">' * n), 500)
    assert_linear(lambda n: parse(V3, section(*[plain("save", '{"text": "oops}')] * n)), 500)
