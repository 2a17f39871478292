"""`prr_gpt_oss`: the public reports of the family, and the forms of a header that the model really writes."""

from __future__ import annotations

import pytest

from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

FORMAT = "prr_gpt_oss"
PROMPT = "<|start|>assistant"
LOOK = tool("lookup", term="string")


def harmony(text: str, **expected: object):  # type: ignore[no-untyped-def]
    expected.setdefault("prompt_tail", PROMPT)
    return check(FORMAT, text, **expected)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ public reports


def test_channel_changes_inside_a_chunk() -> None:
    """vllm-project/vllm#36011: a chunk that spans two channels must not be labelled by its last one."""
    pieces = [
        "<|channel|>analysis<|message|>The index",
        ' knows.<|end|><|start|>assistant<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"te',
        'rm":"x"}<|call|>',
    ]
    harmony(
        "".join(pieces), tools=[LOOK], chunks=pieces, reasoning="The index knows.", content=None,
        calls=[("lookup", {"term": "x"})],
    )  # fmt: skip


def test_recipient_with_hyphen_named_twice() -> None:
    """vllm-project/vllm#51977: such a header failed the request."""
    harmony(
        "<|channel|>analysis<|message|>Fetch it.<|end|><|start|>assistant to=functions.fetch-page<|channel|>commentary "
        'to=functions.fetch-page <|constrain|>json<|message|>{"page":"p7"}<|call|>',
        tools=[tool("fetch-page", page="string")],
        reasoning="Fetch it.", content=None, calls=[("fetch-page", '{"page":"p7"}')], statuses=["ok"],
    )  # fmt: skip


def test_recipient_before_the_channel() -> None:
    """vllm-project/vllm#32587: the name came out as `rows<|channel|>commentary`."""
    harmony(
        ' to=functions.rows<|channel|>commentary <|constrain|>json<|message|>{"limit":3}<|call|>',
        tools=[tool("rows", limit="integer")], reasoning=None, content=None, calls=[("rows", {"limit": 3})],
    )  # fmt: skip


def test_control_token_after_the_end() -> None:
    """vllm-project/vllm#46464: neither an exception nor a lost token."""
    harmony("<|channel|>final<|message|>ok<|return|><|message|>", content="ok", reasoning=None, calls=[])


@pytest.mark.parametrize("channel", ["finals", "final?", "answer"])
def test_mistyped_channel(channel: str) -> None:
    """ai-dynamo/frontend-crates#236: the answer of a message on an unknown channel is shown, not lost."""
    harmony(
        f"<|channel|>analysis<|message|>Quick.<|end|><|start|>assistant<|channel|>{channel}<|message|>Seven.<|return|>",
        reasoning="Quick.", content="Seven.", calls=[],
    )  # fmt: skip


def test_cut_second_call_does_not_leak() -> None:
    """ai-dynamo/dynamo#9593: no header text of a cut call in the content; the first call stands."""
    result = harmony(
        '<|channel|>commentary to=functions.one <|constrain|>json<|message|>{"n":1}<|call|><|start|>assistant'
        '<|channel|>commentary to=functions.two <|constrain|>json<|message|>{"town":"Be',
        tools=[tool("one", n="integer"), tool("two", town="string")], finish_reason="length",
        calls=[("one", {"n": 1})], incomplete=["two"], content=None, reasoning=None,
    )  # fmt: skip
    assert result.incomplete_calls[0].raw_arguments == '{"town":"Be'


def test_cut_call_is_no_call() -> None:
    """vllm-project/vllm#53269: `length` stays `length` and half a call is never a call."""
    result = harmony(
        '<|channel|>commentary to=functions.save <|constrain|>json<|message|>{"body":"abc',
        tools=[tool("save", body="string")], finish_reason="length", calls=[], incomplete=["save"], content=None,
    )  # fmt: skip
    assert result.finish_reason == "length"
    assert result.incomplete_calls[0].raw_arguments == '{"body":"abc'


@pytest.mark.parametrize("end", ["", "<|call|>", '<|call|><|start|>assistant<|channel|>final<|message|>"}'])
def test_missing_braces(end: str) -> None:
    """lmstudio-ai/lmstudio-bug-tracker#942: a call whose braces do not close is shown as incomplete, not omitted."""
    result = harmony(
        '<|channel|>commentary to=functions.plan<|constrain|>json<|message|>{"spec":{"a":{"mem":"2"}' + end,
        tools=[tool("plan", spec="object")], calls=[], incomplete=["plan"], content='"}' if '"' in end else None,
    )  # fmt: skip
    assert result.incomplete_calls[0].raw_arguments == '{"spec":{"a":{"mem":"2"}'
    assert result.incomplete_calls[0].status == "incomplete"


