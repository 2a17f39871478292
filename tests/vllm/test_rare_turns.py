"""The rarer ends and sequels of a turn, on vLLM's real server: one table, one server for each model.

A row says what the model samples and how it ends, what the client sends next, and with what the text behind the turn
must begin. The judge of all of that text is the engine: without us it renders the same messages to a prompt that ends
with it. Rows that refuse name their reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from prr_testing.models import model_dir
from prr_testing.server import Server, serve
from prr_testing.talk import EDIT_TOOL, Answer, Message, Talk

pytestmark = pytest.mark.server

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
RUN = uuid.uuid4().hex[:8]  # what another run asked the same server is in its cache
TOOLS = [EDIT_TOOL]
END, USER = "<|im_end|>", "<|im_start|>user\n"


def qwen(path: str) -> str:
    return f"<tool_call>\n<function=edit>\n<parameter=path>\n{path}\n</parameter>\n</function>\n</tool_call>"


def glm(path: str) -> str:
    return f"<tool_call>edit<arg_key>path</arg_key><arg_value>{path}</arg_value></tool_call>"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def say(*texts: str) -> Callable[[Answer], list[Message]]:
    """A client that sends the turn back, with complete calls only, and goes on with user messages."""

    def client(answer: Answer) -> list[Message]:
        message = answer.returned()
        calls = [c for c, raw in zip(message.pop("tool_calls", []), answer.calls, strict=True) if raw[2] is not None]
        return [{**message, "tool_calls": calls} if calls else message, *map(user, texts)]

    return client


def system(answer: Answer) -> list[Message]:
    return [answer.returned(), {"role": "system", "content": "Be brief from now on."}, user("go on")]


def results(answer: Answer) -> list[Message]:
    return [answer.returned(), *answer.results()]


def out_of_order(answer: Answer) -> list[Message]:
    first, second = answer.results()
    return [answer.returned(), {**second, "content": "of b"}, {**first, "content": "of a"}]


def as_parts(answer: Answer) -> list[Message]:
    (result,) = answer.results()
    parts = [{"type": "text", "text": "line one\n"}, {"type": "text", "text": "line two"}]
    return [answer.returned(), {**result, "content": parts}]


@dataclass(frozen=True)
class Row:
    """One turn and its sequel.

    script: what is sampled; at its end a stop token, or none.
    cut: the script is all of it, by `max_tokens`.
    begins: how the text behind the turn begins; with `refused`, the reason instead.
    respelled: the last id, a stop, gives way to the template's.
    """

    script: str
    client: Callable[[Answer], list[Message]]
    begins: str = ""
    cut: bool = False
    respelled: bool = False
    refused: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


TWO = f"Both.\n</think>\n\n{qwen('a')}\n{qwen('b')}"
QWEN = {
    "results out of order": Row(f"{TWO}{END}", out_of_order, f"\n{USER}<tool_response>\nof b"),
    "a result as parts": Row(f"One.\n</think>\n\n{qwen('a')}{END}", as_parts, f"\n{USER}<tool_response>\nline one"),
    "two users in a row": Row(f"Hm.\n</think>\n\nYes.{END}", say("and", "so?"), f"\n{USER}and{END}\n{USER}so?"),
    "stop missing": Row("Hm.\n</think>\n\nYes, and", say("go on"), f"{END}\n{USER}", cut=True),
    "cut in reasoning": Row("Let me", say("go on"), f"\n</think>\n\n{END}\n{USER}", cut=True),
    "cut in an argument": Row(f"Hm.\n</think>\n\n{qwen('a/b/c')[:48]}", say("go on"), f"{END}\n{USER}", cut=True),
    "cut in a marker": Row(f"Hm.\n</think>\n\n{qwen('a')[:20]}", say("go on"), f"{END}\n{USER}", cut=True),
    "a stop string": Row(
        "Hm.\n</think>\n\nYes. HALT", say("go on"), f"{END}\n{USER}", options={"stop": ["HALT"]}
    ),
    "text behind the close": Row(
        f"Hm.\n</think>\n\nYes.{END}\n", say("go on"), USER, cut=True, extra={"ignore_eos": True}
    ),
}  # fmt: skip
GLM = {
    "results out of order": Row(
        f"Both.</think>{glm('a')}{glm('b')}<|observation|>", out_of_order, "<tool_response>of b</tool_response>"
    ),
    "a result as parts": Row(f"One.</think>{glm('a')}<|observation|>", as_parts, "<tool_response>line one"),
    "two users in a row": Row("Hm.</think>Yes.<|user|>", say("and", "so?"), "and<|user|>so?"),
    "a result behind calls that end the text": Row(
        f"One.</think>{glm('a')}<|endoftext|>", results, "<|observation|>", respelled=True
    ),
    "an answer that ends the text": Row("Hm.</think>Yes.<|endoftext|>", say("on"), "<|user|>on", respelled=True),
    "a user message behind the opener of results": Row(
        f"One.</think>{glm('a')}<|observation|>", say("never mind"), refused="stop_opens_other_role"
    ),
    "a late system message behind the user's opener": Row(
        "Hm.</think>Yes.<|user|>", system, refused="stop_opens_other_role"
    ),
    "a late system message": Row("Hm.</think>Yes, and", system, "<|system|>Be brief from now on.<|user|>", cut=True),
    "stop missing": Row("Hm.</think>Yes, and", say("go on"), "<|user|>go on", cut=True),
    "cut in reasoning": Row("Let me", say("go on"), "</think><|user|>go on", cut=True),
    "cut in an argument": Row(f"Hm.</think>{glm('a/b/c')[:50]}", say("go on"), "<|user|>go on", cut=True),
    "cut in a marker": Row(f"Hm.</think>{glm('a')[:13]}", say("go on"), "<|user|>go on", cut=True),
    "a stop string": Row("Hm.</think>Yes. HALT", say("go on"), "<|user|>go on", options={"stop": ["HALT"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def qwen_talk(server: Server, qwen_dir: Path) -> Talk:
    return Talk(server, qwen_dir)


@pytest.fixture(scope="module")
def glm_talk() -> Iterator[Talk]:
    path = model_dir("glm-5.1")
    with serve(path, tool_parser="prr_glm", reasoning_parser="prr_glm", ready_within=600.0) as server:
        yield Talk(server, path, stop="<|user|>")


def holds(talk: Talk, row: Row, name: str, stream: bool) -> None:
    asked = [{"role": "system", "content": f"[{RUN} {stream}] {name}"}, user("edit a file")]
    script = talk.ids(row.script, stop=False)
    limit = {"max_tokens": len(script)} if row.cut else {}
    options = {**limit, **row.options}
    first = talk.ask(asked, script, tools=TOOLS, stream=stream, extra=row.extra, **options)
    assert first.token_ids == script
    messages = [*asked, *row.client(first)]
    second = talk.ask(messages, "ok", tools=TOOLS, stream=stream)
    assert second.prr is not None
    if row.refused:
        assert (second.prr["outcome"], second.prr["reason"]) == ("refused", row.refused)
        return
    assert (second.prr["outcome"], second.prr["reason"]) == ("spliced", "")
    kept = first.turn[:-1] if row.respelled else first.turn
    assert second.prompt_ids[: len(kept)] == kept
    assert second.prr["kept_tokens"] == len(kept)
    assert second.cached == talk.most_cached(first, second)
    behind = talk.tokenizer.decode(second.prompt_ids[len(kept) :])
    assert behind.startswith(row.begins)
    engines = talk.ask(messages, "ok", tools=TOOLS, extra={"prr_splice": "off"})
    assert engines.prr is not None
    assert engines.prr["reason"] == "off"
    rest = behind.removeprefix("\n</think>\n\n").removeprefix("</think>")  # of a cut reasoning, which is no more
    assert talk.tokenizer.decode(engines.prompt_ids).endswith(rest)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QWEN)
@BOTH
def test_qwen(qwen_talk: Talk, name: str, stream: bool) -> None:
    holds(qwen_talk, QWEN[name], name, stream)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", GLM)
@BOTH
def test_glm(glm_talk: Talk, name: str, stream: bool) -> None:
    holds(glm_talk, GLM[name], name, stream)


@pytest.mark.timeout(900)
@BOTH
def test_a_message_that_the_template_refuses_fails_as_without_us(qwen_talk: Talk, stream: bool) -> None:
    """Qwen3.6's template raises on a late system message."""
    asked = [user(f"refused {RUN} {stream}")]
    first = qwen_talk.ask(asked, qwen_talk.ids("Hm.\n</think>\n\nYes."), stream=stream)
    messages = [*asked, *system(first)]
    errors = []
    for extra in ({}, {"prr_splice": "off"}):
        with pytest.raises(openai.BadRequestError) as caught:
            qwen_talk.ask(messages, "ok", stream=stream, extra=extra)
        errors.append(caught.value.body)
    assert errors[0] == errors[1]


