"""Five models whole: on vLLM's real server, with the model's own vocabulary and the renderer that vLLM chooses for it.

Each row of `SEEDS` is served once. A stock client drops the reasoning, loops through tools, calls two at once, is cut
by `max_tokens` in every place, and asks on: each next prompt must begin with exactly the ids of the turn before, and
the cache must hold all that it can. Qwen3.6, GLM-5.1 and Kimi K2.6 are rendered by their Jinja templates, DeepSeek V4
by vLLM's Python encoder, GPT-OSS by openai-harmony under its own architecture (the others on a plain network).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import test_responses as responses

from prr_testing.models import model_dir
from prr_testing.networks import GPT_OSS, with_network
from prr_testing.server import BLOCK_SIZE, serve
from prr_testing.talk import EDIT_TOOL, Answer, Message, Talk

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
REASONING = " Hm, \n let me see.  \n"
RUN = uuid.uuid4().hex[:8]  # what another run asked the same server is in its cache

TOOLS = [EDIT_TOOL]

RESPONSES_TOOLS = [{"type": "function", **TOOLS[0]["function"]}]


@dataclass(frozen=True)
class Seed:
    """One model.

    turn: reasoning, content and the texts of calls, as the model writes them behind its generation prompt.
    call: a call of `edit` by path, count (a JSON number as spelled) and its place among the calls of the conversation.
    canonical: a turn with a call, written as the model's own template would write it again.
    final, calling: the stop token behind an answer and behind calls.
    respelled: history spells `final` otherwise.
    """

    model: str
    parser: str
    turn: Callable[[str, str, list[str]], str]
    call: Callable[[str, str, int], str]
    canonical: str
    final: str
    calling: str
    respelled: bool = False
    parallel: bool = True
    network: dict[str, Any] | None = None
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def _qwen_call(path: str, count: str, _: int) -> str:
    pairs = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in (("path", path), ("count", count)))
    return f"<tool_call>\n<function=edit>\n{pairs}</function>\n</tool_call>"


def _glm_call(path: str, count: str, _: int) -> str:
    pairs = (("path", path), ("count", count))
    written = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in pairs)
    return f"<tool_call>edit{written}</tool_call>"


def _kimi_call(path: str, count: str, place: int) -> str:
    arguments = f'{{"path":  "{path}", "count": {count}}}'
    return f"<|tool_call_begin|>functions.edit:{place}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def _kimi_turn(reasoning: str, content: str, calls: list[str]) -> str:
    section = f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>" if calls else ""
    return f"{reasoning}</think>{content}{section}"


def _dsml_call(path: str, count: str, _: int) -> str:
    return (
        '<｜DSML｜invoke name="edit">\n'
        f'<｜DSML｜parameter name="path" string="true">{path}</｜DSML｜parameter>\n'
        f'<｜DSML｜parameter name="count" string="false">{count}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>"
    )


def _dsml_turn(reasoning: str, content: str, calls: list[str]) -> str:
    joined = "\n".join(calls)
    section = f"\n\n<｜DSML｜tool_calls>\n{joined}\n</｜DSML｜tool_calls>" if calls else ""
    return f"{reasoning}</think>{content}{section}"


def _harmony_turn(reasoning: str, content: str, calls: list[str]) -> str:
    if not calls:
        last = f"<|channel|>final<|message|>{content}"
    else:
        preamble = f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant" if content else ""
        last = preamble + calls[0]
    return f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant{last}"


def _tagged_turn(reasoning: str, content: str, calls: list[str]) -> str:
    return f"{reasoning}</think>{content}{''.join(calls)}"


SEEDS = (
    Seed(
        "qwen3.6",
        "prr_qwen3",
        _tagged_turn,
        _qwen_call,
        f"Sure.\n</think>\n\nI will.\n\n{_qwen_call('/srv', '7', 0)}",
        final="<|im_end|>",
        calling="<|im_end|>",
    ),
    Seed(
        "glm-5.1",
        "prr_glm",
        _tagged_turn,
        _glm_call,
        f"Sure.</think>I will.{_glm_call('/srv', '7', 0)}",
        final="<|user|>",
        calling="<|observation|>",
    ),
    Seed(
        "kimi-k2.6",
        "prr_kimi_k2",
        _kimi_turn,
        _kimi_call,
        _kimi_turn("Sure.", "I will.", [_kimi_call("/srv", "7", 0).replace(":  ", ": ")]),
        final="<|im_end|>",
        calling="<|im_end|>",
    ),
    Seed(
        "deepseek-v4",
        "prr_deepseek_v4",
        _dsml_turn,
        _dsml_call,
        _dsml_turn("Sure.", "I will.", [_dsml_call("/srv", "7", 0)]),
        final="<｜end▁of▁sentence｜>",
        calling="<｜end▁of▁sentence｜>",
        arguments=("--tokenizer-mode", "deepseek_v4"),
    ),
    Seed(
        "gpt-oss",
        "prr_gpt_oss",
        _harmony_turn,
        lambda path, count, _: (
            "<|channel|>commentary to=functions.edit <|constrain|>json<|message|>"
            f'{{"path":  "{path}", "count": {count}}}'
        ),
        "<|channel|>analysis<|message|>Sure.<|end|><|start|>assistant to=functions.edit<|channel|>commentary json"
        '<|message|>{"path": "/srv", "count": 7}',
        final="<|return|>",
        calling="<|call|>",
        respelled=True,
        parallel=False,
        network=GPT_OSS,
        # blocks of sliding windows are kept at the ends of prompts only, unless asked for: docs/hybrid.md
        arguments=("--prefix-cache-retention-interval", str(BLOCK_SIZE)),
        # Harmony has no switch to keep old reasoning
        env={"PRR_RETENTION": "all"},
    ),
)


# those of `make test`: the server that is there anyway, and the one that needs no template
QUICK = ("qwen3.6", "gpt-oss")


@dataclass
class Served:
    seed: Seed
    talk: Talk

    def ids(self, text: str, stop: str = "") -> list[int]:
        return self.talk.ids(text + stop, stop=False)

    def ask(self, messages: list[Message], script: list[int], **options: Any) -> Answer:
        return self.talk.ask(messages, script, tools=TOOLS, **options)

    def goes_on(self, before: Answer, after: Answer) -> None:
        """`after`'s prompt begins with all ids of `before`'s turn, and the cache held all that it could."""
        assert after.prr is not None
        assert after.prr["outcome"] == "spliced", after.prr
        stop = self.talk.tokenizer.convert_tokens_to_ids(self.seed.final)
        kept = before.turn[:-1] if self.seed.respelled and before.turn[-1] == stop else before.turn
        assert after.prompt_ids[: len(kept)] == kept
        assert after.prr["kept_tokens"] == len(kept)
        assert after.cached == self.talk.most_cached(before, after)


def start(seed: Seed, folder: Any, env: dict[str, str] | None = None) -> Any:
    """The server of one row."""
    path = model_dir(seed.model)
    variables = {**seed.env, **(env or {})}
    if seed.network is not None:
        path = with_network(path, seed.network, folder)
        variables["TIKTOKEN_ENCODINGS_BASE"] = str(path / "tiktoken")  # openai-harmony, without a download
    halves = {"tool_parser": seed.parser, "reasoning_parser": seed.parser}
    return path, serve(path, "--enable-scale-out", *seed.arguments, env=variables, ready_within=600.0, **halves)


@pytest.fixture(
    scope="module",
    params=[pytest.param(seed, id=seed.model, marks=() if seed.model in QUICK else pytest.mark.slow) for seed in SEEDS],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    seed: Seed = request.param
    if seed.model == "qwen3.6":  # the server that everybody uses
        yield Served(seed, Talk(request.getfixturevalue("server"), model_dir(seed.model)))
        return
    path, starting = start(seed, tmp_path_factory.mktemp("model"))
    with starting as server:
        yield Served(seed, Talk(server, path, stop=seed.final))


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": f"{text} [{RUN}] " + "please " * 40}]


def complete_calls(answer: Answer) -> Message:
    """What a client sends back that drops a call which it got only half of."""
    message = answer.returned()
    calls = [c for c, raw in zip(message.pop("tool_calls", []), answer.calls, strict=True) if raw[2] is not None]
    return {**message, "tool_calls": calls} if calls else message


@pytest.mark.timeout(900)
@BOTH
def test_a_conversation_keeps_every_token(served: Served, stream: bool) -> None:
    seed, talk = served.seed, served.talk
    messages = user(f"edit a file ({stream=})")
    odd = talk.odd_ids("so so")
    script = served.ids(seed.turn(REASONING, "I will.", [seed.call(" /srv/x ", "1.0", 0)]), seed.calling)
    first = served.ask(messages, script, stream=stream)
    assert first.token_ids == script
    assert first.reasoning.strip() == REASONING.strip()
    assert first.content.strip() == "I will."
    assert [name for name, _, _ in first.calls] == ["edit"]
    assert first.finish_reason == "tool_calls"

    messages += [first.returned(), *first.results("done " * 20)]
    calls = [seed.call("a", "1e3", 1), seed.call("b", "2", 2)][: 2 if seed.parallel else 1]
    script = served.ids(seed.turn("Both.", "", calls), seed.calling)
    second = served.ask(messages, script, stream=stream)
    served.goes_on(first, second)
    assert len(second.calls) == len(calls)

    messages += [second.returned(), *second.results()]
    script = served.ids(seed.turn("Fine. ", " Done.  ", []), seed.final)
    third = served.ask(messages, script, stream=stream)
    served.goes_on(second, third)
    assert third.finish_reason == "stop"

    messages += [third.returned(), *user("and now?")]
    script = [*served.ids(seed.turn("", "x", [])[: seed.turn("", "x", []).index("x")]), *odd, *served.ids(seed.final)]
    fourth = served.ask(messages, script, stream=stream)
    served.goes_on(third, fourth)
    assert fourth.token_ids == script
    messages += [fourth.returned(), *user("go on")]
    after_odd = served.ask(messages, served.ids(seed.turn("", "ok", []), seed.final), stream=stream)
    served.goes_on(fourth, after_odd)


@pytest.mark.timeout(900)
@BOTH
def test_turns_that_were_cut_go_on(served: Served, stream: bool) -> None:
    seed = served.seed
    messages = user(f"cut it ({stream=})")
    whole = seed.turn("one two three four five", "six seven eight nine ten", [seed.call("a/b/c", "12345", 0)])
    places = ("three", "eight", "a/b")
    before: Answer | None = None
    for place in places:
        script = served.ids(whole[: whole.index(place) + len(place)])
        answer = served.ask(messages, script, stream=stream, max_tokens=len(script))
        assert answer.finish_reason == "length"
        assert answer.token_ids == script
        if before is not None:
            served.goes_on(before, answer)
        messages += [complete_calls(answer), *user(f"go on behind {place}")]
        before = answer
    assert before is not None
    served.goes_on(before, served.ask(messages, served.ids(seed.turn("", "ok", []), seed.final), stream=stream))


@pytest.mark.timeout(900)
@BOTH
def test_responses(served: Served, stream: bool) -> None:
    """The same by `/v1/responses`, which shows no ids of GPT-OSS: its render route does."""
    seed, talk = served.seed, served.talk
    stop = talk.tokenizer.convert_tokens_to_ids(seed.final)
    items: list[Any] = [{"role": "user", "content": f"edit by items {stream=} [{RUN}] " + "please " * 40}]
    before: list[int] = []
    calls = [seed.call(" /srv/x ", "1.0", 0), seed.call("a", "1e3", 1)][: 2 if seed.parallel else 1]
    for text, end in (
        (seed.turn(REASONING, "I will.", calls), seed.calling),
        (seed.turn("Fine. ", " Done.  ", []), seed.final),
        (seed.turn("Again. ", "", [seed.call("b", "2", 2)]), seed.calling),
        (seed.turn("", "ok", []), seed.final),
    ):
        prompt_ids = show(talk, items) if seed.model == "gpt-oss" else []
        response = responses.ask(talk, items, served.ids(text, end), stream=stream, tools=RESPONSES_TOOLS)
        prompt_ids = prompt_ids or response.prompt_ids
        assert response.data["usage"]["input_tokens"] == len(prompt_ids)
        if before:
            kept = before[:-1] if seed.respelled and before[-1] == stop else before
            assert response.prr["outcome"] == "spliced", response.prr
            assert response.prr["kept_tokens"] == len(kept)
            assert prompt_ids[: len(kept)] == kept
            block = talk.server.block_size
            most = block * min((len(before) - 1) // block, (len(prompt_ids) - 1) // block)
            assert response.data["usage"]["input_tokens_details"]["cached_tokens"] == most
        before = prompt_ids + served.ids(text, end)
        items += [item for item in response.output if item["type"] != "reasoning"]
        items += response.results() or [{"role": "user", "content": "and now?"}]


def show(talk: Talk, items: list[Any]) -> list[int]:
    """The prompt that a Responses request would get."""
    body = {"model": talk.server.model, "input": items, "tools": RESPONSES_TOOLS}
    answer = httpx.post(f"{talk.server.base_url}/v1/responses/render", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["token_ids"])


@pytest.mark.timeout(900)
def test_what_is_appended_is_what_the_engine_writes(served: Served) -> None:
    """On a turn that the template writes again as it was, splice and full render are equal, id for id."""
    seed = served.seed
    messages = user("canonical")
    first = served.ask(messages, served.ids(seed.canonical, seed.calling))
    messages += [first.returned(reasoning=True), *first.results()]
    spliced = served.ask(messages, served.ids(seed.turn("", "ok", []), seed.final))
    served.goes_on(first, spliced)
    rendered = served.ask(messages, served.ids(seed.turn("", "ok", []), seed.final), extra={"prr_splice": "off"})
    assert rendered.prr is not None
    assert rendered.prr["reason"] == "off"
    assert spliced.prompt_ids == rendered.prompt_ids


@pytest.mark.timeout(900)
def test_call_ids_that_a_proxy_renamed(served: Served) -> None:
    """Results come back under other ids, the last first. Kimi reads the ids it wrote itself, in that order."""
    seed = served.seed
    messages = user("renamed")
    calls = [seed.call("a", "1", 0), seed.call("b", "2", 1)][: 2 if seed.parallel else 1]
    first = served.ask(messages, served.ids(seed.turn("r", "", calls), seed.calling))
    returned, results = first.returned(), first.results()
    own = [made["id"] for made in returned["tool_calls"]]
    if seed.model == "kimi-k2.6":
        assert own == ["functions.edit:0", "functions.edit:1"]
    for number, (made, result) in enumerate(zip(returned["tool_calls"], results, strict=True)):
        made["id"] = result["tool_call_id"] = f"call_{number}"
        result["content"] = f"result {number}"
    messages += [returned, *reversed(results)]
    second = served.ask(messages, served.ids(seed.turn("", "ok", []), seed.final))
    served.goes_on(first, second)
    added = served.talk.tokenizer.decode(second.prompt_ids[len(first.turn) :])
    assert "call_" not in added.replace("tool_call_", "")
    places = [added.index(f"result {number}") for number in range(len(calls))]
    if seed.model == "kimi-k2.6":
        assert added.index(own[1]) < places[1] < added.index(own[0]) < places[0]


@pytest.mark.timeout(900)
def test_a_stop_that_opens_another_role(served: Served) -> None:
    """GLM ends calls with the opener of a tool result: nothing else can follow it."""
    seed = served.seed
    messages = user("interrupted")
    first = served.ask(messages, served.ids(seed.turn("r", "", [seed.call("a", "1", 0)]), seed.calling))
    second = served.ask([*messages, first.returned(), *user("never mind")], served.ids(seed.turn("", "ok", [])))
    assert second.prr is not None
    if seed.model == "glm-5.1":
        assert (second.prr["outcome"], second.prr["reason"]) == ("refused", "stop_opens_other_role")
    else:
        served.goes_on(first, second)


@pytest.fixture(scope="module")
def plain_harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """GPT-OSS as vLLM and we are set by default, but for `PRR_STOP`."""
    seed = replace(next(seed for seed in SEEDS if seed.model == "gpt-oss"), arguments=(), env={"PRR_STOP": "sampled"})
    path, starting = start(seed, tmp_path_factory.mktemp("model"))
    with starting as server:
        yield Served(seed, Talk(server, path, stop=seed.final))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harmony_drops_reasoning_and_may_keep_its_stop(plain_harmony: Served) -> None:
    served, seed = plain_harmony, plain_harmony.seed
    messages = user("default")
    first = served.ask(messages, served.ids("<|channel|>final<|message|>Hello.", seed.final))
    messages += [first.returned(), *user("think")]
    second = served.ask(messages, served.ids(seed.turn("Hm.", "Well.", []), seed.final))
    assert second.prr is not None
    assert second.prr["outcome"] == "spliced"
    assert second.prompt_ids[: len(first.turn)] == first.turn
    block = served.talk.server.block_size
    assert second.cached == block * ((len(first.prompt_ids) - 1) // block)  # sliding windows: docs/hybrid.md
    messages += [second.returned(), *user("on")]
    third = served.ask(messages, served.ids(seed.turn("Hm.", "Well.", []), seed.final))
    assert third.prr is not None
    assert (third.prr["outcome"], third.prr["reason"]) == ("refused", "retention_template")


@pytest.mark.slow
@pytest.mark.timeout(900)
@BOTH
def test_harmony_guided(plain_harmony: Served, stream: bool) -> None:
    """The grammars of a response format and of required calls reach through the channels; a script must fit them."""
    served, seed = plain_harmony, plain_harmony.seed
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    script = served.ids(f'{thought}<|channel|>final <|constrain|>json<|message|>{{"n": 7}}', seed.final)
    answer = served.talk.ask(user(f"json {stream}"), script, response_format=wanted, stream=stream)
    assert (answer.reasoning, answer.content) == ("Hm.", '{"n": 7}')
    script = served.ids(thought + '<|channel|>commentary to=functions.edit json<|message|>{"path": "a"}', seed.calling)
    answer = served.ask(user(f"call {stream}"), script, tool_choice="required", stream=stream)
    assert [call[:2] for call in answer.calls] == [("edit", '{"path": "a"}')]
    assert answer.finish_reason == "tool_calls"
