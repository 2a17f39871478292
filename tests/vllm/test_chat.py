"""The promise on a real server: every sampled token stands again in the next prompt, whatever the client does and asks.

One server with both parser flags serves this module (and others); the client is the stock one and returns no reasoning
unless a test says so.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
import uuid
from typing import Any

import httpx
import openai
import pytest
from asking import TOOLS, Chat, Reply, call_text

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
REASONED = "Hm, \n let me see.  \n</think>\n\n\n"


_RUN = uuid.uuid4().hex[:8]  # what another run asked the same server is in its cache


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{text} [{_RUN}]"}]


def rendered(talk: Chat, messages: list[dict[str, Any]], tools: Any = TOOLS) -> list[int]:
    """The ids of the plain template, as the engine renders without us."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    ids = talk.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    assert isinstance(ids, list)
    return ids


def assert_goes_on(talk: Chat, before: Reply, after: Reply) -> None:
    """`after`'s prompt begins with all ids of `before`'s turn, and the cache held all that it could."""
    assert after.prr is not None
    assert after.prr["outcome"] == "spliced", after.prr
    assert after.prompt_ids is not None
    assert after.prompt_ids[: len(before.turn)] == before.turn
    assert after.prr["kept_tokens"] == len(before.turn)
    block = talk.server.block_size
    most = block * min((len(before.turn) - 1) // block, (len(after.prompt_ids) - 1) // block)
    assert after.cached == most


@BOTH
def test_a_tool_loop_and_a_new_question_keep_every_token(talk: Chat, stream: bool) -> None:
    messages = user(f"edit a file ({stream=})")
    first = talk.ask(messages, f"{REASONED}I will.\n\n{call_text(' /srv/x ', '1e3')}", stream=stream)
    assert first.prr == {"outcome": "first_turn", "reason": "", "kept_tokens": 0, "retained_reasoning_tokens": 0}
    assert first.calls[0][:2] == ("edit", '{"path": " /srv/x ", "count": 1e3}')
    assert first.finish_reason == "tool_calls"

    messages += [first.returned(), *first.results()]
    second = talk.ask(messages, "ok</think>\n\nDone.  ", stream=stream)
    assert_goes_on(talk, first, second)
    assert second.message["content"] == "Done.  "

    messages += [second.returned(), *user("and now?")]
    third = talk.ask(messages, "</think>Nothing.", stream=stream)
    assert_goes_on(talk, second, third)
    assert third.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_odd_tokens_and_parallel_calls(talk: Chat, stream: bool) -> None:
    messages = user(f"edit two files ({stream=})")
    script = [*talk.odd_ids("so so"), *talk.ids("\n</think>\n\n", stop=False), *talk.odd_ids("Both.")]
    script += talk.ids(call_text("a") + call_text("b", text='{"k":1.0,  "u":"\\u00e9"}'))
    first = talk.ask(messages, script, stream=stream)
    assert first.token_ids == script
    assert [name for name, _, _ in first.calls] == ["edit", "edit"]
    second = talk.ask([*messages, first.returned(), *first.results()], stream=stream)
    assert_goes_on(talk, first, second)


@BOTH
def test_raw_data(talk: Chat, stream: bool) -> None:
    text = f"{REASONED}Both.{call_text('a')}{call_text('b')}"
    reply = talk.ask(user("raw?"), text, stream=stream)
    assert reply.raw_ids == reply.token_ids == talk.ids(text)
    assert reply.raw_text == text
    for (_, _, raw), path in zip(reply.calls, "ab", strict=True):
        assert raw == f"\n<parameter=path>\n{path}\n</parameter>\n<parameter=count>\n1.0\n</parameter>\n"
    quiet = talk.ask(user("raw?"), text, stream=stream, extra={"return_token_ids": False, "prr": False})
    assert quiet.raw_ids is None
    assert quiet.raw_text is None
    assert quiet.prr is None
    assert quiet.calls == reply.calls


SCRIPTS = {
    "plain": "</think>\n\nHello.",
    "whitespace": "  a \n\n</think>\n \n b \n",
    "empty": "",
    "only_reasoning": "never ending",
    "calls": f"r</think>{call_text('a')}\n\nbetween\n{call_text('b', '12345678901234567890123456789')}\nafter",
    "unfinished": f"r\n</think>\n\n{call_text('a')}\n<tool_call>\n<function=edit>\n<parameter=path>\nhalf",
    "in_reasoning": f"r {call_text('a')}",
    "unknown_tool": "r\n</think>\n\n<tool_call>\n<function=nope>\n</function>\n</tool_call>",
    "unicode": "日本 \U0001f600</think>\n\n\U0001f468‍\U0001f469‍\U0001f467 é",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("max_tokens", [512, 23])
def test_streamed_and_whole_are_the_same(talk: Chat, script: str, max_tokens: int) -> None:
    whole = talk.ask(user("same?"), script, max_tokens=max_tokens)
    streamed = talk.ask(user("same?"), script, stream=True, max_tokens=max_tokens)
    assert streamed.token_ids == whole.token_ids
    assert streamed.raw_text == whole.raw_text
    assert streamed.finish_reason == whole.finish_reason
    assert streamed.incomplete_calls == whole.incomplete_calls
    assert streamed.message.get("reasoning") == whole.message.get("reasoning")
    assert streamed.message.get("content") == whole.message.get("content")
    complete = [call for call in streamed.calls if call[2] is not None]
    assert complete == whole.calls
    assert len(streamed.calls) - len(complete) <= len(whole.incomplete_calls or [])


@BOTH
def test_a_cut_call_behind_a_complete_one_is_reported_as_length(talk: Chat, stream: bool) -> None:
    script = talk.ids(f"r\n</think>\n\n{call_text('a')}\n{call_text('b')}")
    reply = talk.ask(user("cut"), script, stream=stream, max_tokens=len(script) - 12)
    assert reply.finish_reason == "length"
    assert reply.calls[0][:2] == ("edit", '{"path": "a", "count": 1.0}')
    assert reply.incomplete_calls is not None
    assert reply.incomplete_calls[0]["name"] == "edit"


@BOTH
def test_a_complete_call_at_the_limit_is_reported_as_length(talk: Chat, stream: bool) -> None:
    script = talk.ids(f"r\n</think>\n\n{call_text('a')}", stop=False)
    reply = talk.ask(user("cut"), script, stream=stream, max_tokens=len(script))
    assert len(reply.calls) == 1
    assert reply.finish_reason == "length"


@BOTH
def test_an_unfinished_call_is_no_tool_call(talk: Chat, stream: bool) -> None:
    reply = talk.ask(user("stop early"), SCRIPTS["unfinished"], stream=stream)
    assert reply.finish_reason == "stop"
    assert reply.incomplete_calls is not None
    assert reply.incomplete_calls[0]["status"] == "incomplete"


@BOTH
@pytest.mark.parametrize("cut", [4, 40])
def test_a_turn_cut_by_max_tokens_is_spliced(talk: Chat, stream: bool, cut: int) -> None:
    messages = user(f"cut {cut} {stream}")
    script = talk.ids(f"one two three four five six\n</think>\n\n{call_text('a')} and {call_text('b')}")
    first = talk.ask(messages, script, stream=stream, max_tokens=cut)
    assert first.finish_reason == "length"
    assert len(first.token_ids) == cut
    # A client drops a call that it got only half of.
    returned = first.returned()
    returned["tool_calls"] = [c for c, raw in zip(returned.get("tool_calls", []), first.calls, strict=True) if raw[2]]
    if not returned["tool_calls"]:
        del returned["tool_calls"]
    second = talk.ask([*messages, returned, *user("go on")], stream=stream)
    assert second.prr["outcome"] == "spliced", second.prr
    assert second.prompt_ids[: len(first.turn)] == first.turn


@BOTH
def test_without_tools(talk: Chat, stream: bool) -> None:
    messages = user(f"just talk {stream}")
    text = f"r</think>\n\nlike {call_text('a')} ?"
    first = talk.ask(messages, text, stream=stream, tools=None)
    assert first.message["content"] == f"like {call_text('a')} ?"
    assert first.finish_reason == "stop"
    second = talk.ask([*messages, first.returned(), *user("yes")], stream=stream, tools=None)
    assert_goes_on(talk, first, second)


@BOTH
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no_tools"])
def test_special_tokens_are_seen_whatever_the_client_says(talk: Chat, stream: bool, tools: Any) -> None:
    extra = {"skip_special_tokens": True, "spaces_between_special_tokens": True}
    text = f"r<|fim_prefix|>s</think>\n\nHi.<|endoftext|>{call_text('a')}"
    reply = talk.ask(user("special"), text, stream=stream, tools=tools, extra=extra)
    assert reply.raw_text is not None
    assert text.startswith(reply.raw_text)
    assert reply.message["reasoning"] == "r<|fim_prefix|>s"


@BOTH
def test_tool_choice_none_reads_no_calls(talk: Chat, stream: bool) -> None:
    reply = talk.ask(user("no calls"), f"r</think>{call_text('a')}", stream=stream, tool_choice="none")
    assert reply.calls == []
    assert reply.message["content"] == call_text("a")
    assert reply.finish_reason == "stop"


@BOTH
def test_two_choices(talk: Chat, stream: bool) -> None:
    messages = user(f"two answers {stream}")
    replies = talk.ask_n(messages, ["a</think>\n\nfirst", f"b</think>\n\n{call_text('second')}"], stream=stream)
    assert [reply.finish_reason for reply in replies] == ["stop", "tool_calls"]
    assert replies[0].raw_text == "a</think>\n\nfirst"
    for reply in replies:
        following = reply.results() or user("and?")
        assert_goes_on(talk, reply, talk.ask([*messages, reply.returned(), *following], stream=stream))


@BOTH
def test_hidden_reasoning_stays_hidden(talk: Chat, stream: bool) -> None:
    messages = user(f"think in secret {stream}")
    hide = {"include_reasoning": False}
    first = talk.ask(messages, f"the secret</think>\n\n{call_text('a')}", stream=stream, extra=hide)
    assert "reasoning" not in first.message
    assert first.raw_ids is None
    assert first.raw_text is None
    assert first.token_ids == []
    second = talk.ask([*messages, first.returned(), *first.results()], stream=stream)
    assert second.prr["outcome"] == "spliced", second.prr
    assert second.prompt_ids is None
    # Somebody else with the same text, but a call id that this server never gave out.
    forged = first.returned()
    forged["tool_calls"][0]["id"] = "call_1"
    results = [{**result, "tool_call_id": "call_1"} for result in first.results()]
    other = talk.ask([*messages, forged, *results], stream=stream)
    assert other.prr["outcome"] == "refused"
    assert other.prr["reason"] == "no_possession"
    assert other.prompt_ids == rendered(talk, [*messages, forged, *results])


def _edit_argument(messages: list[dict[str, Any]]) -> None:
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"path": "other", "count": 1.0}'


def _edit_content(messages: list[dict[str, Any]]) -> None:
    messages[1]["content"] = "I will not."


def _edit_question(messages: list[dict[str, Any]]) -> None:
    messages[0]["content"] += "!"


@pytest.mark.parametrize("edit", [_edit_argument, _edit_content, _edit_question])
def test_an_edited_history_is_never_spliced_over(talk: Chat, edit: Any) -> None:
    messages = user(f"edits: {edit.__name__}")
    first = talk.ask(messages, f"r</think>\n\nI will.{call_text('a')}")
    messages += [first.returned(), *first.results()]
    edit(messages)
    second = talk.ask(messages)
    assert second.prr["outcome"] != "spliced"
    assert second.prompt_ids == rendered(talk, messages)


def test_ids_of_the_caller_win(talk: Chat) -> None:
    messages = user("whose ids?")
    first = talk.ask(messages, "r</think>\n\nmine")
    messages += [first.returned(), *user("go on")]
    own = rendered(talk, messages)[:-3]
    second = talk.ask(messages, "r</think>\n\nyours", extra={"kv_transfer_params": {"prompt_token_ids": own}})
    assert second.prompt_ids == own
    assert second.prr["reason"] == "caller_ids"
    # Nor does anybody else get what these ids led to.
    third = talk.ask([*messages, second.returned(), *user("on and on")])
    assert third.prompt_ids[: len(own)] != own


def test_kv_transfer_params_are_merged(talk: Chat) -> None:
    messages = user("merge")
    first = talk.ask(messages, "r</think>\n\nyes")
    second = talk.ask([*messages, first.returned(), *user("go on")], extra={"kv_transfer_params": {"remote": "x"}})
    assert_goes_on(talk, first, second)


def test_a_prefill_leg_is_not_recorded(talk: Chat) -> None:
    messages = user("prefill")
    leg = {"kv_transfer_params": {"do_remote_decode": True}}
    first = talk.ask(messages, "r</think>\n\nyes", extra=leg)
    assert first.prr["reason"] == "prefill_leg"
    second = talk.ask([*messages, first.returned(), *user("go on")])
    assert second.prr["outcome"] != "spliced"


def test_both_legs_get_one_prompt(talk: Chat) -> None:
    """Prefill elsewhere, decode here: the blocks to come belong to the prompt that the first leg had."""
    messages = user("two legs")
    first = talk.ask(messages, "so  so\n</think>\n\nyes")
    messages += [first.returned(), *user("go on")]
    prefill = talk.ask(messages, [talk.stop], extra={"kv_transfer_params": {"do_remote_decode": True}}, max_tokens=1)
    decode = talk.ask(messages, "r</think>\n\nno", extra={"kv_transfer_params": {"do_remote_prefill": True}})
    assert (prefill.prr["reason"], decode.prr["reason"]) == ("prefill_leg", "decode_leg")
    assert prefill.prompt_ids == decode.prompt_ids == rendered(talk, messages)
    messages += [decode.returned(), *user("and on")]
    assert_goes_on(talk, decode, talk.ask(messages))


@pytest.mark.parametrize("how", ["cache_salt", "header"])
def test_tenants_share_nothing(talk: Chat, how: str) -> None:
    def ask(tenant: str, *args: Any) -> Reply:
        if how == "header":
            return talk.ask(*args, headers={"X-Tenant": tenant})
        return talk.ask(*args, extra={"cache_salt": tenant})

    messages = user(f"tenants by {how}")
    first = ask("one", messages, "r</think>\n\nshared words")
    following = [*messages, first.returned(), *user("go on")]
    assert ask("two", following).prr["outcome"] != "spliced"
    assert talk.ask(following).prr["outcome"] != "spliced"
    assert_goes_on(talk, first, ask("one", following))


def test_an_aborted_stream_stores_nothing(talk: Chat) -> None:
    before = talk.counter("prr_store_turns")
    events = talk.client.chat.completions.create(
        model=talk.server.model,
        messages=user("abort"),
        max_tokens=400,
        stream=True,
        extra_body={"vllm_xargs": {"script_ids": talk.ids("word " * 300)}},
    )
    for _, _ in zip(range(5), events, strict=False):
        pass
    events.close()
    deadline = time.monotonic() + 60
    while talk.counter("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert talk.counter("vllm:num_requests_running") == 0
    assert talk.counter("prr_store_turns") == before


@BOTH
def test_modes_by_request(talk: Chat, stream: bool) -> None:
    messages = user(f"modes {stream}")
    first = talk.ask(messages, "  odd  </think> odd ", stream=stream)
    following = [*messages, first.returned(), *user("go on")]
    observed = talk.counter("prr_observed_kept_tokens_total")
    for mode in ("observe", "off"):
        reply = talk.ask(following, stream=stream, extra={"prr_splice": mode})
        assert reply.prompt_ids == rendered(talk, following)
        assert reply.prr["outcome"] == "refused"
        assert reply.prr["reason"] == mode
    assert talk.counter("prr_observed_kept_tokens_total") == observed + len(first.turn)
    assert_goes_on(talk, first, talk.ask(following, stream=stream))


def test_the_mode_is_switched_at_run_time(talk: Chat) -> None:
    url = f"{talk.server.base_url}/v1/prr"
    assert httpx.get(url).json()["mode"] == "on"
    messages = user("switch")
    first = talk.ask(messages, "r</think>\n\nyes")
    following = [*messages, first.returned(), *user("go on")]
    try:
        assert httpx.post(f"{url}/splice", json={"mode": "off"}).json() == {"mode": "off"}
        # A request cannot have more than the server gives.
        off = talk.ask(following, extra={"prr_splice": "on"})
        assert off.prr["reason"] == "off"
        assert httpx.post(f"{url}/splice", json={"mode": "sometimes"}).status_code in (400, 422)
    finally:
        assert httpx.post(f"{url}/splice", json={"mode": "on"}).json() == {"mode": "on"}
    assert_goes_on(talk, first, talk.ask(following))


def test_a_wrong_mode_is_the_clients_mistake(talk: Chat) -> None:
    with pytest.raises(openai.BadRequestError, match="prr_splice"):
        talk.ask(user("x"), extra={"prr_splice": "maybe"})


@BOTH
def test_required_and_named_calls(talk: Chat, stream: bool) -> None:
    # Exactly what the structural tag of the format allows.
    text = f"r\n</think>{call_text('a')}"
    for choice in ("required", {"type": "function", "function": {"name": "edit"}}):
        messages = user(f"forced {choice} {stream}")
        first = talk.ask(messages, text, stream=stream, tool_choice=choice)
        assert first.calls[0][:2] == ("edit", '{"path": "a", "count": 1.0}')
        second = talk.ask([*messages, first.returned(), *first.results()], stream=stream)
        assert_goes_on(talk, first, second)


def test_response_format(talk: Chat) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    messages = user("json please")
    first = talk.ask(messages, 'r\n</think>{"n": 7}', tools=None, response_format=wanted)
    assert first.message["content"] == '{"n": 7}'
    assert_goes_on(talk, first, talk.ask([*messages, first.returned(), *user("on")], tools=None))


@BOTH
def test_stop_strings(talk: Chat, stream: bool) -> None:
    messages = user(f"stop string {stream}")
    first = talk.ask(messages, talk.ids("r</think>\n\none END two"), stream=stream, stop=["END"])
    assert first.message["content"] == "one "
    second = talk.ask([*messages, first.returned(), *user("go on")], stream=stream)
    assert second.prr["outcome"] in ("spliced", "refused")
    if second.prr["outcome"] == "spliced":
        assert second.prompt_ids[: len(first.turn)] == first.turn


def test_32_interleaved_conversations(talk: Chat) -> None:
    """Every conversation goes on from its own turns: texts differ by little, words are spelled in odd tokens."""
    client = talk.server.async_client()

    async def converse(n: int) -> None:
        rng = random.Random(n)
        messages = user(f"conversation {n % 8}")  # several begin alike
        known: list[int] = []
        for turn in range(3):
            script = [*talk.odd_ids(f"r{rng.randrange(4)}"), *talk.ids(f"</think>\n\nanswer {n} {turn}")]
            response = await client.chat.completions.create(
                model=talk.server.model,
                messages=messages,
                max_tokens=64,
                extra_body={"vllm_xargs": {"script_ids": script}, "return_token_ids": True, "prr": True},
            )
            extra = response.model_extra or {}
            assert extra["prompt_token_ids"][: len(known)] == known
            assert extra["prr"]["outcome"] == ("spliced" if turn else "first_turn"), extra["prr"]
            known = extra["prompt_token_ids"] + response.choices[0].model_extra["token_ids"]
            messages += [{"role": "assistant", "content": response.choices[0].message.content}, *user(f"go on {turn}")]
            await asyncio.sleep(rng.random() / 50)

    async def everybody() -> None:
        await asyncio.gather(*(converse(n) for n in range(32)))

    asyncio.run(everybody())


def test_counters(talk: Chat) -> None:
    before = {name: talk.turns(name) for name in ("first_turn", "spliced")}
    kept = talk.counter("prr_kept_tokens_total")
    messages = user("counted")
    first = talk.ask(messages, "r</think>\n\nyes")
    second = talk.ask([*messages, first.returned(), *user("go on")])
    assert talk.turns("first_turn") == before["first_turn"] + 1
    assert talk.turns("spliced") == before["spliced"] + 1
    assert talk.counter("prr_kept_tokens_total") == kept + second.prr["kept_tokens"]
    assert talk.counter("prr_store_bytes") > 0


def test_one_line_says_what_is_active(talk: Chat) -> None:
    lines = [line for line in talk.server.log_text().splitlines() if "prr-plugins " in line]
    assert len(lines) == 1
    assert "prr_qwen3 for calls and reasoning, splice on" in lines[0]
