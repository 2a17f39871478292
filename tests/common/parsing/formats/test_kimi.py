"""`prr_kimi_k2` and `prr_kimi_k3`: public reports, one test each, then the kinds that they stand for."""

from __future__ import annotations

import json

import pytest

from prr_plugins.common.parsing.formats.kimi_k2 import tool_name
from prr_plugins.common.parsing.stream_parser import StreamParser, parse
from tests.common.parsing.formats._helpers import assert_linear, check, tool

K2, K3 = "prr_kimi_k2", "prr_kimi_k3"
OPEN = "<|im_assistant|>assistant<|im_middle|>"
THINKING, CLOSED = OPEN + "<think>", OPEN + "<think></think>"
K3_THINKING = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
K3_RESPONSE = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'

LOOK = tool("look", "place", place="string", days="integer")
LOAD = tool("load_file", path="string")
RUN = tool("run", "cmd", cmd="string")
NOW = tool("now")
SAVE = tool("save", path="string", text="string")


def one(call_id: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def tag(name: str, body: str, **attributes: str) -> str:
    given = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<|open|>{name}{given}<|sep|>{body}<|close|>{name}<|sep|>"


def xtml(name: str, *arguments: tuple[str, str, str], index: int = 1) -> str:
    """A K3 call; an argument is `(key, type, value)`."""
    body = "".join(tag("argument", value, key=key, type=type_) for key, type_, value in arguments)
    return tag("call", body, tool=name, index=str(index))


# ---------------------------------------------------------------------------------------- public reports


def test_one_delta_ends_a_call_and_begins_the_next() -> None:
    """vllm#38274: the first call's arguments are whole."""
    text = section(one("functions.save:0", '{"text":"some long words"}'), one("functions.look:1", '{"days":3}'))
    cut = text.index("words")
    check(
        K2, text, tools=[SAVE, LOOK], chunks=[text[:cut], text[cut:]], ids=["functions.save:0", "functions.look:1"],
        calls=[("save", '{"text":"some long words"}'), ("look", '{"days":3}')],
    )  # fmt: skip


def test_no_limit_to_a_section() -> None:
    """vllm#34442: 50,000 characters of text are 50,000 characters, and cost linear time."""

    def run(n: int) -> str:
        parser = StreamParser(K2, tools=[SAVE])
        for character in section(one("functions.save:0", json.dumps({"text": "z" * n}))):
            parser.feed(character)
        parser.finish()
        return parser.result.parsed_tool_calls[0].arguments

    assert json.loads(run(50_000)) == {"text": "z" * 50_000}
    assert_linear(run, 4000)


def test_a_sanitised_id() -> None:
    """exo#2282: the model imitates an id that a client rewrote; the declared names tell where the name ends."""
    text = section(one("functions_load_file_7", '{"path": "b"}'))
    check(K2, text, tools=[LOAD], calls=[("load_file", {"path": "b"})], ids=["functions_load_file_7"])


def test_calls_in_a_row() -> None:
    """vllm#24478: an id ends where it ends, and angle brackets in JSON mean nothing."""
    text = section(one("functions.look:0", '{"place":"q"}'), one("functions.look:1", '{"place":"<i>r</i>"}'))
    check(
        K2, text, tools=[LOOK], calls=[("look", {"place": "q"}), ("look", {"place": "<i>r</i>"})],
        ids=["functions.look:0", "functions.look:1"], content=None,
    )  # fmt: skip


def test_an_id_without_a_name() -> None:
    """sglang#25358: the one declared tool that takes the arguments is meant."""
    text = section(one("call00042", '{"place": "Turku"}'))
    result = check(K2, text, tools=[LOOK, RUN, NOW], calls=[("look", {"place": "Turku"})], ids=["call00042"])
    assert result.parsed_tool_calls[0].flags == ("name_inferred",)
    assert result.content is None


@pytest.mark.parametrize("tools", [[LOAD, SAVE], [RUN, NOW], []])
def test_an_id_without_a_name_that_several_or_none_would_take(tools: list[dict[str, object]]) -> None:
    """sglang#25358, its policy: nothing is guessed, and the message is not empty."""
    call = one("call00042", '{"path": "b"}')
    result = check(K2, section(call), tools=tools, calls=[], incomplete=[None], content=call)
    assert (result.incomplete_calls[0].status, result.incomplete_calls[0].raw_text) == ("malformed", call)


@pytest.mark.parametrize("call_id", ["functionsrun5", "functions.run5", "functions:run:5", "run5", "functions_run-5"])
def test_an_id_without_separators(call_id: str) -> None:
    """sglang#21377: long sessions drift from the id's form."""
    text = section(one(call_id, '{"cmd": "pwd"}'))
    check(K2, text, tools=[RUN], calls=[("run", {"cmd": "pwd"})], ids=[call_id], statuses=["ok"])


def test_json_is_passed_on_as_it_stands() -> None:
    """vllm#49316, its policy: no coercion to the schema's type, in neither mode."""
    text = section(one("functions.look:0", '{"days": "5"}'))
    result = check(K2, text, tools=[LOOK], calls=[("look", '{"days": "5"}')], ids=["functions.look:0"])
    assert result.parsed_tool_calls[0].raw_arguments == '{"days": "5"}'


def test_hyphens_in_a_name() -> None:
    """vllm#22149: names are the client's."""
    text = section(one("functions.my-host__list-all:0", '{"u":"w"}'))
    check(K2, text, tools=[tool("my-host__list-all", u="string")], calls=[("my-host__list-all", {"u": "w"})])


def test_no_thinking_marker_anywhere() -> None:
    """privatemode-public#7: without a marker in prompt or text there is nothing to tell reasoning by."""
    text = "Six times eight is 48. So: 48"
    check(K2, text, prompt_tail=OPEN, calls=[], content=text, reasoning=None)


def test_reasoning_that_the_prompt_opened() -> None:
    """dynamo#9227: the text is given with its special tokens."""
    check(K2, "A short plan.</think>Hi.", prompt_tail=THINKING, calls=[], reasoning="A short plan.", content="Hi.")


def test_ids_are_kept() -> None:
    """Kimi-K2#128: the id as generated is there to be put back."""
    text = "Plan.</think>" + section(one("functions.load_file:3", '{"path": "b"}'))
    check(
        K2, text, prompt_tail=THINKING, tools=[LOAD], ids=["functions.load_file:3"], reasoning="Plan.", content=None,
        calls=[("load_file", {"path": "b"})],
    )  # fmt: skip


def test_raw_stands_next_to_parsed() -> None:
    """vllm#29549: an empty completion too has its raw text."""
    result = check(K2, "", calls=[], content=None, reasoning=None)
    assert result.raw_text == ""


# ---------------------------------------------------------------------------------------- K2: their kinds


def test_tool_name() -> None:
    tools = {name: {} for name in ("run", "run5", "my.tool")}
    for call_id, name in [
        ("functions.run:0", "run"), ("functions.run5:0", "run5"), ("functions.run5", "run5"), ("functions.run6", "run"),
        ("functions_my_tool_2", "my.tool"), ("functions.my.tool:2", "my.tool"), ("functions.:0", None),
        ("functions.other:1", "other"), ("call_1", None), ("", None), ("functions.", None), (":3", None),
    ]:  # fmt: skip
        assert tool_name(call_id, tools) == name, call_id
    assert tool_name("other:1", {}) == "other"


def test_undeclared_names_are_unknown_tools() -> None:
    text = section(one("functions.fetch:0", "{}"))
    check(K2, text, tools=[NOW], calls=[("fetch", "{}")], statuses=["unknown_tool"])


def test_arguments_that_take_types_into_account() -> None:
    tools = [tool("a", v="integer"), tool("b", v="string")]
    check(K2, section(one("toolu_01", '{"v": 1}')), tools=tools, calls=[("a", {"v": 1})])
    check(K2, section(one("toolu_01", '{"v": "1"}')), tools=tools, calls=[("b", {"v": "1"})])


def test_an_unnamed_call_next_to_others() -> None:
    bad = one("x1", '{"q": 1}')
    text = "Go. " + section(one("functions.now:0", "{}"), bad, one("functions.now:1", "{}")) + " End."
    check(K2, text, tools=[NOW], calls=[("now", {})] * 2, incomplete=[None], content=f"Go. {bad} End.")


def test_an_unnamed_call_that_was_cut() -> None:
    text = section(one("x1", '{"place": "Tu')).split("<|tool_call_end|>")[0]
    check(K2, text, tools=[LOOK], finish_reason="length", calls=[], incomplete=[None], content=None)


def test_whitespace_is_the_models() -> None:
    text = "\n why \n</think>\n So. \n" + section(one("functions.now:0", "{}")) + "\nBye \n"
    check(K2, text, prompt_tail=THINKING, reasoning="\n why \n", content="\n So. \n\nBye \n", calls=[("now", {})])


def test_blanks_around_the_id_are_no_part_of_it() -> None:
    text = section(one("\n functions.now:0 \n", "\n{}\n"))
    result = check(K2, text, calls=[("now", "{}")], ids=["functions.now:0"], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == "{}"


def test_noise_in_a_section_is_no_content() -> None:
    text = f"Go. <|tool_calls_section_begin|> well {one('functions.now:0', '{}')} so<|tool_calls_section_end|>."
    check(K2, text, calls=[("now", {})], content="Go. .")


def test_a_section_left_for_prose() -> None:
    text = "<|tool_calls_section_begin|>" + one("functions.now:0", "{}") + "\nI wait for the result."
    check(K2, text, calls=[("now", {})], content="\nI wait for the result.")


def test_a_call_without_a_section() -> None:
    text = f"Go. {one('functions.now:0', '{}')} and {one('functions.now:1', '{}')} too"
    result = check(K2, text, calls=[("now", {})] * 2, content="Go.  and  too")
    assert all(c.flags == ("no_section",) for c in result.parsed_tool_calls)


def test_missing_separators_and_arguments() -> None:
    result = check(
        K2,
        section(one("functions.look:0", '{"days": 1}').replace("<|tool_call_argument_begin|>", "")),
        calls=[("look", {"days": 1})],
    )
    assert result.parsed_tool_calls[0].flags == ("missing_separator",)
    result = check(K2, section(one("functions.now:0", "")), calls=[("now", "{}")], statuses=["repaired"])
    assert result.parsed_tool_calls[0].flags == ("no_arguments",)


def test_missing_closers() -> None:
    call = one("functions.now:0", "{}").removesuffix("<|tool_call_end|>")
    for text in (section(call, one("functions.now:1", "{}")), section(one("functions.now:1", "{}"), call)):
        result = check(K2, text, calls=[("now", {})] * 2, content=None)
        assert sorted(c.flags for c in result.parsed_tool_calls) == [(), ("missing_closer",)]
    check(K2, "<|tool_calls_section_begin|>" + call, calls=[("now", {})], content=None)
    check(K2, "<|tool_calls_section_begin|>" + call, finish_reason="length", calls=[], incomplete=["now"])


def test_broken_json() -> None:
    good = one("functions.look:1", '{"days": 2}')
    for bad, status in [
        ('{"days": 2', "malformed"),
        ('{"days": "2}', "malformed"),
        ('"a"', "malformed"),
        ("[1]", "malformed"),
    ]:
        result = check(
            K2, section(one("functions.look:0", bad), good), calls=[("look", {"days": 2})], incomplete=["look"]
        )
        assert result.incomplete_calls[0].status == status
        assert result.incomplete_calls[0].raw_arguments == bad
        assert result.content is None
    for odd, made in [
        ("{'days': 2,}", '{"days": 2}'),
        ('{"place": "a\nb"}', '{"place": "a\\nb"}'),
        ('{"days": 2}}', '{"days": 2}'),
    ]:
        check(K2, section(one("functions.look:0", odd)), calls=[("look", made)], statuses=["repaired"])


@pytest.mark.parametrize("stop", ["", "<|im_end|>"])
def test_calls_in_open_reasoning(stop: str) -> None:
    """Meant if nothing but closers follows to the end, else text."""
    calls = section(one("functions.now:0", "{}"))
    for text in ("Look." + calls, "Look." + calls + "</think>"):
        result = check(K2, text + stop, prompt_tail=THINKING, calls=[("now", {})], reasoning="Look.", content=None)
        assert result.parsed_tool_calls[0].flags == ("from_reasoning",)
    text = f"Look.{calls} Or not."
    check(K2, text, prompt_tail=THINKING, calls=[], reasoning=text, content=None)
    check(K2, f"{text}</think>{calls}", prompt_tail=THINKING, calls=[("now", {})], reasoning=text, content=None)


def test_think_tags_and_markers_as_text() -> None:
    text = "Between <think> and </think> it thinks; <|tool_calls_section_begin|> opens calls, <|im_end|> ends."
    check(K2, text, prompt_tail=CLOSED, calls=[], content=text, reasoning=None)
    check(K2, "</think>Hi.<|im_end|>", prompt_tail=CLOSED, calls=[], content="Hi.", reasoning=None)


# ---------------------------------------------------------------------------------------- K3


def test_k3_message() -> None:
    text = (
        "Why.<|close|>think<|sep|>" + tag("response", " So.\n") + tag("tools", xtml("save", ("text", "string", " 1\n")))
        + "<|close|>message<|sep|><|end_of_msg|>"
    )  # fmt: skip
    check(K3, text, prompt_tail=K3_THINKING, reasoning="Why.", content=" So.\n", calls=[("save", {"text": " 1\n"})])
    check(K3, text[len("Why.<|close|>think<|sep|>") :], prompt_tail=K3_THINKING, reasoning=None, content=" So.\n")


def test_k3_types() -> None:
    given = xtml(
        "f", ("s", "string", "01"), ("n", "number", "1e3"), ("b", "boolean", "true"), ("z", "null", "null"),
        ("a", "array", '["x", 1.0]'), ("o", "object", '{"k": "\\u00e9"}'),
    )  # fmt: skip
    made = '{"s": "01", "n": 1e3, "b": true, "z": null, "a": ["x", 1.0], "o": {"k": "\\u00e9"}}'
    check(K3, tag("tools", given), prompt_tail=K3_RESPONSE, calls=[("f", made)], statuses=["ok"])


def test_k3_arguments_as_one_object_without_tags() -> None:
    made = '{"text": "<|close|>call<|sep|>", "n": 1e0}'
    text = tag("tools", f'<|open|>call tool="f" index="1"<|sep|>{made}<|close|>call<|sep|>')
    result = check(K3, text, calls=[("f", made)], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == made


def test_k3_attributes_are_escaped_and_bodies_are_not() -> None:
    text = tag("tools", xtml("a&amp;b", ("say &quot;x&quot;", "string", "fish & &amp; chips")))
    check(K3, text, calls=[("a&b", {'say "x"': "fish & &amp; chips"})])


def test_k3_tags_in_bodies() -> None:
    """Only the place tells a tag from text about it."""
    inner = tag("tools", xtml("now"))
    value = f"It ends with <|close|>argument<|sep|> and <|close|>call<|sep|>, so: {inner} fine."
    text = tag("response", "A <|close|>response<|sep|> closes.") + tag("tools", xtml("save", ("text", "string", value)))
    check(
        K3, text, prompt_tail=K3_THINKING, calls=[("save", {"text": value})], reasoning=None,
        content="A <|close|>response<|sep|> closes.",
    )  # fmt: skip


def test_k3_json_body() -> None:
    text = tag("tools", tag("call", tag("json", '{"days": 1e1}', type="object"), tool="look", index="1"))
    result = check(K3, text, calls=[("look", '{"days": 1e1}')], statuses=["ok"])
    assert result.parsed_tool_calls[0].raw_arguments == '{"days": 1e1}'


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_k3_cut_calls(finish_reason: str) -> None:
    whole = tag("tools", xtml("now") + xtml("save", ("path", "string", "a.md"), ("text", "string", "words"), index=2))
    second = whole.index('<|open|>call tool="save"')
    end = whole.rindex("<|close|>call<|sep|>")
    for cut in range(whole.index("<|sep|>", second) + len("<|sep|>"), end, 7):
        result = check(
            K3, whole[:cut], finish_reason=finish_reason, calls=[("now", {})], incomplete=["save"], content=None
        )
        assert [c.status for c in result.incomplete_calls] == ["incomplete"]
        assert result.incomplete_calls[0].raw_text == whole[second:cut]


def test_k3_missing_closers() -> None:
    whole = tag("tools", xtml("save", ("text", "string", "x")))
    for missing in ("<|close|>argument<|sep|>", "<|close|>call<|sep|>"):
        result = check(K3, whole.replace(missing, ""), calls=[("save", {"text": "x"})], content=None)
        assert result.parsed_tool_calls[0].flags == ("missing_closer",), missing


def test_k3_a_call_without_its_channel() -> None:
    result = check(K3, "Go." + xtml("now"), tools=[NOW], prompt_tail=K3_RESPONSE, calls=[("now", {})], content="Go.")
    assert result.parsed_tool_calls[0].flags == ("no_section",)


def test_k3_calls_in_open_reasoning() -> None:
    calls = tag("tools", xtml("now"))
    for end in ("", "<|close|>think<|sep|>", "<|close|>message<|sep|>"):
        check(K3, f"Look.{calls}{end}", prompt_tail=K3_THINKING, calls=[("now", {})], reasoning="Look.", content=None)
    text = f"Look.{calls} Or not."
    check(
        K3, f"{text}<|close|>think<|sep|>{tag('response', 'No.')}", prompt_tail=K3_THINKING, calls=[], reasoning=text,
        content="No.",
    )  # fmt: skip


def test_k3_halves_switched_off() -> None:
    calls = tag("tools", xtml("now"))
    text = f"Why.<|close|>think<|sep|>{tag('response', 'So.')}{calls}"
    check(K3, text, prompt_tail=K3_THINKING, with_tool_calls=False, calls=[], reasoning="Why.", content="So." + calls)
    check(
        K3,
        text,
        prompt_tail=K3_THINKING,
        with_reasoning=False,
        calls=[("now", {})],
        content="Why.<|close|>think<|sep|>So.",
    )
    check(K3, text, prompt_tail=K3_THINKING, with_reasoning=False, with_tool_calls=False, calls=[], content=text)


def test_linear_time() -> None:
    def stream(format: str, text: str) -> None:
        parser = StreamParser(format, tools=[SAVE])
        for i in range(0, len(text), 4):
            parser.feed(text[i : i + 4])
        parser.finish()

    assert_linear(lambda n: stream(K3, tag("tools", xtml("save", ("text", "string", "a <| b\n" * n)))), 500)
    assert_linear(lambda n: parse(K2, "<|tool_calls_section_begin|>" * n), 2000)
    assert_linear(lambda n: parse(K2, section(*[one("functions.save:0", '{"text": "oops}')] * n)), 500)
    assert_linear(lambda n: parse(K2, section(*[one("x", "{}")] * n), tools=[SAVE, LOAD]), 500)
    assert_linear(lambda n: parse(K3, '<|open|>tools<|sep|><|open|>call tool="a"<|sep|>' * n), 500)
