"""What must be right before a server starts, and the line that says what is active.

A server that cannot do what its flags ask for refuses to start with one line: a `PRR_*` value that is not accepted, two
names that do not go together, a tokenizer without the format's markers, a template that writes calls in another format.
(An unknown name is refused by SGLang itself, whose message lists all it knows.)
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from sglang.srt.runtime_context import get_serving
from sglang.version import __version__ as sglang_version

from prr_plugins.common import switch
from prr_plugins.common.checks import StartupError, check_markers, check_template, read_settings
from prr_plugins.common.formats import Format, get_format
from prr_plugins.sglang import hooks

logger = logging.getLogger(__name__)

PACKAGE = "prr-plugins"
PREFIX = "prr_"
# SGLang starts further API processes from this path; ours loads the plugins first, which SGLang does not do there.
_APP_VARIABLE = "SGLANG_HTTP_SERVER_APP_PATH"
_WORKER_APP = "prr_plugins.sglang.worker:app"


def refuse(message: str | Exception) -> NoReturn:
    """End the server with one line on stderr, its other processes included."""
    print(f"ERROR {PACKAGE}: {message}", file=sys.stderr, flush=True)
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


def is_ours(serving: Any) -> bool:
    """Whether a chat handler runs one of our parsers."""
    return any(_ours(name) for name in (serving.tool_call_parser, serving.reasoning_parser))


def _ours(name: str | None) -> bool:
    return name is not None and name.startswith(PREFIX)


def chosen_format(tool: str | None, reasoning: str | None) -> Format | None:
    """The one format in use, None where the flags choose none of ours.

    Raises:
        StartupError: names that do not go together.
    """
    named = {
        flag: name
        for flag, name in (("--tool-call-parser", tool), ("--reasoning-parser", reasoning))
        if name is not None
    }
    if not any(_ours(name) for name in named.values()):
        return None
    if len(set(named.values())) > 1:
        flags = " and ".join(f"{flag} {name}" for flag, name in named.items())
        raise StartupError(f"{flags} do not go together: choose one prr_* name for both, or leave one unset")
    return get_format(next(iter(named.values())))


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
    switch.share(settings.splice)
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
    from prr_plugins.sglang.detectors import FAMILIES

    if _ours(self.tool_call_parser):
        self.tool_call_parser = ParserName(self.tool_call_parser, FAMILIES[self.tool_call_parser].tool)
    if any(cls.__name__ == "OpenAIServingResponses" for cls in type(self).__mro__):
        return  # another API surface, with a life of its own: parsed by our detectors, not followed
    try:
        activate(self)
    except StartupError as e:
        refuse(e)
    except Exception as e:  # an SGLang of another shape: our detectors still parse
        logger.error("%s: splicing is off: %s: %s", PACKAGE, type(e).__name__, e)
        for line in problems():
            logger.warning("%s: %s", PACKAGE, line)


def activate(serving: Any) -> None:
    """Make the handler's `Runtime`.

    Raises:
        StartupError: the server must not start.
    """
    from prr_plugins.sglang.runtime import Runtime, engine_render
    from prr_plugins.sglang.serving import RUNTIME

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
        from prr_plugins.sglang import admin

        admin.serve()
    for line in problems():
        logger.warning("%s: %s", PACKAGE, line)
    logger.info("%s", start_line(serving, runtime))


def start_line(serving: Any, runtime: Any) -> str:
    """What is active, in one line."""
    halves = [
        name
        for name, half in (("calls", serving.tool_call_parser), ("reasoning", serving.reasoning_parser))
        if half is not None
    ]
    in_place = sum(state.installed for state in hooks.states())
    wanted = sum(hook.wrapper is not None for hook in hooks.HOOKS)
    return (
        f"{PACKAGE} {version()} on SGLang {sglang_version}: {runtime.format.name} for {' and '.join(halves)}, "
        f"splice {runtime.mode(None)}, retention {runtime.settings.retention}, "
        f"store {runtime.settings.store_bytes >> 20} MiB, hooks {in_place}/{wanted}"
    )


def problems() -> list[str]:
    """What is not as it should be with this SGLang, a line each."""
    lines = hooks.problems()
    if sglang_version.split("+")[0] not in hooks.TRIED:
        lines.append(f"SGLang {sglang_version} was not tried with this release ({', '.join(hooks.TRIED)} were)")
    return lines


def version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "(not installed)"
