"""Import paths from before the rooms: each still gives its names, the same objects as under the new one."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("bridge", "bridge.template_bridge", ["TemplateBridge"]),
        ("huggingface", "bridge.huggingface", ["bridge_of"]),
        ("machine", "parsing.stream_parser", ["StreamParser", "parse"]),
        ("assembly", "prompts.assembler", ["PromptAssembler"]),
        ("formats", "parsing.formats", ["FORMATS", "get_format"]),
        ("settings", "settings", ["Settings"]),
    ],
)
def test_it_still_imports(old: str, new: str, names: list[str]) -> None:
    before, now = (import_module(f"prr_plugins.common.{path}") for path in (old, new))
    for name in names:
        assert getattr(before, name) is getattr(now, name)
