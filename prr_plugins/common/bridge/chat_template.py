"""A chat template rendered as transformers renders it, each character traced to the template line that wrote it.

Promise: the text equals `apply_chat_template(tokenize=False)` of transformers (same sandbox, same block trimming, same
additions to Jinja). Used where no engine runs: `prr check` and `prr matrix`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prr_plugins.common.messages import Message, Tools


class TemplateError(Exception):
    """The template does not compile, or refuses these messages. Carries the template's own words."""


class _Generation(Extension):
    """`{% generation %}`, transformers' mark around assistant text; it writes nothing itself."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _OneLineEach(CodeGenerator):
    """Jinja joins neighbouring outputs and notes the line of the first only; here each notes its own."""

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        for part in node.nodes:
            self.newline(part)
            super().visit_Output(nodes.Output([part], lineno=part.lineno, environment=node.environment), frame)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


@dataclass(frozen=True)
class Traced:
    """A rendered prompt and where its characters come from."""

    text: str
    _ends: tuple[int, ...]
    _lines: tuple[int, ...]

    def line(self, at: int) -> int | None:
        """The template line (from 1) that wrote character `at`; at the very end, the last line that wrote anything."""
        if not self._lines:
            return None
        return self._lines[min(bisect_right(self._ends, at), len(self._lines) - 1)]


class ChatTemplate:
    """One template.

    source: Jinja text. constants: what the tokenizer's configuration adds (`bos_token`, ...). now: the clock that
    `strftime_now` reads.

    Raises:
        TemplateError: it does not compile.
    """

    def __init__(
        self, source: str, constants: Mapping[str, str] | None = None, now: datetime.datetime | None = None
    ) -> None:
        self.source = source
        self.now = now
        self._constants = {"bos_token": "", "eos_token": "", **(constants or {})}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.code_generator_class = _OneLineEach
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: (self.now or datetime.datetime.now()).strftime(form)
        try:
            source.encode()
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"line {getattr(error, 'lineno', '?')}: {error}") from error
        except (RecursionError, SyntaxError, MemoryError) as error:  # Jinja's limits and, behind it, Python's own
            raise TemplateError(f"nested too deeply to compile ({type(error).__name__})") from error
        except ValueError as error:  # a number of too many digits; a lone surrogate
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    def __call__(
        self,
        messages: list[Message],
        tools: Tools,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt. `messages` in OpenAI shape; arguments are decoded as engines decode them."""
        return self.trace(messages, tools, add_generation_prompt, template_kwargs).text

    def trace(
        self,
        messages: list[Message],
        tools: Tools = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Traced:
        """The prompt with the lines that wrote it.

        Raises:
            TemplateError: the template refuses the messages.
        """
        context = self._template.new_context(
            {
                **self._constants,
                **(template_kwargs or {}),
                "messages": [_decoded(m) for m in messages],
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        pieces: list[str] = []
        ends: list[int] = []
        lines: list[int] = []
        at = 0
        try:
            # The compiled template is a generator: between two pieces its frame stands on the line that wrote the last.
            writer: Any = self._template.root_render_func(context)
            for piece in writer:
                at += len(piece)
                pieces.append(piece)
                ends.append(at)
                lines.append(self._template.get_corresponding_lineno(writer.gi_frame.f_lineno))
        except TemplateError:
            raise
        except Exception as error:  # a template reaches into Python freely
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateError(f"what it writes is no text: a lone surrogate at character {error.start}") from error
        return Traced(text, tuple(ends), tuple(lines))


def _decoded(message: Message) -> Message:
    """Engines hand arguments to a template as objects where they are JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{**c, "function": _decoded_function(c["function"])} for c in calls]}


def _decoded_function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return {**function, "arguments": arguments}
