"""Which line of an engine made a text: its code is run again under a tracer that notes when a value first stood.

A text that a parser returns is looked up among all texts that stood in local variables, in objects' fields and in
return values while it ran; the line after which it stood first is the one that made it. That is what was executed, not
a guess from reading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_DEPTH = 3
_NODES = 400


class Place(NamedTuple):
    """A line of an installed file. `file` begins with the package's name."""

    file: str
    line: int
    source: str


class Tracer:
    """Notes where texts first stood in the code below `root` (an engine's package folder), and which lines ran."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.texts: dict[str, tuple[str, int]] = {}
        self.ran: set[tuple[str, int]] = set()
        self._last: dict[FrameType, int] = {}

    def run(self, work: Callable[[], object]) -> None:
        """Run `work` in this thread under the tracer. What it raises is part of what is looked at."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        except Exception:  # the same run without the tracer said what there was to say
            pass
        finally:
            sys.settrace(before)
            self._last.clear()

    def first(self, text: str) -> Place | None:
        """The line that made exactly this text."""
        found = self.texts.get(text)
        return self.place(*found) if found else None

    def first_holding(self, part: str) -> Place | None:
        """The line that first made a text which holds this part."""
        found = next((where for text, where in self.texts.items() if part in text), None)
        return self.place(*found) if found else None

    def place(self, file: str, line: int) -> Place:
        return place(self._root, file, line)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._root):
            return None
        caller = frame.f_back  # what a call is given was made on the caller's line
        while caller is not None and not caller.f_code.co_filename.startswith(self._root):
            caller = caller.f_back
        self._note(frame.f_locals.values(), caller or frame, (caller or frame).f_lineno)
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._note(frame.f_locals.values(), frame, self._last.pop(frame, frame.f_lineno))
            self._note([arg], frame, frame.f_lineno)
        elif event == "line":  # what stands now was made by the line before
            self._note(frame.f_locals.values(), frame, self._last.get(frame, frame.f_lineno))
            self._last[frame] = frame.f_lineno
            self.ran.add((frame.f_code.co_filename, frame.f_lineno))
        return self._step

    def _note(self, values: Any, frame: FrameType, line: int) -> None:
        for text in _texts(values):
            if text not in self.texts:
                self.texts[text] = (frame.f_code.co_filename, line)


def place(root: str, file: str, line: int) -> Place:
    """A place with its source, the file named from its package on."""
    try:
        source = Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError):
        source = ""
    path = Path(file)
    shown = path.relative_to(Path(root).parent) if path.is_relative_to(Path(root).parent) else Path(path.name)
    return Place(str(shown), line, source)


def _texts(values: Any) -> Iterator[str]:
    """The texts in some values and a little below them."""
    left = _NODES
    level = list(values)
    for _ in range(_DEPTH):
        below: list[Any] = []
        for value in level:
            left -= 1
            if left < 0:
                return
            if isinstance(value, str):
                yield value
            elif isinstance(value, list | tuple):
                below += value[-20:]
            elif isinstance(value, dict):
                below += list(value.values())[:20]
            elif not callable(value) and type(value).__module__.partition(".")[0] in _ENGINES:
                below += list(getattr(value, "__dict__", {}).values())[:40]
        level = below


_ENGINES = ("vllm", "sglang")
