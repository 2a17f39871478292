"""`prr_gemma4`: the object notation of its calls, its thought channel, and what models get wrong in them."""

from __future__ import annotations

from typing import Any

import pytest

from prr_plugins.common.parsing.completion import ParsedCompletion
from prr_plugins.common.parsing.stream_parser import StreamParser
from tests.common.parsing.formats._helpers import ANY, assert_linear, check, tool

FORMAT = "prr_gemma4"
QUIET = "<|turn>model\n<|channel>thought\n<channel|>"
THINKING = "<|turn>model\n"
Q = '<|"|>'
PUT = tool("put", path="string", text="string", n="number", tags="array", extra="object")


def gemma(text: str, **expected: Any) -> ParsedCompletion:
    return check(FORMAT, text, **{"prompt_tail": QUIET, "tools": [PUT], **expected})


def call(arguments: str, **expected: Any) -> ParsedCompletion:
    expected.setdefault("content", None)
    return gemma(f"<|tool_call>call:put{{{arguments}}}<tool_call|>", **expected)


# ------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (f"path:{Q}a b{Q}", '{"path": "a b"}'),
        (f"path:{Q}{Q}", '{"path": ""}'),
        (f"text:{Q}x,y}} ]:{{ 'q' \"r\"\\n\n\t{Q}", '{"text": "x,y} ]:{ \'q\' \\"r\\"\\\\n\\n\\t"}'),
        (f"text:{Q}1.0{Q}", '{"text": "1.0"}'),
        ("n:1e-05", '{"n": 1e-05}'),
        ("n:1.0", '{"n": 1.0}'),
        ("n:123456789012345678901234567890", '{"n": 123456789012345678901234567890}'),
        ("n:-0.5,tags:[1,2.50,[]],extra:{}", '{"n": -0.5, "tags": [1, 2.50, []], "extra": {}}'),
        ("a:true,b:false,c:null", '{"a": true, "b": false, "c": null}'),
        ("a:True,b:None", '{"a": true, "b": null}'),
        (f"two words:{{B 1:[{Q}x{Q}]}}", '{"two words": {"B 1": ["x"]}}'),
        (f"{Q}key{Q}:1", '{"key": 1}'),
        ('"key":1', '{"key": 1}'),
        ('"a:b" : 1,"\\u00e9\\n":2', '{"a:b": 1, "\\u00e9\\n": 2}'),
        (f" path : {Q}a{Q} , n : 2 ", '{"path": "a", "n": 2}'),
        (f"tags:[{Q}a{Q}, {Q}b{Q},]", '{"tags": ["a", "b"]}'),
        ('path:"a, b"', '{"path": "a, b"}'),
        ("", "{}"),
    ],
)
def test_values(written: str, value: str) -> None:
    result = call(written, calls=[("put", value)], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == f"{{{written}}}"


def test_unquoted_text_is_repaired() -> None:
    call("path:src/main.py,n:3", calls=[("put", {"path": "src/main.py", "n": 3})], statuses=["repaired"])


def test_of_two_equal_keys_the_first_stands() -> None:
    call(
        "n:1,n:[2,{a:3}],extra:{a:1,a:{b:2},c:3}",
        calls=[("put", '{"n": 1, "extra": {"a": 1, "c": 3}}')],
        statuses=["repaired"],
    )


def test_markers_in_a_text() -> None:
    quoted = f"Write <|tool_call>call:f{{a:{Q}b{Q}}}<tool_call|>, close with <channel|> and {Q}quote{Q} with marks."
    call(f"text:{Q}{quoted}{Q}", calls=[("put", {"text": quoted})])
    call(
        f"text:{Q}only <|tool_call>call:f{{ begins{Q},n:1",
        calls=[("put", {"text": "only <|tool_call>call:f{ begins", "n": 1})],
    )


def test_deep_nesting() -> None:
    deep = "[" * 300 + "]" * 300
    call(f"tags:{deep}", calls=[("put", f'{{"tags": {deep}}}')])


# ------------------------------------------------------------------------------------ calls


def test_parallel_calls_and_text_around() -> None:
    gemma(
        f"First. <|tool_call>call:put{{path:{Q}a{Q}}}<tool_call|><|tool_call>call:put{{}}<tool_call|> Then.",
        calls=[("put", {"path": "a"}), ("put", {})], content="First. Then.", reasoning=None,
    )  # fmt: skip


@pytest.mark.parametrize("opener", ["call:put{", ":put{", " call: put {", "call:put("])
def test_forms_of_the_opener(opener: str) -> None:
    closer = ")" if opener.endswith("(") else "}"
    gemma(f"<|tool_call>{opener}n:1{closer}<tool_call|>", calls=[("put", {"n": 1})], content=None, statuses=["ok"])


def test_names_with_punctuation() -> None:
    gemma("<|tool_call>call:my-tools.v2_put{}<tool_call|>", calls=[("my-tools.v2_put", {})], statuses=["unknown_tool"])


def test_extra_closers() -> None:
    call("n:1}", calls=[("put", {"n": 1})], statuses=["repaired"])


@pytest.mark.parametrize(
    ("text", "finish_reason", "name", "raw", "status"),
    [
        ("<|tool_call>", "length", None, "", "incomplete"),
        ("<|tool_call>call:pu", "length", None, "", "incomplete"),
        (f"<|tool_call>call:put{{path:{Q}a", "length", "put", f"{{path:{Q}a", "incomplete"),
        (f"<|tool_call>call:put{{path:{Q}a{Q}", "length", "put", f"{{path:{Q}a{Q}", "incomplete"),
        ("<|tool_call>call:put{n:1", "stop", "put", "{n:1", "incomplete"),
        ("<|tool_call>call:put{n:1<tool_call|>", "stop", "put", "{n:1", "incomplete"),
        ("<|tool_call>call:put{path}<tool_call|>", "stop", "put", "{path}", "malformed"),
        ("<|tool_call>call:put{tags:[1}}<tool_call|>", "stop", "put", "{tags:[1}}", "malformed"),
    ],
)
def test_no_call(text: str, finish_reason: str, name: str | None, raw: str, status: str) -> None:
    result = gemma(text, finish_reason=finish_reason, calls=[], incomplete=[name], content=None)
    assert (result.incomplete_calls[0].raw_arguments, result.incomplete_calls[0].status) == (raw, status)


def test_complete_call_before_a_cut_one() -> None:
    gemma(
        f"<|tool_call>call:put{{n:1}}<tool_call|><|tool_call>call:put{{tags:[{Q}a{Q},", finish_reason="length",
        calls=[("put", {"n": 1})], incomplete=["put"], content=None,
    )  # fmt: skip


def test_a_mention_is_text() -> None:
    text = "A call opens with <|tool_call> and a name."
    gemma(text, content=text, calls=[])
    gemma("<|tool_call>call:put no brace<tool_call|>", content="<|tool_call>call:put no brace<tool_call|>", calls=[])


# ------------------------------------------------------------------------------------ reasoning


def test_thought_channel() -> None:
    gemma(
        "<|channel>thought\nA\n\nB\n<channel|>Answer\n", prompt_tail=THINKING, reasoning="A\n\nB", content="Answer\n",
        calls=[],
    )  # fmt: skip
    gemma("<|channel>thought\nA<channel|>B", prompt_tail=THINKING, reasoning="A", content="B")
    gemma("<|channel>thought\n<channel|>B", prompt_tail=THINKING, reasoning=None, content="B")
    gemma("<|channel>thou", prompt_tail=THINKING, finish_reason="length", reasoning=None, content=ANY)


def test_prompt_left_thinking_open() -> None:
    check(
        FORMAT, "So.\n<channel|>Yes", prompt_tail="<tool_response|><|channel>thought\n", reasoning="So.", content="Yes"
    )


def test_echoed_end_of_thinking() -> None:
    gemma("<channel|>Yes", reasoning=None, content="Yes")
    gemma("The mark <channel|> ends it.", reasoning=None, content="The mark <channel|> ends it.")


def test_calls_in_open_reasoning() -> None:
    """A call that ends the reasoning is meant; one that reasoning goes on after is a draft."""
    meant = f"<|channel>thought\nDo it. <|tool_call>call:put{{path:{Q}a{Q}}}<tool_call|>"
    result = gemma(meant, prompt_tail=THINKING, reasoning="Do it.", content=None, calls=[("put", {"path": "a"})])
    assert result.parsed_tool_calls[0].flags == ("from_reasoning",)
    draft = "I could <|tool_call>call:put{n:1}<tool_call|> but no."
    gemma(
        f"<|channel>thought\n{draft}\n<channel|><|tool_call>call:put{{n:2}}<tool_call|>", prompt_tail=THINKING,
        reasoning=draft, content=None, calls=[("put", {"n": 2})],
    )  # fmt: skip
    broken = f"I could <|tool_call>call:put{{path:{Q}a"
    gemma(
        f"<|channel>thought\n{broken}\n<channel|>No.", prompt_tail=THINKING, reasoning=broken, content="No.", calls=[]
    )


def test_stop_tokens_in_the_text() -> None:
    gemma("Bye<turn|>", content="Bye", calls=[])
    gemma("<|tool_call>call:put{n:1}<tool_call|><|tool_response>", content=None, calls=[("put", {"n": 1})])


def test_halves_switched_off() -> None:
    text = "<|channel>thought\nT\n<channel|><|tool_call>call:put{n:1}<tool_call|>"
    gemma(text, prompt_tail=THINKING, with_reasoning=False, with_tool_calls=False, content=text, calls=[])
    gemma(
        text, prompt_tail=THINKING, with_tool_calls=False, reasoning="T", content=text.split("<channel|>")[1], calls=[]
    )
    gemma(
        text,
        prompt_tail=THINKING,
        with_reasoning=False,
        content=text.split("<|tool_call>")[0],
        calls=[("put", {"n": 1})],
    )


def test_linear() -> None:
    def parse(n: int) -> None:
        head = "<|tool_call>call:put{"
        for text in (head * n, head + "a:[" * n, head + "a:{" * n, head + f"a:{Q}" * n, f"{head}text:{Q}" + "ab, " * n,
                     "<|channel>thought\n" * n, head + "n:1," * n):  # fmt: skip
            parser = StreamParser(FORMAT, prompt_tail=QUIET)
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 300)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Let me look. ", "Let me look."),
        ("Let me look.  ", "Let me look.  "),  # two are no gap but text
        ("Let me ", "Let me "),
        (" ", " "),
    ],
)
def test_one_blank_behind_a_sentence_parts_it_from_the_call(text: str, content: str) -> None:
    check("prr_gemma4", text + "<|tool_call>call:now{}<tool_call|>", content=content, calls=[("now", {})])
