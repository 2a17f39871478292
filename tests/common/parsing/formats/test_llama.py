"""`prr_llama`: JSON calls of Llama 3 and Python lists of Llama 4, told from answers that look like them."""

from __future__ import annotations

from typing import Any

import pytest

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.stream_parser import StreamParser
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_llama"
FIND = tool("find", q="string", n="integer", opts="object")
NOW = tool("now")


def llama(text: str, **expected: Any) -> ParsedCompletion:
    return check(FORMAT, text, **{"tools": [FIND, NOW], **expected})


# ------------------------------------------------------------------------------------ Llama 3


@pytest.mark.parametrize("key", ["parameters", "arguments"])
@pytest.mark.parametrize("tag", ["", "<|python_tag|>", "<|python_tag|>\n"])
def test_json_call(key: str, tag: str) -> None:
    result = llama(
        f'{tag}{{"name": "find", "{key}": {{"q": "a {{b}} \\"c\\"", "n": 1.0}}}}', content=None, statuses=["ok"],
        calls=[("find", '{"q": "a {b} \\"c\\"", "n": 1.0}')],
    )  # fmt: skip
    assert result.parsed_tool_calls[0].raw_arguments == result.parsed_tool_calls[0].arguments


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "function", "name": "find", "parameters": {"q": "x"}}',
        '{"parameters": {"q": "x"}, "name": "find"}',
        '{\n  "name": "find",\n  "parameters": {"q": "x"}\n}',
        '\n\n{"name": "find", "parameters": {"q": "x"}}\n',
        '{"id": "1", "type": "function", "name": "find", "arguments": {"q": "x"}}',
        '[{"name": "find", "parameters": {"q": "x"}}]',
    ],
)
def test_spellings_of_a_json_call(text: str) -> None:
    llama(text, calls=[("find", {"q": "x"})], statuses=["ok"], content=None)


@pytest.mark.parametrize("separator", ["; ", ";", "\n", "", ", ", ";\n<|python_tag|>"])
def test_parallel_json_calls(separator: str) -> None:
    call = '{"name": "find", "parameters": {"q": "x;{y"}}'
    llama(separator.join([call] * 3), calls=[("find", {"q": "x;{y"})] * 3, content=None)


@pytest.mark.parametrize("content", [None, "Let me look.", "two\nlines {"])
@pytest.mark.parametrize("many", [1, 2])
def test_content_and_calls_as_the_template_of_llama_4_writes_them(content: str | None, many: int) -> None:
    call = '{"name": "find", "parameters": {"q": "<|python_end|>"}}'
    llama(
        f"<|python_start|>{content or ''}<|python_end|>{call * many}", content=content,
        calls=[("find", {"q": "<|python_end|>"})] * many, statuses=["ok"] * many,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["a <|python_end|>", "a <|python_end|> b", "a <|python_end|>{}"])
def test_a_closer_with_no_call_behind_it_is_text(text: str) -> None:
    llama(text, content=text, calls=[])


def test_list_of_json_calls() -> None:
    llama(
        '[{"name": "find", "parameters": {"n": 1}}, {"name": "now", "parameters": {}}]', content=None,
        calls=[("find", {"n": 1}), ("now", {})],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("{'name': 'find', 'parameters': {'q': 'x'}}", {"q": "x"}),
        ('{"name": "find", "parameters": {"q": "x",}}', {"q": "x"}),
        ('{"name": "find", "parameters": "{\\"q\\": \\"x\\"}"}', {"q": "x"}),
        ('{"name": "find", "parameters": null}', {}),
        ('{"name": "find"}', {}),
    ],
)
def test_repaired_json_calls(text: str, arguments: dict[str, str]) -> None:
    llama(text, calls=[("find", arguments)], statuses=["repaired"], content=None)


