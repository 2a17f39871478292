"""What must be right before a server starts, and the line that says what is active.

A server that cannot do what its flags ask for refuses to start with one line: an unknown `prr_*` name, a `PRR_*` value
that is not accepted, a tokenizer without the format's markers, a template that writes calls in another format. What
would merely go unnoticed (vLLM ignores the tool parser, another front end parses) gets one warning line.

What serves requests is imported only where a `prr_*` parser is chosen: the engine loads plugins in every process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import vllm.envs as envs

from prr_plugins.common.parsing.format import Format
from prr_plugins.common.serving import splice_switch
from prr_plugins.common.serving.flags import check_names, chosen_format, is_ours
from prr_plugins.common.serving.startup import (
    PACKAGE,
    StartupError,
    check_markers,
    check_template,
    read_settings,
    say_refusal,
    start_line,
)
from prr_plugins.vllm import hooks

logger = logging.getLogger("vllm.prr_plugins")


def refuse(message: str | Exception) -> NoReturn:
    """End the process with one line on stderr. Not an exception of vLLM's kind: those come with a wall of traceback."""
    say_refusal(message)
    raise SystemExit(2)


# ---------------------------------------------------------------------------------------- flags


@dataclass(frozen=True)
class Chosen:
    """What the flags ask for. A tool parser counts only with `--enable-auto-tool-choice`: vLLM ignores it without."""

    tool: str | None
    reasoning: str | None
    auto_tools: bool

    @property
    def ours(self) -> bool:
        return is_ours(self.tool) or is_ours(self.reasoning)

    def format(self) -> Format | None:
        """The one format in use, None where the flags choose none of ours.

        Raises:
            StartupError: unknown name, or names that do not go together.
        """
        check_names({"--tool-call-parser": self.tool, "--reasoning-parser": self.reasoning})
        tool = self.tool if self.auto_tools else None
        return chosen_format({"--tool-call-parser": tool, "--reasoning-parser": self.reasoning})

    def warnings(self) -> list[str]:
        """What would go unnoticed."""
        lines = []
        if is_ours(self.tool) and not self.auto_tools:
            lines.append(f"--tool-call-parser {self.tool}: vLLM ignores it without --enable-auto-tool-choice")
        if self.ours and envs.VLLM_USE_RUST_FRONTEND:
            lines.append(
                "VLLM_USE_RUST_FRONTEND=1: vLLM's Rust front end renders and parses by itself; prr_* is bypassed"
            )
        return lines


def wrap_parse_args(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where the command line is read: what can be refused before the engine starts."""

    def parse_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        parsed = original(self, args, namespace)
        chosen = Chosen(
            getattr(parsed, "tool_call_parser", None) or None,
            getattr(parsed, "reasoning_parser", None) or None,
            bool(getattr(parsed, "enable_auto_tool_choice", False)),
        )
        if not chosen.ours:
            return parsed
        try:
            settings = read_settings()
            chosen.format()
        except StartupError as e:
            refuse(e)
        for line in (*chosen.warnings(), *settings.warnings):
            logger.warning("%s: %s", PACKAGE, line)
        if getattr(parsed, "grpc", False):
            logger.warning("%s: --grpc: the gRPC server takes token ids, nothing is parsed or spliced", PACKAGE)
        splice_switch.share(settings.splice)
        if settings.admin or envs.VLLM_SERVER_DEV_MODE:
            hooks.install("admin")
        return parsed

    return parse_args


# ---------------------------------------------------------------------------------------- the server


def wrap_compose_parser(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where vLLM makes the parser class of a server from the two names."""

    def _compose_parser(
        cls: Any,
        tool_parser_name: str | None,
        reasoning_parser_name: str | None,
        enable_auto_tools: bool,
        model_name: str | None,
        is_harmony: bool,
        tool_strict_level: str,
        tokenizer: Any,
        **more: Any,
    ) -> Any:
        chosen = Chosen(tool_parser_name or None, reasoning_parser_name or None, bool(enable_auto_tools))
        try:
            fmt = chosen.format()
            if fmt is not None and tokenizer is not None:
                check_markers(fmt, tokenizer, repr(model_name))
        except StartupError as e:
            refuse(e)
        if fmt is None:
            return original(
                cls,
                tool_parser_name=tool_parser_name,
                reasoning_parser_name=reasoning_parser_name,
                enable_auto_tools=enable_auto_tools,
                model_name=model_name,
                is_harmony=is_harmony,
                tool_strict_level=tool_strict_level,
                tokenizer=tokenizer,
                **more,
            )
        from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

        from prr_plugins.vllm.parser import compose

        hooks.install("compose")
        return compose(
            fmt,
            cls.get_reasoning_parser(reasoning_parser_name),
            cls.get_tool_parser(tool_parser_name, enable_auto_tools, model_name),
            ToolStrictLevel.from_name(tool_strict_level),
        )

    return _compose_parser


def wrap_warmup(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where a server's renderer is ready: check the template, make the runtime, say what is active."""

    def warmup(self: Any) -> None:
        original(self)
        from prr_plugins.vllm.parser import LosslessParser

        if self.parser is not None and issubclass(self.parser, LosslessParser):
            try:
                activate(self)
            except StartupError as e:
                refuse(e)

    return warmup


def activate(renderer: Any) -> None:
    """Make `renderer.prr_runtime`.

    Raises:
        StartupError: the server must not start.
    """
    from prr_plugins.vllm import guidance
    from prr_plugins.vllm.runtime import Runtime, renderer_render

    settings = read_settings()
    parser = renderer.parser
    where = repr(renderer.model_config.model)
    if parser.tool_parser_cls is not None:
        written = check_template(parser.prr_format, renderer_render(renderer), where)
        stock = guidance.layout(parser.prr_format.name, written, renderer.renderer.get_tokenizer())
        if stock is not None:
            parser.tool_parser_cls = guidance.guided_as(parser.tool_parser_cls, stock)
    runtime = Runtime(renderer, settings)
    parser.runtime = renderer.prr_runtime = runtime
    _log_like_vllm()
    for line in hooks.HOOKS.warnings():
        logger.warning("%s: %s", PACKAGE, line)
    calls, reasoning = parser.tool_parser_cls is not None, parser.reasoning_parser_cls is not None
    logger.info("%s", start_line(hooks.HOOKS, parser.prr_format, runtime, calls=calls, reasoning=reasoning))


def _log_like_vllm() -> None:
    """Have our loggers write where vLLM's do."""
    ours, theirs = logging.getLogger("prr_plugins"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = False