@pytest.mark.timeout(900)
@BOTH
def test_a_message_that_the_client_began(qwen_talk: Talk, stream: bool) -> None:
    """The engine continues it as it would without us; the turn behind it is exact again."""
    asked = [user(f"prefilled {RUN} {stream}")]
    begun = [*asked, {"role": "assistant", "content": "The answer"}]
    prefill = {"continue_final_message": True, "add_generation_prompt": False}
    prompts = []
    for extra in (prefill, {**prefill, "prr_splice": "off"}):
        answer = qwen_talk.ask(begun, qwen_talk.ids(" is 7."), stream=stream, extra=extra)
        prompts.append(answer.prompt_ids)
        if "prr_splice" not in extra:
            assert answer.prr is not None
            assert (answer.prr["outcome"], answer.prr["reason"]) == ("refused", "continue_final_message")
    assert prompts[0] == prompts[1]
    messages = [*asked, {"role": "assistant", "content": "The answer is 7."}, user("sure?")]
    second = qwen_talk.ask(messages, qwen_talk.ids("Hm.\n</think>\n\nYes."), stream=stream)
    third = qwen_talk.ask([*messages, *say("and?")(second)], "ok", stream=stream)
    assert third.prr is not None
    assert third.prr["outcome"] == "spliced"
    assert third.prompt_ids[: len(second.turn)] == second.turn


