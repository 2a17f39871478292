"""What became of the places where the plugin touches an engine: the same for every engine's table of hooks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class Hook(Protocol):
    """What the tables have in common.

    target: where in the engine; parameters: names that it must take.
    """

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...


AnyHook = TypeVar("AnyHook", bound=Hook)


@dataclass(frozen=True)
class HookState(Generic[AnyHook]):
    """A hook as found here. `problem` is None if it is as we know it."""

    hook: AnyHook
    installed: bool
    problem: str | None


def states(
    hooks: Iterable[AnyHook], installed: Collection[str], check: Callable[[AnyHook], str | None]
) -> list[HookState[AnyHook]]:
    """Every hook, checked unless it is in place already."""
    return [HookState(h, h.name in installed, None if h.name in installed else check(h)) for h in hooks]


def missing(found: Iterable[HookState[AnyHook]], needed: Collection[str]) -> list[str]:
    """Names of the needed hooks that are not in order."""
    return [state.hook.name for state in found if state.hook.name in needed and state.problem is not None]


def check(hook: Hook, resolve: Callable[[], Any]) -> str | None:
    """What is wrong with a hook's target, None if nothing is. `resolve` looks it up."""
    try:
        found = resolve()
        have = set(inspect.signature(found).parameters) if hook.parameters else set()
    except (ImportError, AttributeError, TypeError, ValueError) as e:
        return f"{hook.target} is not there ({e})"
    gone = [name for name in hook.parameters if name not in have]
    return f"{hook.target} no longer takes {', '.join(gone)}" if gone else None


def load(path: str) -> Callable[..., Any]:
    """The function at `module:name`."""
    module, _, name = path.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return loaded
