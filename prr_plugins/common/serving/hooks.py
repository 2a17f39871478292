"""The table of places where a plugin hangs on its engine, and what became of each in this process.

Promise: a place is looked up and checked (it exists, and takes the parameters we rely on) before anything is put there.
What does not fit is left alone and named: in the start line's warnings, by `prr doctor`, and in what it turns off.

An engine's `hooks.py` holds its rows and says how a place is found and a hook put in; nothing else in its folder
patches the engine.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hook:
    """One place.

    target: where in the engine, as the engine's table spells it.
    stage: when it is put in place; `check`: it is only relied upon, not replaced.
    loses: what does not work without it.
    wrapper: `module:function` of ours that takes the place; None for `check`.
    parameters: names that the target must take.
    public: documented by the engine for plugins; anything else may move with any release.
    """

    name: str
    target: str
    stage: str
    loses: str
    wrapper: str | None = None
    parameters: tuple[str, ...] = ()
    public: bool = False


@dataclass(frozen=True)
class HookState:
    """A hook as found here. `problem` is None if it is as we know it."""

    hook: Hook
    installed: bool
    problem: str | None


class HookTable:
    """The hooks of one engine.

    engine, version: as people write them. tried: versions on which the tests ran.
    find: the object at a target. Raises ImportError or AttributeError where there is none.
    put: puts hooks in place, each with our function for it; returns, by name, why some did not take.
    """

    def __init__(
        self,
        engine: str,
        version: str,
        tried: Sequence[str],
        rows: Iterable[Hook],
        find: Callable[[Hook], Any],
        put: Callable[[dict[Hook, Callable[..., Any]]], dict[str, str]],
    ) -> None:
        self.engine = engine
        self.version = version
        self.tried = tuple(tried)
        self.rows = tuple(rows)
        self.installed: set[str] = set()
        self.not_in_place: dict[str, str] = {}
        self._find = find
        self._put = put

    def check(self, hook: Hook) -> str | None:
        """What is wrong with a hook's target or with our hook on it, None if nothing is."""
        if hook.name in self.not_in_place:
            return self.not_in_place[hook.name]
        try:
            found = self._find(hook)
            have = set(inspect.signature(found).parameters) if hook.parameters else set()
        except (ImportError, AttributeError, TypeError, ValueError) as e:
            return f"{hook.target} is not there ({e})"
        gone = [name for name in hook.parameters if name not in have]
        return f"{hook.target} no longer takes {', '.join(gone)}" if gone else None

    def does_not_load(self, hook: Hook) -> str | None:
        """Why our side of a hook cannot be imported with this engine, None if it can."""
        try:
            if hook.wrapper is not None:
                _load(hook.wrapper)
        except Exception as e:  # our module imports the engine's, which may fail in any way
            return f"{hook.target}: our hook does not load ({type(e).__name__}: {e})"
        return None

    def install(self, stage: str) -> None:
        """Put the hooks of `stage` in place, each once; one that fails its check is left alone."""
        wanted: dict[Hook, Callable[..., Any]] = {}
        for hook in self.rows:
            if hook.stage != stage or hook.wrapper is None or hook.name in self.installed or self.check(hook):
                continue
            if problem := self.does_not_load(hook):
                self.not_in_place[hook.name] = problem
            else:
                wanted[hook] = _load(hook.wrapper)
        failed = self._put(wanted)
        self.not_in_place |= failed
        self.installed |= {hook.name for hook in wanted} - failed.keys()

    def states(self, stage: str | None = None) -> list[HookState]:
        """Every hook (of `stage`), checked unless it is in place already."""
        return [
            HookState(h, h.name in self.installed, None if h.name in self.installed else self.check(h))
            for h in self.rows
            if stage in (None, h.stage)
        ]

    def missing(self, needed: Collection[str]) -> list[str]:
        """Names of the needed hooks that are not in order."""
        return [s.hook.name for s in self.states() if s.hook.name in needed and s.problem is not None]

    def problems(self, stage: str | None = None) -> list[str]:
        """What is not in order (of `stage` alone, where it is given) and what is off without it, a line each."""
        return [f"{s.problem}: off: {s.hook.loses}" for s in self.states(stage) if s.problem is not None]

    @property
    def was_tried(self) -> bool:
        """Whether the tests ran on this version of the engine."""
        return self.version.split("+")[0] in self.tried

    def warnings(self) -> list[str]:
        """What is not as it should be with this engine, a line each."""
        untried = f"{self.engine} {self.version} was not tried with this release ({', '.join(self.tried)} were)"
        return self.problems() + ([] if self.was_tried else [untried])


def _load(path: str) -> Callable[..., Any]:
    """The function at `module:name`."""
    module, _, name = path.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return loaded