LATE = "{%- if messages|length > 8 %}{{ '[a long talk]' }}{%- endif %}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shadow_verification_counts(qwen_dir: Path, tmp_path: Path) -> None:
    """`PRR_VERIFY=1`: every spliced prompt is held against a full render of its history.

    The template is Qwen3.6's with a word that it writes in front of the generation prompt of a long conversation only,
    which no probe shows: the disagreement made on purpose.
    """
    source = (qwen_dir / "chat_template.jinja").read_text()
    place = source.rindex("{%- if add_generation_prompt %}")
    template = tmp_path / "late.jinja"
    template.write_text(source[:place] + LATE + source[place:])
    halves = {"tool_parser": "prr_qwen3", "reasoning_parser": "prr_qwen3"}
    arguments = ("--chat-template", str(template))
    with serve(qwen_dir, *arguments, env={"PRR_VERIFY": "1"}, ready_within=600.0, **halves) as server:
        talk = Talk(server, qwen_dir)
        messages = [user("verify")]
        turns = 0
        while len(messages) < 12:
            answer = talk.ask(messages, talk.ids(f"Hm.\n</think>\n\n{qwen('a')}"), tools=TOOLS)
            messages += results(answer)
            turns += 1
            disagree = talk.counter("prr_verified_total", result="disagree")
            if len(messages) - 2 <= 8:
                assert talk.counter("prr_verified_total", result="agree") == turns - 1
                assert disagree == 0
        assert disagree == turns - 1 - talk.counter("prr_verified_total", result="agree")
        assert disagree > 0