def test_a_string_that_never_ends_costs_only_its_own_call() -> None:
    header = "<|channel|>commentary to=functions.lookup json<|message|>"
    harmony(
        f'{header}{{"term": "a<|call|><|start|>assistant{header}{{"term": "b"}}<|call|><|start|>assistant'
        "<|channel|>final<|message|>Done",
        tools=[LOOK], calls=[("lookup", {"term": "b"})], incomplete=["lookup"], content="Done",
    )  # fmt: skip
    result = harmony(f'{header}{{"term": "a<|call|>', tools=[LOOK], calls=[], incomplete=["lookup"], content=None)
    assert result.incomplete_calls[0].raw_arguments == '{"term": "a'


def test_each_parser_has_its_own_state() -> None:
    """sgl-project/sglang#8914: the same completion parses alike again and again; a parser is for one completion."""
    for _ in range(2):
        harmony(
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            reasoning="So.", content="Yes.",
        )  # fmt: skip


def test_empty_arguments_after_reasoning() -> None:
    """vllm-project/vllm#35907 (the parser's part: reasoning and call of one turn stand side by side)."""
    harmony(
        "<|channel|>analysis<|message|>Ask b.<|end|><|start|>assistant<|channel|>commentary to=functions.b "
        "<|constrain|>json<|message|>{}<|call|>",
        tools=[tool("b")], reasoning="Ask b.", content=None, calls=[("b", {})],
    )  # fmt: skip


def test_call_on_the_analysis_channel() -> None:
    """vllm-project/vllm#28139 (the parser's part: header forms are read as they come; the raw text keeps them)."""
    text = '<|channel|>analysis to=functions.lookup code<|message|>{"term":"y"}<|call|>'
    result = harmony(text, tools=[LOOK], reasoning=None, content=None, calls=[("lookup", {"term": "y"})])
    assert result.raw_text == text


# ------------------------------------------------------------------------------------ headers


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.lookup<|channel|>commentary <|constrain|>json",
        " to=functions.lookup<|channel|>commentary<|constrain|>json",
        " to=functions.lookup<|channel|>commentary json",
        " to=functions.lookup<|channel|>commentary",
        " to=functions.lookup<|channel|>analysis<|constrain|>json",
        "<|channel|>commentary to=functions.lookup <|constrain|>json",
        "<|channel|>commentary to=functions.lookup<|constrain|>json",
        "<|channel|>commentary to=functions.lookup json",
        "<|channel|>commentary to=functions.lookup code",
        "<|channel|>commentary to=lookup <|constrain|>json",
        "<|channel|>final to=functions.lookup <|constrain|>json",
        "<|channel|>commentary  to=functions.lookup\n<|constrain|> json",
        "<|constrain|>json to=functions.lookup<|channel|>commentary",
    ],
)
def test_header_forms(header: str) -> None:
    harmony(
        header + '<|message|>{"term": "z"}', tools=[LOOK], content=None, reasoning=None,
        calls=[("lookup", '{"term": "z"}')], statuses=["ok"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("<|start|>assistant<|channel|>analysis<|message|>I ", "think.<|end|>", "think.", None),
        ("<|start|>assistant<|channel|>final<|message|>So ", "it is", None, "it is"),
        ("<|start|>assistant<|channel|>analysis", "<|message|>Hm.<|end|>", "Hm.", None),
        ("<|start|>assistant<|channel|>", "final<|message|>Ok", None, "Ok"),
        ("", "<|channel|>final<|message|>Ok", None, "Ok"),
    ],
)
def test_prompt_that_began_the_message(prompt: str, text: str, reasoning: str | None, content: str | None) -> None:
    check(FORMAT, text, prompt_tail=prompt, reasoning=reasoning, content=content, calls=[])


@pytest.mark.parametrize("cut", ["<|ch", "<|channel|>comm", "<|channel|>commentary to", "<|channel|>final <|constr"])
def test_cut_header_is_markup(cut: str) -> None:
    text = f"<|channel|>analysis<|message|>A.<|end|><|start|>assistant{cut}"
    harmony(text, finish_reason="length", reasoning="A.", content=None, calls=[])


@pytest.mark.parametrize(
    ("cut", "name"),
    [(" to=functions.loo", None), (" to=functions.lookup<|channel|>commentary", "lookup"),
     ("<|channel|>commentary to=functions.lookup <|constrain|>js", "lookup")],
)  # fmt: skip
def test_cut_header_of_a_call(cut: str, name: str | None) -> None:
    """The call is known to be there, its name only once it is whole."""
    harmony(cut, finish_reason="length", tools=[LOOK], content=None, reasoning=None, calls=[], incomplete=[name])


def test_broken_headers_show_their_text() -> None:
    harmony('<|channel|>final {"answer": 1}', content='{"answer": 1}', reasoning=None, calls=[])
    harmony(
        "<|channel|>analysis We should.<|end|><|start|>assistant<|channel|>final<|message|>Go",
        reasoning="We should.",
        content="Go",
    )
    harmony(
        "<|channel|>???<|end|><|start|>assistant<|channel|>analysis<|message|>Now.", content="???", reasoning="Now."
    )
    harmony("<|channel|>commentary to=assistant<|channel|>analysis<|message|>Now.", content=None, reasoning="Now.")
    harmony("plain text", content="plain text", reasoning=None)
    harmony("<|message|>no channel<|end|>", content="no channel", reasoning=None)