def test_only_the_last_brace_is_missing() -> None:
    text = '{"name": "find", "parameters": {"q": "x"}'
    assert llama(text, calls=[("find", {"q": "x"})], content=None).parsed_tool_calls[0].flags == ("missing_closer",)
    llama(text, finish_reason="length", calls=[], incomplete=["find"], content=None)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": 1} is a dict',
        '{"name": "Ann", "age": 3}',
        '{"name": "Ann"}',
        '{"parameters": {}}',
        '{"capital": "Oslo"}',
        '[{"name": "Ann", "age": 3}]',
        "[1, 2, 3]",
        '["find"]',
        "[find]",
        "[find(1)]",
        "[link](https://example.org)",
        'Like so: {"name": "find", "parameters": {"q": "x"}}',
        'A schema:\n{"name": "other", "parameters": {"type": "object"}}',
        "The tag <|python_tag|> begins a call.",
        "Plain text\n{ and\n[ more",
    ],
)
def test_answers_are_content(text: str) -> None:
    llama(text, content=text, calls=[])


def test_text_before_a_call() -> None:
    """Without a tag it takes a line's start and the name of an offered tool."""
    call = '{"name": "find", "parameters": {"q": "x"}}'
    llama(f"Wait. <|python_tag|>{call}", content="Wait. ", calls=[("find", {"q": "x"})])
    llama(f"Wait.\n{call}", content="Wait.\n", calls=[("find", {"q": "x"})])
    llama("Wait.\n[now()]", content="Wait.\n", calls=[("now", {})])
    llama(f"Wait.\n{call}", tools=None, content=f"Wait.\n{call}", calls=[])


def test_unknown_tool_at_the_beginning() -> None:
    llama('{"name": "look up", "parameters": {}}', calls=[("look up", {})], statuses=["unknown_tool"], content=None)


def test_markers_in_a_string() -> None:
    value = "<|python_tag|>{} <|eot_id|> [now()]"
    llama(f'{{"name": "find", "parameters": {{"q": "{value}"}}}}', calls=[("find", {"q": value})], content=None)
    llama(f"[find(q='{value}')]", calls=[("find", {"q": value})], content=None)


def test_interpreter_code() -> None:
    llama("<|python_tag|>import math\nprint(1)", content="import math\nprint(1)", calls=[])


def test_built_in_tool() -> None:
    llama(
        '<|python_tag|>brave_search.call(query="a, b")',
        tools=None,
        calls=[("brave_search", {"query": "a, b"})],
        content=None,
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("<|python_tag|>", None),
        ('<|python_tag|>{"na', None),
        ('{"name": "find", "par', "find"),
        ('{"name": "find", "parameters": {"q": "x', "find"),
        ("[find(", "find"),
        ("[find(q='x", "find"),
        ("[find(q='x', n=1)", "find"),
        ("<|python_start|>[find(q=['x', {'a': (", "find"),
        ("<|python_tag|>brave_search.call(query='", "brave_search"),
    ],
)
def test_cut_call(text: str, name: str | None) -> None:
    result = llama(text, finish_reason="length", calls=[], incomplete=[name], content=None)
    assert result.incomplete_calls[0].status == "incomplete"


def test_cut_second_json_call() -> None:
    first = '{"name": "find", "parameters": {"n": 1}}'
    for cut in ('; {"name": "no', '; {"name": "now", "parameters": {'):
        llama(
            first + cut,
            finish_reason="length",
            calls=[("find", {"n": 1})],
            content=None,
            incomplete=["now" if "now" in cut else None],
        )


