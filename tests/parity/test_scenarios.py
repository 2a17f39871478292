"""The same conversations on either engine: equal ids for equal input, whatever the engine around them.

One table. A row is a conversation: what the model samples, what the client makes of it, and what the next prompt must
be behind the ids of the turn before. That text is written down here, so both engines are held against one thing. Each
row runs with whole responses and as streams, on a real server of the engine that is installed.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from prr_testing.chat import request_fields
from prr_testing.server import Server
from prr_testing.talk import Answer, Message, Script, Talk, edit_tool

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
THINK = "<|im_start|>assistant\n<think>\n"
_RUN = uuid.uuid4().hex[:8]  # what another run asked the same server is in its cache

TOOLS = [edit_tool(path="string", text="string", count="number")]


@pytest.fixture(scope="module")
def talk(server: Server, qwen_dir: Path) -> Talk:
    return Talk(server, qwen_dir)


def call(path: str, count: str = "1.0", text: str | None = None) -> str:
    """A call as the model writes it."""
    parameters = [("path", path), ("count", count)] + ([("text", text)] if text is not None else [])
    body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters)
    return f"<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool_turn(*results: str) -> str:
    """What the template writes for tool results, up to the model's next turn."""
    written = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"<|im_start|>user\n{written}<|im_end|>\n{THINK}"


def user_turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n{THINK}"


Client = Callable[[Answer], list[Message]]


def ordinary(answer: Answer) -> list[Message]:
    """The ordinary client: the message without its reasoning, and a result for each call."""
    return [answer.returned(), *answer.results()]


def answers(*more: Message, **returned: Any) -> Client:
    """The same, with what else it has to say."""
    return lambda answer: [answer.returned(**returned), *answer.results(), *more]


def reserialized(answer: Answer) -> list[Message]:
    """A client (or proxy) that reads arguments and writes them anew, under ids of its own."""
    message = answer.returned()
    for number, made in enumerate(message["tool_calls"]):
        arguments = dict(reversed(json.loads(made["function"]["arguments"]).items()))
        made["function"]["arguments"] = json.dumps(arguments, indent=1)
        made["id"] = f"renamed-{number}"
    results = [{"role": "tool", "tool_call_id": made["id"], "content": "done"} for made in message["tool_calls"]]
    return [message, *results]


def changed(change: Callable[[Message], None]) -> Client:
    """A client that edits what it got."""

    def client(answer: Answer) -> list[Message]:
        message = copy.deepcopy(answer.returned())
        change(message)
        return [message, *answer.results(), *([] if answer.calls else [user("go on")])]

    return client


def _set_argument(message: Message) -> None:
    message["tool_calls"][0]["function"]["arguments"] = '{"path": "other", "count": 1.0}'


def _set_content(message: Message) -> None:
    message["content"] = "I will not."


@dataclass(frozen=True)
class Step:
    """One turn. Of the client: what it sends next; of the prompt: what it must be.

    script: what the model samples; `cut`: its limit in tokens.
    after: the text behind the ids of the turn before; None: nothing may be spliced.
    says: (content, [(name, arguments)], finish_reason) as the client gets it, where it matters.
    """

    script: Script | Callable[[Talk], Script]
    client: Client = ordinary
    after: str | None = None
    says: tuple[str, list[tuple[str, str]], str] | None = None
    cut: int | None = None
    reason: str | None = None


CALL = f"Hm, \n let me see.  \n</think>\n\n\nI will.\n\n{call(' /srv/x ', '1e3')}"
DONE = "ok</think>\n\nDone.  "

