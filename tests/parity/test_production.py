"""What happens to conversations in production, on a real server of either engine, with the outcome that is right.

Clients that write everything anew, clear old results, are cut, time out and try again, run two agents in one session,
or say they own what they do not. A prompt goes on exactly from the turn before, or the reason is named and the engine
renders; never is a turn spliced that the client did not mean.
"""

from __future__ import annotations

import copy
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from prr_testing.server import Server
from prr_testing.talk import Answer, Message, Talk

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
THINK = "<|im_start|>assistant\n<think>\n"
RUN = uuid.uuid4().hex[:8]


def tool(name: str, **properties: str) -> Message:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("read", path="string", lines="number", exact="boolean"), tool("grep", text="string")]


@pytest.fixture(scope="module")
def talk(server: Server, qwen_dir: Path) -> Talk:
    return Talk(server, qwen_dir)


def call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def user(text: str) -> Message:
    return {"role": "user", "content": f"{text} [{RUN}]"}


def user_turn(text: str) -> str:
    return f"<|im_start|>user\n{text} [{RUN}]<|im_end|>\n{THINK}"


def tool_turn(*results: str) -> str:
    written = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"<|im_start|>user\n{written}<|im_end|>\n{THINK}"


def goes_on(talk: Talk, before: Answer, after: Answer, added: str, reason: str = "") -> None:
    """`after`'s prompt is `before`'s turn and `added`."""
    assert after.prr is not None
    assert (after.prr["outcome"], after.prr["reason"]) == ("spliced", reason), after.prr
    assert after.prompt_ids == before.turn + talk.ids(added, stop=False)
    assert after.cached == talk.most_cached(before, after)


def refused(talk: Talk, answer: Answer, messages: list[Message], reason: str, **options: Any) -> None:
    """The engine rendered, and the reason has a name."""
    assert answer.prr is not None
    assert (answer.prr["outcome"], answer.prr["reason"]) == ("refused", reason), answer.prr
    extra = {**options.pop("extra", {}), "prr_splice": "off"}
    assert answer.prompt_ids == talk.ask(messages, extra=extra, **options).prompt_ids


@BOTH
def test_a_coding_agent_that_writes_calls_anew(talk: Talk, stream: bool) -> None:
    """No reasoning, empty content, arguments from its own JSON writer; then somebody asks."""
    messages = [user(f"what is in it? {stream=}")]
    first = talk.ask(
        messages, f"Hm.\n\n</think>\n\n{call('read', path='/x ü', lines='1e3')}", stream=stream, tools=TOOLS
    )
    (made,) = copy.deepcopy(first.message["tool_calls"])
    made["function"] = {"name": "read", "arguments": json.dumps(json.loads(made["function"]["arguments"]), indent=2)}
    messages += [{"role": "assistant", "content": "", "tool_calls": [made]}, *first.results("α\nβ")]
    second = talk.ask(messages, "so</think>\n\nTwo  letters. ", stream=stream, tools=TOOLS)
    goes_on(talk, first, second, f"\n{tool_turn('α' + chr(10) + 'β')}")
    messages += [{"role": "assistant", "content": "Two  letters."}, user("sure?")]
    goes_on(talk, second, talk.ask(messages, "</think>Yes.", stream=stream, tools=TOOLS), f"\n{user_turn('sure?')}")


def test_an_old_result_is_cleared(talk: Talk) -> None:
    """Exact up to the turn before it, the engine's text from there on, named by its place; then exact on that."""
    messages = [user("read three files")]
    turns: list[Answer] = []
    for number in range(3):
        script = f"file {number}\n</think>\n\n{call('read', path=f'/f{number}', lines='1e1')}"
        turns.append(talk.ask(messages, script, tools=TOOLS))
        messages += [turns[-1].returned(), *turns[-1].results(f"long text {number}")]
    cleared = 4  # the result of the second call
    assert messages[cleared]["content"] == "long text 1"
    messages[cleared] = {**messages[cleared], "content": "[cleared]"}
    next_turn = talk.ask(messages, "all read</think>\n\nDone.", tools=TOOLS)
    assert next_turn.prr is not None
    text = talk.tokenizer.decode(next_turn.prompt_ids)
    assert "[cleared]" in text
    assert "long text 1" not in text
    assert "long text 2" in text
    assert next_turn.prr["reason"] == f"edited:messages[{cleared}]"
    if next_turn.prr["outcome"] == "spliced":
        assert next_turn.prompt_ids[: len(turns[1].turn)] == turns[1].turn
        assert next_turn.prr["kept_tokens"] == len(turns[1].turn)
    else:
        refused(talk, next_turn, messages, f"edited:messages[{cleared}]", tools=TOOLS)
    messages += [next_turn.returned(), user("thanks")]
    goes_on(talk, next_turn, talk.ask(messages, "</think>Sure.", tools=TOOLS), f"\n{user_turn('thanks')}")


