"""The hook table without an engine: what is put in place, what is left alone, and how that is named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from prr_plugins.common.serving.hooks import Hook, HookTable


class Engine:
    """Two places of an engine; `refuses` names hooks that do not take."""

    def __init__(self, *refuses: str) -> None:
        self.places = SimpleNamespace(chat=lambda request, messages: "engine's own", gone_soon=lambda request: None)
        self.refuses = refuses

    def find(self, hook: Hook) -> Any:
        return getattr(self.places, hook.target)

    def put(self, wrappers: dict[Hook, Callable[..., Any]]) -> dict[str, str]:
        for hook, wrapper in wrappers.items():
            if hook.name not in self.refuses:
                setattr(self.places, hook.target, wrapper(self.find(hook)))
        return {hook.name: "did not take" for hook in wrappers if hook.name in self.refuses}

    def table(self, *rows: Hook, version: str = "1.2") -> HookTable:
        return HookTable("Engine", version, ("1.2",), rows, self.find, self.put)


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: "ours"


WRAPPER = f"{__name__}:wrap"
CHAT = Hook("chat", "chat", "serve", "splicing", WRAPPER, ("request", "messages"))


def test_a_hook_that_fits_is_put_in_place_once() -> None:
    engine = Engine()
    table = engine.table(CHAT)
    table.install("serve")
    table.install("serve")
    assert engine.places.chat() == "ours"
    assert [(s.installed, s.problem) for s in table.states()] == [(True, None)]
    assert table.missing({"chat"}) == table.problems() == table.warnings() == []


def test_only_the_hooks_of_a_stage_are_put_in_place() -> None:
    engine = Engine()
    engine.table(CHAT).install("register")
    assert engine.places.chat(1, 2) == "engine's own"


def test_a_place_with_other_parameters_is_left_alone_and_named() -> None:
    engine = Engine()
    table = engine.table(Hook("chat", "chat", "serve", "splicing", WRAPPER, ("request", "conversation")))
    table.install("serve")
    assert engine.places.chat(1, 2) == "engine's own"
    assert table.problems() == ["chat no longer takes conversation: off: splicing"]
    assert table.missing({"chat"}) == ["chat"]


def test_a_place_that_is_gone_turns_off_only_its_own() -> None:
    engine = Engine()
    table = engine.table(Hook("away", "nowhere", "serve", "batches", WRAPPER), CHAT)
    table.install("serve")
    assert engine.places.chat() == "ours"
    assert [line.endswith("off: batches") for line in table.problems()] == [True]
    assert table.missing({"chat"}) == []


def test_our_side_that_cannot_be_imported_is_a_problem_too() -> None:
    table = Engine().table(Hook("chat", "chat", "serve", "splicing", "prr_plugins.no_such_module:wrap"))
    table.install("serve")
    assert "our hook does not load (ModuleNotFoundError" in table.problems()[0]


def test_a_place_that_does_not_take_the_hook_is_a_problem() -> None:
    table = Engine("chat").table(CHAT)
    table.install("serve")
    assert table.problems() == ["did not take: off: splicing"]
    assert not table.states()[0].installed


def test_an_engine_that_was_not_tried_is_named() -> None:
    assert Engine().table(CHAT, version="1.2+cpu").warnings() == []
    assert Engine().table(CHAT, version="1.3").warnings() == ["Engine 1.3 was not tried with this release (1.2 were)"]
