"""What pages say in figures is what the code says: hooks, versions, extras, settings."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import prr_plugins
from prr_plugins.common.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENGINES = ("vllm", "sglang")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _hooks(engine: str) -> tuple[list[str], tuple[str, ...]]:
    """The stage of each hook in an engine's table, and the versions tried; the engine need not be installed."""
    tree = ast.parse((ROOT / "prr_plugins" / engine / "hooks.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Hook"]
    (tried,) = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TRIED"
    ]
    return [ast.literal_eval(call.args[2]) for call in calls], ast.literal_eval(tried)


def _row(name: str) -> list[str]:
    """The cells of the first row of docs/engines.md that begins with `name`."""
    text = (DOCS / "engines.md").read_text(encoding="utf-8")
    (row, *_) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", text, re.M)
    return row.split(" | ")


@pytest.mark.parametrize(("engine", "column"), [("vllm", 0), ("sglang", 1)])
def test_engine_versions_and_hooks(engine: str, column: int) -> None:
    stages, tried = _hooks(engine)
    assert _row("its hooks")[column] == f"{len(stages)} of {len(stages)}"
    assert _row("tried, with every test on real servers")[column] == tried[-1]
    (requirement,) = PROJECT["optional-dependencies"][engine]
    assert _row("supported: the extra")[column] == f"`prr-plugins[{engine}]`: `{requirement.removeprefix(engine)}`"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_start_line(engine: str) -> None:
    """It counts the hooks that are put in place on every server."""
    stages, tried = _hooks(engine)
    placed = len([stage for stage in stages if stage not in ("check", "admin")])
    text = (DOCS / f"{engine}.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^prr-plugins (\S+) on \w+ (\S+): .* hooks (\d+)/(\d+)$", text, re.M)
    assert line == (prr_plugins.__version__, tried[-1], str(placed), str(placed))


def test_extras_exist() -> None:
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for extra in re.findall(r"prr-plugins\[(\w+)\]", page.read_text(encoding="utf-8")):
            assert extra in PROJECT["optional-dependencies"], page


@pytest.mark.parametrize("page", ["README.md", "docs/vllm.md", "docs/store.md"])
def test_tables_of_settings(page: str) -> None:
    """| variable | values | default | ... |, as the code has them."""
    settings = {setting.variable: setting for setting in SETTINGS}
    rows = re.findall(r"^\| (`PRR_.+?) \| (.+?) \| (.+?) \| .+ \|$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert rows
    for variables, values, default in rows:
        for setting in (settings[variable] for variable in re.findall(r"`(PRR_\w+)`", variables)):
            choices = setting.accepts.split(" | ")
            if len(choices) > 1 and all(re.fullmatch(r"[a-z_]+", choice) for choice in choices):
                assert values == ", ".join(f"`{choice}`" for choice in choices), setting.variable
            if re.fullmatch(r"`.+`|[\d.]+|off", default):
                assert setting.read(default.strip("`")) == setting.default, setting.variable
            elif not default.startswith("see "):
                assert setting.default is None, setting.variable


def test_every_setting_is_in_a_table() -> None:
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("vllm.md", "store.md"))
    listed = {name for row in re.findall(r"^\| (`PRR_[^|]+)", text, re.M) for name in re.findall(r"PRR_\w+", row)}
    assert listed == {setting.variable for setting in SETTINGS} - {"PRR_TEST", "PRR_FAULT"}


def test_every_room_is_in_the_architecture() -> None:
    """The rooms are the layers that `make lint` checks, in the same order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = [[part.strip() for part in layer.split("|")] for layer in layers]
    text = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Rooms\n")[2].partition("## Laws\n")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    places = []
    for layer in rooms:
        spelt = [name.replace(".", "/") for name in layer]
        spelt = [f"{name}/" if (ROOT / name).is_dir() else f"{name.rpartition('/')[2]}.py" for name in spelt]
        places.append({next(at for at, line in enumerate(lines) if f"`{name}`" in line) for name in spelt})
    assert all(max(upper) < min(lower) for upper, lower in itertools.pairwise(places))