@BOTH
def test_the_client_times_out_and_asks_again(talk: Talk, stream: bool) -> None:
    """Two answers to one question: the one that comes back is meant. Call ids or reasoning tell alike ones apart."""
    messages = [user(f"again? {stream=}")]
    lost = talk.ask(messages, "first\n</think>\n\nNo.", stream=stream)
    kept = talk.ask(messages, "second\n</think>\n\nYes.", stream=stream)
    for answer in (kept, lost):
        following = talk.ask([*messages, answer.returned(), user("so")], "</think>x", stream=stream)
        goes_on(talk, answer, following, f"\n{user_turn('so')}")

    alike = [
        talk.ask(messages, f"thought {number}\n</think>\n\nMaybe.", stream=stream, tools=TOOLS) for number in range(2)
    ]
    history = [*messages, alike[0].returned(), user("so")]
    refused(talk, talk.ask(history, "</think>x", stream=stream, tools=TOOLS), history, "ambiguous", tools=TOOLS)
    for answer in alike:
        following = talk.ask(
            [*messages, answer.returned(reasoning=True), user("so")], "</think>x", stream=stream, tools=TOOLS
        )
        goes_on(talk, answer, following, f"\n{user_turn('so')}")

    calling = [
        talk.ask(messages, f"idea {number}\n</think>\n\n{call('grep', text='a')}", stream=stream, tools=TOOLS)
        for number in range(2)
    ]
    for answer in calling:
        following = talk.ask([*messages, answer.returned(), *answer.results()], "</think>x", stream=stream, tools=TOOLS)
        goes_on(talk, answer, following, f"\n{tool_turn('done')}")
    renamed = json.loads(
        json.dumps([*messages, calling[0].returned(), *calling[0].results()]).replace(
            calling[0].message["tool_calls"][0]["id"], "call_1"
        )
    )
    refused(talk, talk.ask(renamed, "</think>x", stream=stream, tools=TOOLS), renamed, "ambiguous", tools=TOOLS)


@BOTH
def test_a_cut_in_mid_reasoning(talk: Talk, stream: bool) -> None:
    """The client has nothing to send back but an empty message; a text of its own instead is an edit."""
    messages = [user(f"think long {stream=}")]
    first = talk.ask(messages, "one two three four five six", stream=stream, max_tokens=4)
    assert (first.finish_reason, first.content) == ("length", "")
    empty = [*messages, {"role": "assistant", "content": ""}, user("continue")]
    following = talk.ask(empty, "</think>x", stream=stream)
    goes_on(talk, first, following, f"\n</think>\n\n<|im_end|>\n{user_turn('continue')}")
    placeholder = [*messages, {"role": "assistant", "content": "[No response]"}, user("continue")]
    refused(talk, talk.ask(placeholder, "</think>x", stream=stream), placeholder, "unknown_turn")


def test_an_agent_and_its_sub_agent_take_turns(talk: Talk) -> None:
    """One session, two system prompts and sets of tools: two conversations, both exact."""
    agents = {
        "parent": ([{"role": "system", "content": "You plan."}, user("go")], TOOLS),
        "child": ([{"role": "system", "content": "You search."}, user("go")], TOOLS[1:]),
    }
    before: dict[str, Answer] = {}
    for round_number in range(3):
        for name, (messages, tools) in agents.items():
            script = f"r{round_number}\n</think>\n\n{call('grep', text=f'{name} {round_number}')}"
            answer = talk.ask(messages, script, tools=tools)
            if round_number:
                goes_on(talk, before[name], answer, f"\n{tool_turn('done')}")
            before[name] = answer
            messages += [answer.returned(), *answer.results()]


def test_what_python_libraries_send(talk: Talk) -> None:
    """`json.dumps` of what `json.loads` read, added nulls, part lists; results of parallel calls. One value changed."""
    messages = [user("both")]
    calls = call("read", path="/ü", lines="1e3") + call("read", path="b", lines="1.0", exact="true")
    first = talk.ask(messages, f"Hm</think>\n\n{calls}", tools=TOOLS)

    def returned(**changed: Any) -> list[Message]:
        made = copy.deepcopy(first.message["tool_calls"])
        for one in made:
            values = json.loads(one["function"]["arguments"])
            values.update({key: value for key, value in changed.items() if values["path"] == "b"})
            one["function"] = {"name": one["function"]["name"], "arguments": json.dumps(values)}
        message = {"role": "assistant", "content": [], "refusal": None, "tool_calls": made}
        return [*messages, message, *first.results()]

    goes_on(talk, first, talk.ask(returned(lines=1), "</think>x", tools=TOOLS), f"\n{tool_turn('done', 'done')}")
    for changed in ({"lines": True}, {"lines": 2}, {"exact": 1}, {"exact": "true"}):
        history = returned(**changed)
        refused(talk, talk.ask(history, "</think>x", tools=TOOLS), history, "unknown_turn", tools=TOOLS)


def test_other_tools_and_other_template_arguments(talk: Talk) -> None:
    messages = [user("named")]
    first = talk.ask(messages, "Hm</think>\n\nOk.", tools=TOOLS)
    messages += [first.returned(), user("on")]
    refused(talk, talk.ask(messages, "</think>x", tools=TOOLS[:1]), messages, "tools_changed", tools=TOOLS[:1])
    kwargs = {"chat_template_kwargs": {"add_vision_id": True}}
    answer = talk.ask(messages, "</think>x", tools=TOOLS, extra=kwargs)
    refused(talk, answer, messages, "template_kwargs_changed", tools=TOOLS, extra=kwargs)
    goes_on(talk, first, talk.ask(messages, "</think>x", tools=TOOLS), f"\n{user_turn('on')}")