SCENARIOS: dict[str, tuple[Step, ...]] = {
    "tool loop, then a question": (
        Step(CALL, says=("\nI will.", [("edit", '{"path": " /srv/x ", "count": 1e3}')], "tool_calls")),
        Step(DONE, answers(user("and now?")), f"\n{tool_turn('done')}", ("Done.  ", [], "stop")),
        Step("</think>Nothing.", after=f"\n{user_turn('and now?')}"),
    ),
    "reasoning returned": (
        Step(CALL, answers(reasoning=True)),
        Step(DONE, answers(user("and now?"), reasoning=True), f"\n{tool_turn('done')}"),
        Step("</think>Nothing.", after=f"\n{user_turn('and now?')}"),
    ),
    "parallel calls in odd tokens": (
        Step(
            lambda talk: [
                *talk.odd_ids("so so\n"), *talk.ids("</think>\n\n", stop=False), *talk.odd_ids("Both."),
                *talk.ids(call("a") + call("b", text='{"k":1.0,  "u":"\\u00e9"}')),
            ],
            says=("Both.", [("edit", '{"path": "a", "count": 1.0}'),
                            ("edit", '{"path": "b", "count": 1.0, "text": "{\\"k\\":1.0,  \\"u\\":\\"\\\\u00e9\\"}"}')],
                  "tool_calls"),
        ),
        Step(DONE, after=f"\n{tool_turn('done', 'done')}"),
    ),
    "arguments written anew, ids renamed": (
        Step(CALL, reserialized),
        Step(DONE, after=f"\n{tool_turn('done')}"),
    ),
    "a number that JSON libraries change": (
        Step(f"</think>\n\n{call('n', '123456789012345678901234567890')}"),
        Step(DONE, after=f"\n{tool_turn('done')}"),
    ),
    "cut in reasoning": (
        Step("Let me think about it for long", answers(user("go on")), cut=4, says=("", [], "length")),
        Step(DONE, after=f"\n</think>\n\n<|im_end|>\n{user_turn('go on')}"),
    ),
    "an edited argument": (Step(CALL, changed(_set_argument)), Step(DONE)),
    "edited content": (Step("</think>\n\nI will.", changed(_set_content)), Step(DONE)),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(talk: Talk, name: str, stream: bool) -> None:
    messages = [user(f"{name}, {stream=} [{_RUN}]")]
    before: Answer | None = None
    for number, step in enumerate(SCENARIOS[name]):
        script = step.script(talk) if callable(step.script) else step.script
        answer = talk.ask(messages, script, stream=stream, tools=TOOLS, max_tokens=step.cut or 512)
        sampled = script if isinstance(script, list) else talk.ids(script)
        assert answer.token_ids == sampled[: step.cut]
        assert answer.prr is not None
        if before is None:
            assert answer.prr["outcome"] == "first_turn"
            assert answer.prompt_ids == rendered(talk, messages)
        elif step.after is None:
            assert answer.prr["outcome"] == "refused"
            assert answer.prompt_ids == rendered(talk, messages)
        else:
            assert answer.prr["outcome"] == "spliced", f"step {number}: {answer.prr}"
            assert answer.prompt_ids == before.turn + talk.ids(step.after, stop=False)
            assert answer.prr["kept_tokens"] == len(before.turn)
            assert answer.cached == talk.most_cached(before, answer)
        if step.says is not None:
            content, calls, finish_reason = step.says
            assert answer.content == content
            assert [(name, arguments) for name, arguments, _ in answer.calls] == calls
            assert answer.finish_reason == finish_reason
        assert answer.raw_ids == answer.token_ids
        before = answer
        messages += step.client(answer)


def rendered(talk: Talk, messages: list[Message]) -> list[int]:
    """The ids of the plain template, as either engine renders without us."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
        if message["role"] == "assistant" and message["content"] is None:
            message["content"] = ""
    tools = TOOLS
    if talk.server.engine == "sglang":  # whose type of a tool has a field more, and shows it to the template
        tools = [{**tool, "defer_loading": None} for tool in TOOLS]
    ids = talk.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    return list(ids)


@BOTH
@pytest.mark.parametrize(
    "cut", [None, -20, -7], ids=["whole call", "cut call behind a whole one", "cut at the call's end"]
)
def test_an_unfinished_call_is_never_passed_off_as_a_finished_one(talk: Talk, stream: bool, cut: int | None) -> None:
    """L8: `length` reaches the client as `length`, also where an earlier call was complete."""
    script = talk.ids(f"</think>\n\n{call('a')}{call('b')}")
    limit = len(script) if cut is None else len(script) + cut
    answer = talk.ask([user(f"truth {stream=} {cut=} [{_RUN}]")], script[:limit], stream=stream, tools=TOOLS,
                      max_tokens=limit)  # fmt: skip
    assert answer.finish_reason == ("tool_calls" if cut is None else "length")
    whole = [arguments for _, arguments, raw in answer.calls if raw is not None]
    assert whole == ['{"path": "a", "count": 1.0}', '{"path": "b", "count": 1.0}'][: 2 if cut is None else 1]
    assert (answer.incomplete_calls is not None) == (cut is not None)


@BOTH
def test_raw_data(talk: Talk, stream: bool) -> None:
    answer = talk.ask([user(f"raw {stream=} [{_RUN}]")], CALL, stream=stream, tools=TOOLS)
    assert answer.raw_text == CALL
    assert answer.calls[0][2] == "\n<parameter=path>\n /srv/x \n</parameter>\n<parameter=count>\n1e3\n</parameter>\n"
    assert answer.reasoning == "Hm, \n let me see.  "


@BOTH
def test_two_choices_are_two_turns(talk: Talk, stream: bool) -> None:
    messages = [user(f"two {stream=} [{_RUN}]")]
    choices = talk.ask_n(messages, ["a</think>\n\none", "b</think>\n\ntwo"], stream=stream)
    assert {choice.content for choice in choices} == {"one", "two"}
    for choice in choices:
        following = talk.ask([*messages, choice.returned(), user("go on")], stream=stream)
        assert following.prompt_ids == choice.turn + talk.ids(f"\n{user_turn('go on')}", stop=False)


@pytest.mark.parametrize("how", ["cache_salt", "header"])
def test_tenants_share_nothing(talk: Talk, how: str) -> None:
    messages = [user(f"tenants by {how} [{_RUN}]")]

    def options(tenant: str) -> dict[str, Any]:
        return {"extra": {"cache_salt": tenant}} if how == "cache_salt" else {"headers": {"X-Tenant": tenant}}

    first = talk.ask(messages, "secret\n</think>\n\nhello", **options("a"))
    messages += [first.returned(), user("go on")]
    other = talk.ask(messages, **options("b"))
    own = talk.ask(messages, **options("a"))
    assert (other.prr or {})["outcome"] == "refused"
    assert (own.prr or {})["outcome"] == "spliced"
    assert own.prompt_ids[: len(first.turn)] == first.turn


def test_an_aborted_stream_stores_nothing(talk: Talk) -> None:
    messages = [user(f"abort [{_RUN}]")]
    stored = talk.counter("prr_records_total", outcome="stored")
    events = talk.client.chat.completions.create(
        model=talk.server.model,
        messages=messages,  # type: ignore[arg-type]
        stream=True,
        max_tokens=400,
        extra_body=request_fields(talk.server.engine, talk.ids("</think>\n\n" + "so " * 300)),
    )
    for _, event in zip(range(5), events, strict=False):
        text = event.choices[0].delta.content
    events.close()
    following = talk.ask([*messages, {"role": "assistant", "content": text or "so"}, user("go on")])
    assert (following.prr or {})["outcome"] == "refused"
    assert talk.counter("prr_records_total", outcome="stored") == stored + 1


@BOTH
def test_the_mode_of_a_request(talk: Talk, stream: bool) -> None:
    messages = [user(f"modes {stream=} [{_RUN}]")]
    first = talk.ask(messages, DONE, stream=stream)
    messages += [first.returned(), user("go on")]
    for mode, reason in (("off", "off"), ("observe", "observe")):
        answer = talk.ask(messages, stream=stream, extra={"prr_splice": mode})
        assert answer.prr == {"outcome": "refused", "reason": reason, "kept_tokens": 0, "retained_reasoning_tokens": 0}
    assert (talk.ask(messages, stream=stream).prr or {})["outcome"] == "spliced"
    with pytest.raises(openai.BadRequestError, match="prr_splice"):
        talk.ask(messages, extra={"prr_splice": "maybe"})


@pytest.mark.parametrize("policy", [None, "eager", "complete"])
def test_the_streaming_policy_of_a_request(talk: Talk, policy: str | None) -> None:
    """The server's is `eager`. It shows in a call that is cut: begun and visibly open, or not sent at all."""
    extra = {} if policy is None else {"prr_stream_arguments": policy}
    messages = [user(f"policy {policy} [{_RUN}]")]
    ids = talk.ids(CALL)
    cut = talk.ask(messages, ids, stream=True, tools=TOOLS, extra=extra, max_tokens=len(ids) - 8)
    assert cut.finish_reason == "length"
    assert [made["name"] for made in cut.incomplete_calls or []] == ["edit"]
    begun = [(name, raw) for name, _, raw in cut.calls]
    assert begun == ([] if policy == "complete" else [("edit", None)])
    finished = talk.ask(messages, ids, stream=True, tools=TOOLS, extra=extra)
    whole = talk.ask(messages, ids, tools=TOOLS, extra=extra)
    assert finished.calls == whole.calls == [("edit", '{"path": " /srv/x ", "count": 1e3}', whole.calls[0][2])]
    assert talk.ask([*messages, *ordinary(finished)], DONE, tools=TOOLS, extra=extra).prr["outcome"] == "spliced"  # type: ignore[index]


@BOTH
@pytest.mark.parametrize("value", ["sometimes", True, ["eager"], {"eager": 1}])
def test_a_wrong_streaming_policy_is_the_client_s_mistake(talk: Talk, value: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="`prr_stream_arguments` must be one of eager, complete"):
        talk.ask([user("x")], stream=stream, extra={"prr_stream_arguments": value})


def test_32_interleaved_conversations(talk: Talk) -> None:
    """Every conversation goes on from its own turns: texts differ by little, words are spelled in odd tokens."""
    client = talk.server.async_client()

    async def converse(number: int) -> None:
        rng = random.Random(number)
        messages = [user(f"conversation {number % 8} [{_RUN}]")]  # several begin alike
        known: list[int] = []
        for turn in range(3):
            script = [*talk.odd_ids(f"r{rng.randrange(4)}"), *talk.ids(f"</think>\n\nanswer {number} {turn}")]
            response: Any = await client.chat.completions.create(
                model=talk.server.model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=64,
                extra_body={**request_fields(talk.server.engine, script), "prr": True},
            )
            data = response.model_dump()
            told = data.get("sglext") or {}
            prompt_ids = told.get("input_ids") or data["prompt_token_ids"]
            assert prompt_ids[: len(known)] == known
            assert data["prr"]["outcome"] == ("spliced" if turn else "first_turn"), data["prr"]
            known = prompt_ids + script
            messages += [{"role": "assistant", "content": response.choices[0].message.content}, user(f"go on {turn}")]
            await asyncio.sleep(rng.random() / 50)

    async def everybody() -> None:
        await asyncio.gather(*(converse(number) for number in range(32)))

    asyncio.run(everybody())


def test_counters(talk: Talk) -> None:
    names = ("first_turn", "spliced")
    turns = {name: talk.counter("prr_turns_total", outcome=name) for name in names}
    kept = talk.counter("prr_kept_tokens_total")
    messages = [user(f"counted [{_RUN}]")]
    first = talk.ask(messages, DONE)
    second = talk.ask([*messages, first.returned(), user("go on")])
    assert {name: talk.counter("prr_turns_total", outcome=name) for name in names} == {
        name: count + 1 for name, count in turns.items()
    }
    assert talk.counter("prr_kept_tokens_total") == kept + (second.prr or {})["kept_tokens"]
    assert talk.counter("prr_store_bytes") > 0


def test_one_line_says_what_is_active(talk: Talk) -> None:
    lines = [line for line in talk.server.log_text().splitlines() if "prr-plugins " in line]
    assert len(lines) == 1
    assert "prr_qwen3 for calls and reasoning, splice on" in lines[0]
