"""What must be right before a server starts, and the line that says what is active.

A server that cannot do what its flags ask for refuses to start with one line: a `PRR_*` value that is not accepted, two
names that do not go together, a tokenizer without the format's markers, a template that writes calls in another format.
(An unknown name is refused by SGLang itself, whose message lists all it knows.)

What serves requests is imported only where a `prr_*` parser is chosen: the engine loads plugins in every process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from sglang.srt.runtime_context import get_serving

from prr_plugins.common.parsing.format import Format
from prr_plugins.common.serving import flags, splice_switch
from prr_plugins.common.serving.startup import (
    PACKAGE,
    StartupError,
    check_markers,
    check_template,
    read_settings,
    say_refusal,
    start_line,
)
from prr_plugins.sglang import hooks

logger = logging.getLogger(__name__)

# SGLang starts further API processes from this path; ours loads the plugins first, which SGLang does not do there.
_APP_VARIABLE = "SGLANG_HTTP_SERVER_APP_PATH"
_WORKER_APP = "prr_plugins.sglang.worker:app"


def refuse(message: str | Exception) -> NoReturn:
    """End the server with one line on stderr, its other processes included."""
    say_refusal(message)
    from sglang.srt.utils import kill_process_tree

    kill_process_tree(os.getpid(), include_parent=False)
    os._exit(2)


class ParserName(str):
    """A `prr_*` name that also counts as SGLang's own name of the family.

    SGLang compares the name of its tool parser to decide on a family's guided decoding (`glm47`) and call ids
    (`kimi_k2`). Look-ups go by hash and find ours.
    """

    def __new__(cls, name: str, stock: str) -> ParserName:
        made = super().__new__(cls, name)
        made.stock = stock
        return made

    stock: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or self.stock == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def chosen_format(tool: str | None, reasoning: str | None) -> Format | None:
    """The one format in use, None where the flags choose none of ours. Raises StartupError."""
    return flags.chosen_format({"--tool-call-parser": tool, "--reasoning-parser": reasoning})


def is_ours(serving: Any) -> bool:
    """Whether a chat handler runs one of our parsers."""
    return flags.is_ours(serving.tool_call_parser) or flags.is_ours(serving.reasoning_parser)


# ---------------------------------------------------------------------------------------- hooks (see hooks.HOOKS)


def publish(original: Callable[..., None], server_args: Any, *args: Any, **kwargs: Any) -> None:
    """Where a process gets its configuration; in one that serves chats nothing else has begun by then."""
    original(server_args, *args, **kwargs)
    if kwargs.get("role") != "tokenizer":
        return
    serving = get_serving()
    try:
        if chosen_format(serving.tool_call_parser, serving.reasoning_parser) is None:
            return
        settings = read_settings()
    except StartupError as e:
        refuse(e)
    for line in settings.warnings:
        logger.warning("%s: %s", PACKAGE, line)
    if getattr(serving, "grpc_port", None) is not None or getattr(serving, "smg_grpc_mode", False):
        logger.warning("%s: the gRPC server is not followed, nothing that comes through it is spliced", PACKAGE)
    splice_switch.share(settings.splice)
    if serving.tokenizer_worker_num > 1:
        os.environ.setdefault(_APP_VARIABLE, _WORKER_APP)
    _log_like_sglang(getattr(server_args, "log_level", "info"))
    hooks.install("serve")


def _log_like_sglang(level: str) -> None:
    """In further API processes nobody sets logging up as in the first: let our lines be seen there too."""
    ours, wanted = logging.getLogger("prr_plugins"), logging.getLevelNamesMapping().get(level.upper())
    if wanted is not None and not ours.isEnabledFor(wanted):
        ours.setLevel(wanted)
    if not ours.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
        ours.addHandler(handler)


def serving_init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Where a chat handler is made."""
    original(self, *args, **kwargs)
    if not is_ours(self):
        return
    from prr_plugins.sglang.detectors import FAMILIES  # as in `activate`

    if flags.is_ours(self.tool_call_parser):
        self.tool_call_parser = ParserName(self.tool_call_parser, FAMILIES[self.tool_call_parser].tool)
    if any(cls.__name__ == "OpenAIServingResponses" for cls in type(self).__mro__):
        return  # another API surface, with a life of its own: parsed by our detectors, not followed
    try:
        activate(self)
    except StartupError as e:
        refuse(e)
    except Exception as e:  # an SGLang of another shape: our detectors still parse
        logger.error("%s: splicing is off: %s: %s", PACKAGE, type(e).__name__, e)
        for line in hooks.HOOKS.warnings():
            logger.warning("%s: %s", PACKAGE, line)


def activate(serving: Any) -> None:
    """Make the handler's `Runtime`.

    Raises:
        StartupError: the server must not start.
    """
    # not loaded in a process that runs none of our parsers
    from prr_plugins.sglang.runtime import RUNTIME, Runtime, engine_render

    made = getattr(serving.tokenizer_manager, RUNTIME, None)
    if made is not None:  # SGLang makes a second chat handler for its `/tokenize`
        setattr(serving, RUNTIME, made)
        return
    fmt = chosen_format(serving.tool_call_parser, serving.reasoning_parser)
    assert fmt is not None
    where = repr(serving.tokenizer_manager.model_path)
    check_markers(fmt, serving.tokenizer_manager.tokenizer, where)
    if serving.template_manager.chat_template_name is None and serving.tool_call_parser:
        check_template(fmt, engine_render(serving), where)
    settings = read_settings()
    runtime = Runtime(serving, fmt, settings)
    setattr(serving, RUNTIME, runtime)
    setattr(serving.tokenizer_manager, RUNTIME, runtime)
    if settings.admin and "sglang.srt.entrypoints.http_server" in sys.modules:
        from prr_plugins.sglang import admin  # only for who asks for it

        admin.serve()
    for line in hooks.HOOKS.warnings():
        logger.warning("%s: %s", PACKAGE, line)
    calls, reasoning = serving.tool_call_parser is not None, serving.reasoning_parser is not None
    logger.info("%s", start_line(hooks.HOOKS, fmt, runtime, calls=calls, reasoning=reasoning))
