"""What a user installs: the wheel's and the sdist's contents, and the commands in a bare environment without an engine.

The archives are built from the checkout as it is. The tests that install (marked `slow`) take the dependencies from the
package index that pip is set up for; where that cannot be reached they are skipped, with what pip said.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

import prr_plugins

ROOT = Path(__file__).parents[2]
TIMEOUT = 600
COMPLETION = 'Hi.\n<tool_call>\n{"name": "look", "arguments": {"at": 1e3}}\n</tool_call>'

pytestmark = pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling, which builds, is not installed here")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without this checkout in the path, and with no setting of ours."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PRR_", "PYTHON"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def build(source: Path, target: Path, kind: str) -> Path:
    done = run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, cwd=source)
    assert done.returncode == 0, done.stderr
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def own(name: str) -> bool:
    """Not the wheel's record, which holds hashes of all else."""
    return not name.endswith("/RECORD")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


# ---------------------------------------------------------------------------------------------- contents


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    held = {name for name in members(wheel) if not name.split("/")[0].endswith(".dist-info")}
    package = ROOT / "prr_plugins"
    source = {str(p.relative_to(ROOT)) for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert held == source
    assert "prr_plugins/py.typed" in held
    assert {Path(name).suffix for name in held} == {".py", ".typed"}, "no data files: none is read at run time"


def metadata(wheel: Path) -> Message:
    (name,) = (name for name in members(wheel) if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(members(wheel)[name].decode())


def test_the_wheel_s_metadata(wheel: Path) -> None:
    held = members(wheel)
    said = metadata(wheel)
    assert (said["Name"], said["Version"]) == ("prr-plugins", prr_plugins.__version__)
    assert wheel.name == f"prr_plugins-{prr_plugins.__version__}-py3-none-any.whl"
    assert said["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    (licence,) = (name for name in held if name.endswith(".dist-info/licenses/LICENSE"))
    assert held[licence] == (ROOT / "LICENSE").read_bytes()
    assert said.get_payload() == (ROOT / "README.md").read_text()


def test_the_engines_and_the_shell_find_it(wheel: Path) -> None:
    (name,) = (name for name in members(wheel) if name.endswith(".dist-info/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(members(wheel)[name].decode())
    assert {section: dict(points[section]) for section in points.sections()} == {
        "console_scripts": {"prr": "prr_plugins.cli:main"},
        "vllm.general_plugins": {"prr": "prr_plugins.vllm:register"},
        "sglang.srt.plugins": {"prr": "prr_plugins.sglang:register"},
    }


def test_the_extras_are_documented(wheel: Path) -> None:
    """All but `test`, which is for a checkout."""
    given = set(metadata(wheel).get_all("Provides-Extra", [])) - {"test"}
    assert set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.M)) == given


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "prr_plugins", "tests"} <= {
        path.name for path in source.iterdir()
    }
    assert not [path for path in source.rglob("*") if path.suffix == ".pyc" or ".venv" in path.parts]
    again = members(build(source, tmp_path / "again", "wheel"))
    assert {n: d for n, d in again.items() if own(n)} == {n: d for n, d in members(wheel).items() if own(n)}


# ---------------------------------------------------------------------------------------------- installed


class Bare:
    """A virtual environment with the wheel and what it asks for; no engine, no checkout in the path."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home = home
        self._wheel = wheel
        done = run(sys.executable, "-m", "venv", home, cwd=home.parent)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, extras: str = "") -> None:
        done = self._pip("install", f"{self._wheel}{extras}")
        if done.returncode:
            # Is it the wheel, or the index? Any one package tells.
            probe = self._pip("download", "--no-deps", "--dest", str(self.home / "probe"), "regex")
            if probe.returncode:
                pytest.skip(f"the package index cannot be reached: {probe.stderr.strip().splitlines()[-1]}")
            pytest.fail(done.stderr)

    def _pip(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        quiet = ("-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "20")
        return run(self.home / "bin" / "python", "-m", "pip", command, *quiet, *arguments, cwd=self.home)

    def __call__(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(self.home / "bin" / program, *arguments, cwd=self.home)


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    made = Bare(tmp_path_factory.mktemp("bare") / "venv", wheel)
    made.install()
    return made


@pytest.fixture(scope="module")
def shell(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Another one, with the extra `cli`."""
    made = Bare(tmp_path_factory.mktemp("shell") / "venv", wheel)
    made.install("[cli]")
    return made


@pytest.mark.slow
def test_the_library_needs_no_engine(library: Bare) -> None:
    program = (
        "from prr_plugins.common import parse, StreamParser, ParsedCompletion, TemplateBridge, TurnStore\n"
        "import prr_plugins, sys\n"
        "from importlib.metadata import version\n"
        f"done = parse('prr_hermes', {COMPLETION!r})\n"
        "print(prr_plugins.__version__ == version('prr-plugins'), done.content, done.parsed_tool_calls[0].arguments)\n"
        "print(sorted({'vllm', 'sglang', 'torch', 'transformers', 'typer'} & set(sys.modules)))\n"
    )
    done = library("python", "-c", program)
    assert (done.returncode, done.stdout) == (0, 'True Hi. {"at": 1e3}\n[]\n'), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--help",), ("parse", "--format", "prr_hermes")])
def test_prr_without_its_extra_says_what_to_install(library: Bare, arguments: tuple[str, ...]) -> None:
    done = library("prr", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "prr: typer is not installed; run: pip install 'prr-plugins[cli]'\n"


@pytest.mark.slow
def test_prr_shows_its_help_and_version(shell: Bare) -> None:
    done = shell("prr", "--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("parse", "check", "doctor", "store", "--version"))
    for program in (("prr",), ("python", "-m", "prr_plugins.cli")):
        done = shell(*program, "--version")
        assert (done.returncode, done.stdout) == (0, f"{prr_plugins.__version__}\n"), done.stderr


@pytest.mark.slow
def test_prr_parse_reads_a_completion(shell: Bare) -> None:
    sample = shell.home / "completion.txt"
    sample.write_text(COMPLETION)
    done = shell("prr", "parse", "--format", "prr_hermes", "--json", str(sample))
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["content"] == "Hi."
    assert [(call["name"], call["arguments"]) for call in read["parsed_tool_calls"]] == [("look", '{"at": 1e3}')]
    done = shell("prr", "parse", "--format", "prr_hermes", str(sample))
    assert done.returncode == 0, done.stderr
    assert "look" in done.stdout


@pytest.mark.slow
def test_prr_check_reads_a_template(shell: Bare) -> None:
    template = shell.home / "chat_template.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    done = shell("prr", "check", "--json", str(template))
    assert done.returncode in (0, 1), done.stderr
    json.loads(done.stdout)


@pytest.mark.slow
def test_prr_doctor_misses_an_engine(shell: Bare) -> None:
    done = shell("prr", "doctor")
    assert done.returncode == 2
    assert done.stdout.strip() == "ERROR    engine  no engine is installed in this environment"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "matrix"])
def test_what_needs_a_checkout_says_so(shell: Bare, command: str) -> None:
    done = shell("prr", command)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"make {command}" in done.stderr
