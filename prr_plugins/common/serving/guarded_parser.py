"""A parser whose faults never fail a request (L7): after one, all text that was not shown yet is content.

Promise: nothing here raises. A fault is counted and logged once. Where the client must not see the reasoning, a fault
does not show it either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from prr_plugins.common import faults
from prr_plugins.common.parsing import Delta, Format, ParsedCompletion, StreamParser
from prr_plugins.common.serving.runtime import BaseRuntime


class GuardedParser:
    """One completion.

    make: makes the parser of `fmt`. runtime: counts a fault; None where there is none yet.
    logger: one that writes where the engine's log goes.
    hides_reasoning: the client must not see it.
    opened: the prompt opened the reasoning. failed: there was a fault.
    """

    def __init__(
        self,
        fmt: Format,
        make: Callable[[], StreamParser],
        runtime: BaseRuntime | None,
        logger: logging.Logger,
        *,
        hides_reasoning: bool = False,
    ) -> None:
        self.failed = False
        self.opened = False
        self._format = fmt
        self._hides = hides_reasoning
        self._runtime = runtime
        self._logger = logger
        self._finished = False
        self._stream: StreamParser | None = None
        try:
            self._stream = make()
            self.opened = self._stream.reasoning_open
        except Exception as e:
            self._fail(e, "", None)

    def feed(self, text: str, ids: Sequence[int]) -> list[Delta]:
        """The next text and the ids that came with it."""
        return self._step(text, lambda stream: stream.feed(text, ids))

    def finish(self, finish_reason: str) -> list[Delta]:
        """The completion is over, for the engine's reason."""
        return self._step("", lambda stream: stream.finish(finish_reason), last=True)

    def whole(self, text: str, ids: Sequence[int], finish_reason: str) -> list[Delta]:
        """A completion that came as a whole; after a fault all of it is content."""
        return self._step(text, lambda stream: [*stream.feed(text, ids), *stream.finish(finish_reason)], last=True)

    @property
    def parsed(self) -> ParsedCompletion | None:
        """The whole result, once the completion is finished; None before, and after a fault."""
        return self._stream.result if self._finished and self._stream is not None else None

    @property
    def reasoning_open(self) -> bool | None:
        """Whether the text that comes next is reasoning, or the completion ended inside it; None after a fault."""
        return None if self.failed or self._stream is None else self._stream.reasoning_open

    def _step(self, text: str, step: Callable[[StreamParser], list[Delta]], *, last: bool = False) -> list[Delta]:
        if self._stream is not None and not self.failed:
            shown, was_open = self._stream.shown, self._stream.reasoning_open
            try:
                deltas = step(self._stream)
                if (shown or last) and self._runtime is not None and self._runtime.settings.fault == "parse":
                    raise RuntimeError("PRR_FAULT=parse")
                self._finished = last
                return deltas
            except Exception as e:
                text = self._stream.text_from(shown)
                self._fail(e, text, was_open)
        text = self._presentable(text)
        return [Delta("content", text)] if text else []

    def _fail(self, error: Exception, text: str, reasoning_open: bool | None) -> None:
        """reasoning_open: whether `text`, what is not shown yet, begins inside reasoning; None: not known."""
        self.failed = True
        opens = (self._format.reasoning_start or "\0") in text
        self._hides = self._hides and (reasoning_open is not False or opens)
        self._logger.error("parsing failed (%s); the rest is returned as content", faults.described(error))
        if self._runtime is not None:
            self._runtime.parse_failed()

    def _presentable(self, text: str) -> str:
        """The text, from behind the reasoning on where that is to be hidden."""
        if not self._hides:
            return text
        _, end, rest = text.partition(self._format.reasoning_end or "\0")
        self._hides = not end
        return rest