def test_message_without_end_marker() -> None:
    harmony(
        "<|channel|>analysis<|message|>Done thinking.<|channel|>final<|message|>Hi",
        reasoning="Done thinking.",
        content="Hi",
    )
    harmony("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B", reasoning="A", content="B")
    harmony("<|channel|>analysis<|message|>A<|end|>assistant<|channel|>final<|message|>B", reasoning="A", content="B")


def test_quoted_markers_are_text() -> None:
    harmony(
        "<|channel|>analysis<|message|>Not <|call|> yet, nor <|channel|>final here, nor <|start|>.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Say `<|end|>` to end.",
        reasoning="Not <|call|> yet, nor <|channel|>final here, nor <|start|>.", content="Say `<|end|>` to end.",
    )  # fmt: skip
    value = "a<|call|><|start|>assistant<|channel|>final<|message|>b"
    harmony(
        f'<|channel|>commentary to=functions.lookup<|message|>{{"term": "{value}"}}',
        tools=[LOOK], calls=[("lookup", {"term": value})], content=None,
    )  # fmt: skip


# ------------------------------------------------------------------------------------ bodies


def test_preamble_call_and_answer() -> None:
    result = harmony(
        "<|channel|>commentary<|message|>Let me see. <|end|><|start|>assistant<|channel|>commentary "
        'to=functions.lookup <|constrain|>json<|message|>{"term": "q"}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>There.",
        tools=[LOOK], content="Let me see. There.", reasoning=None, calls=[("lookup", {"term": "q"})],
    )  # fmt: skip
    assert result.parsed_tool_calls[0].raw_arguments == '{"term": "q"}'


def test_tool_that_was_not_offered() -> None:
    """A built-in tool's code is no JSON object: it stays visible as malformed. With JSON it is an unknown tool."""
    result = harmony(
        "<|channel|>commentary to=python code<|message|>print(1)",
        tools=[LOOK],
        calls=[],
        incomplete=["python"],
        content=None,
    )
    assert result.incomplete_calls[0].status == "malformed"
    harmony(
        '<|channel|>analysis to=browser.search code<|message|>{"query": "k"}', tools=[LOOK],
        calls=[("browser.search", {"query": "k"})], statuses=["unknown_tool"], content=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "arguments"),
    [('{"term": "a",}', {"term": "a"}), ("{'term': 'a'}", {"term": "a"}), ('{"term": "a\nb"}', {"term": "a\nb"}),
     ('{"term": "a"} }', {"term": "a"}), ("", {}), ("\n", {})],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "<|call|>", "<|end|>"])
def test_repaired_bodies(body: str, arguments: dict[str, str], end: str) -> None:
    harmony(
        f"<|channel|>commentary to=functions.lookup json<|message|>{body}{end}", tools=[LOOK],
        calls=[("lookup", arguments)], statuses=["repaired"], content=None,
    )  # fmt: skip


def test_halves_switched_off() -> None:
    text = (
        "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.lookup json"
        '<|message|>{"term": "t"}<|call|>'
    )
    harmony(text, with_reasoning=False, with_tool_calls=False, content=text, reasoning=None, calls=[])
    harmony(
        text, with_reasoning=False, content="<|channel|>analysis<|message|>T<|end|>", calls=[("lookup", {"term": "t"})]
    )
    harmony(text, with_tool_calls=False, reasoning="T", content=text[text.index("<|start|>") :], calls=[])
    cut = text[: text.index("<|start|>")] + "<|start|>assistant to=functions.f"
    harmony(cut, with_tool_calls=False, reasoning="T", content="<|start|>assistant to=functions.f", incomplete=[])


def test_reasoning_open() -> None:
    parser = StreamParser(FORMAT, prompt_tail=PROMPT)
    seen = []
    for piece in (
        "<|channel|>analysis<|message|>",
        "x",
        "<|end|><|start|>",
        "assistant<|channel|>final<|message|>",
        "y",
    ):
        parser.feed(piece)
        seen.append(parser.reasoning_open)
    assert seen == [True, True, False, False, False]


def test_linear() -> None:
    def parse(n: int) -> None:
        for text in ("<|channel|>" * n, "<|start|>assistant" * n, "<|end|>" * n, " to=" * n,
                     "<|channel|>analysis<|message|>" + "<|channel|>final " * n):  # fmt: skip
            parser = StreamParser(FORMAT, prompt_tail=PROMPT)
            for i in range(0, len(text), 7):
                parser.feed(text[i : i + 7])
            parser.finish()

    assert_linear(parse, 500)


def test_a_cut_call_shows_what_came_so_far() -> None:
    text = '<|channel|>commentary to=functions.put <|constrain|>json<|message|>{"path": "a", "lines": [1, 2'
    [cut] = parse("prr_gpt_oss", text, finish_reason="length").incomplete_calls
    assert cut.so_far() == {"path": "a", "lines": [1, 2]}