# ------------------------------------------------------------------------------------ Llama 4


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("q='a'", '{"q": "a"}'),
        ('q="a\\n\\"b\\""', '{"q": "a\\n\\"b\\""}'),
        ("q='it\\'s', n=-1", '{"q": "it\'s", "n": -1}'),
        ("q=''", '{"q": ""}'),
        ("q='''a 'b' \"c\"\n'''", '{"q": "a \'b\' \\"c\\"\\n"}'),
        ("q='\\xZ \\u12'", '{"q": "\\\\xZ \\\\u12"}'),
        ("q=r'\\d+'", '{"q": "\\\\d+"}'),
        ("q='\\d \\x41 \\u00e9 \\U0001F600 \\101 \\0'", '{"q": "\\\\d \\u0041 \\u00e9 \U0001f600 A \\u0000"}'),
        ("q='a\nb'", '{"q": "a\\nb"}'),
        ("a=1.0, b=1e3, c=123456789012345678901234567890", '{"a": 1.0, "b": 1e3, "c": 123456789012345678901234567890}'),
        ("a=1_000, b=.5, c=5., d=+2", '{"a": 1000, "b": 0.5, "c": 5.0, "d": 2}'),
        ("e=0x1F, f=-.5e-3", '{"e": 31, "f": -0.5e-3}'),
        ("a=True, b=False, c=None", '{"a": true, "b": false, "c": null}'),
        ("a=[], b={}, c=()", '{"a": [], "b": {}, "c": []}'),
        ("a=['x', ['y', {'z': 1}],]", '{"a": ["x", ["y", {"z": 1}]]}'),
        ("b={'k': (1, 2), 3: 'v'}", '{"b": {"k": [1, 2], "3": "v"}}'),
        (" q = 'a' , n = 1 , ", '{"q": "a", "n": 1}'),
        ("_q='a', größe=2", '{"_q": "a", "größe": 2}'),
        ("", "{}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wrapper", ["{}", "<|python_start|>{}<|python_end|>"])
def test_python_values(written: str, value: str, wrapper: str) -> None:
    result = llama(wrapper.replace("{}", f"[find({written})]"), calls=[("find", value)], statuses=["ok"], content=None)
    assert result.parsed_tool_calls[0].raw_arguments == written


def test_parallel_python_calls() -> None:
    llama(
        '[find(q="a"),now(), find(n=2) ]', calls=[("find", {"q": "a"}), ("now", {}), ("find", {"n": 2})], content=None,
    )  # fmt: skip


def test_names_with_dots() -> None:
    llama("[files.read_all(path='a')]", tools=None, calls=[("files.read_all", {"path": "a"})], content=None)


def test_unescaped_quotes_are_repaired() -> None:
    llama("[find(q='it's Ann's')]", calls=[("find", {"q": "it's Ann's"})], statuses=["repaired"], content=None)


@pytest.mark.parametrize(
    "written", ["q=other", "q=f(1)", "q='a' + 'b'", "n=1 2", "q={'a', 'b'}", "n=007", "q='a', 'b'"]
)
def test_what_is_no_literal_is_malformed(written: str) -> None:
    """Nothing is evaluated, and nothing invented for what a variable might hold."""
    result = llama(f"[find({written})]", calls=[], incomplete=["find"], content=None)
    assert result.incomplete_calls[0].status == "malformed"


def test_a_list_is_one_expression() -> None:
    """Calls of a list that is never closed do not count, each stays visible with its own text."""
    result = llama("[find(n=1), find(q='x", finish_reason="length", calls=[], incomplete=["find", "find"], content=None)
    assert [c.raw_text for c in result.incomplete_calls] == ["[find(n=1)", "find(q='x"]
    assert [c.raw_arguments for c in result.incomplete_calls] == ["n=1", "q='x"]


def test_escaped_surrogates_stay_escaped() -> None:
    """Half a pair has no UTF-8: as a character it would fail the response."""
    llama(r"[find(q='\U0000d83d')]", calls=[("find", r'{"q": "\ud83d"}')])
    llama(r'{"name": "find", "parameters": "{\"q\": \"\ud83d\"}"}', calls=[("find", r'{"q": "\ud83d"}')])


def test_stop_tokens_in_the_text() -> None:
    llama("Bye<|eot_id|>", content="Bye")
    llama('{"name": "now", "parameters": {}}<|eom_id|>', calls=[("now", {})], content=None)
    llama("[now()]<|eot|>", calls=[("now", {})], content=None)


def test_calls_switched_off() -> None:
    text = '{"name": "now", "parameters": {}}'
    llama(text, with_tool_calls=False, content=text, calls=[])


def test_linear() -> None:
    def parse(n: int) -> None:
        for text in ('\n{"name": "find", "parameters": {' * n, "\n[find(q='" * n, "[find(a=" + "[" * n, "[find(a={" * n,
                     "<|python_tag|>{'name': " * n, "[find(q='" + "a'b " * n, "[now()," + "now()," * n):  # fmt: skip
            parser = StreamParser(FORMAT, tools=[FIND, NOW])
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 300)
