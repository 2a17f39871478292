"""The newest release of each engine, tried at parser level: `python tools/newest.py [vllm] [sglang]` (`make newest`).

For each engine a throw-away environment: the pinned engine of this checkout (`tools/setup_engine.py`) with the newest
release in front of it, installed without its dependencies, so torch and GPU packages are never resolved; the few that a
release newly needs are pinned in tools/engines/newest.lock. vLLM's own wheel is a CUDA build: the release is installed
from its source with `VLLM_TARGET_DEVICE=empty`, which leaves Python files alone.

There `prr doctor` looks up every hook, and the tests that need no server run. Prints a table, writes out/newest.json.
Exit code 1: a hook is missing or a test failed; 2: an environment could not be made. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path

from setup_engine import (  # type: ignore[import-not-found]  # the script beside this one
    PIP_INSTALL,
    ROOT,
    set_up,
    site_packages,
)

OUT = ROOT / "out" / "newest.json"
LIMIT = 1800  # seconds for one step


@dataclass(frozen=True)
class Newest:
    """How an engine's newest release is tried.

    tests: those that need no server. build: what its source needs to be built, empty where there is a wheel without
    GPU code.
    """

    tests: tuple[str, ...]
    build: tuple[str, ...] = ()


ENGINES = {
    "vllm": Newest(
        ("tests/vllm/test_units.py",), ("setuptools-scm", "vcs-versioning", "setuptools-rust", "semantic_version")
    ),
    "sglang": Newest(("tests/sglang/test_names.py", "tests/sglang/test_hooks.py")),
}


@dataclass
class Result:
    """What came of one engine. hooks: name -> None if it is as we know it, else what is wrong."""

    engine: str
    version: str
    hooks: dict[str, str | None] = field(default_factory=dict)
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    problem: str | None = None


class StepFailed(Exception):
    """A step of making the environment failed; the end of what it said."""


def run(*command: str | Path, **variables: str) -> str:
    """A step's output.

    Raises:
        StepFailed: it ended with another code than 0, or took too long.
    """
    line = [str(part) for part in command]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **variables}, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{' '.join(line[:6])}...: not done after {LIMIT} s") from None
    if done.returncode:
        raise StepFailed("\n".join((done.stderr or done.stdout).strip().splitlines()[-5:]))
    return done.stdout


def newest_version(python: Path, engine: str) -> str:
    """The newest release that pip knows of."""
    said = run(python, "-m", "pip", "index", "versions", engine, "--disable-pip-version-check")
    found = re.search(rf"^{engine} \((\S+)\)", said, re.MULTILINE)
    if found is None:
        raise StepFailed(f"pip does not say which release of {engine} is the newest")
    return found[1]


def make(directory: Path, engine: str, version: str, pinned: Path) -> Path:
    """The throw-away environment; its python. pinned: the overlay's python, whose engine lies behind."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site_packages(directory) / "engine.pth").write_text(
        (site_packages(pinned.parent.parent) / "engine.pth").read_text()
    )
    python = directory / "bin" / "python"
    into = (python, *PIP_INSTALL, "--no-deps", "--ignore-installed", "--prefix", directory)
    wanted = ENGINES[engine]
    if wanted.build:
        run(*into, *wanted.build)
        source = (*into, "--no-build-isolation", f"--no-binary={engine}", f"{engine}=={version}")
        run(*source, VLLM_TARGET_DEVICE="empty", VLLM_VERSION_OVERRIDE=version)
    else:
        run(*into, "--only-binary=:all:", f"{engine}=={version}")
    run(*into, "--only-binary=:all:", "-r", ROOT / "tools" / "engines" / "newest.lock")
    own = (ROOT, ROOT / "testing")
    run(*into, "--no-build-isolation", "--no-index", *(part for folder in own for part in ("-e", folder)))
    return python


def examine(python: Path, engine: str) -> dict[str, str | None]:
    """What `prr doctor` says of the hooks."""
    module = "prr_testing.sglang_cpu" if engine == "sglang" else None
    start = f"import {module}; " if module else ""
    code = f"{start}import sys; sys.argv = ['prr', 'doctor', '--json']; from prr_plugins.cli import main; main()"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=LIMIT, cwd=ROOT)
    try:
        findings = json.loads(done.stdout[done.stdout.index("{") :])["findings"]
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise StepFailed(f"prr doctor does not run: {last[0]}") from None
    hooks = [f for f in findings if f["check"].startswith("hook ")]
    return {f["check"].removeprefix("hook "): None if f["level"] == "ok" else f["detail"] for f in hooks}


def test(python: Path, engine: str) -> tuple[int, list[str]]:
    """How many tests passed, and the names of those that did not."""
    options = ("-o", "addopts=", "-q", "--no-header", "-rfE", "-p", "no:cacheprovider")  # one -q: it counts the tests
    command = [str(python), "-m", "pytest", *options, *ENGINES[engine].tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT)
    passed = re.search(r"(\d+) passed", done.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if passed is None and not failed:
        failed = ["no test ran: " + (done.stdout + done.stderr).strip().splitlines()[-1]]
    return int(passed[1]) if passed else 0, failed


def attempt(engine: str) -> Result:
    """Everything for one engine."""
    pinned = set_up(engine)
    result = Result(engine, "?")
    with tempfile.TemporaryDirectory(prefix=f"newest-{engine}-") as directory:
        try:
            result.version = newest_version(pinned, engine)
            print(f"{engine} {result.version}: making an environment", file=sys.stderr, flush=True)
            python = make(Path(directory) / "env", engine, result.version, pinned)
            result.hooks = examine(python, engine)
            print(f"{engine} {result.version}: running {', '.join(ENGINES[engine].tests)}", file=sys.stderr, flush=True)
            result.passed, result.failed = test(python, engine)
        except (StepFailed, subprocess.TimeoutExpired) as error:
            result.problem = str(error)
    return result


def show(result: Result) -> None:
    """One engine, for a person."""
    missing = {name: why for name, why in result.hooks.items() if why is not None}
    print(f"{result.engine} {result.version}")
    if result.problem is not None:
        print(f"  not tried: {result.problem}")
        return
    print(f"  hooks  {len(result.hooks) - len(missing)} of {len(result.hooks)} found")
    for name, why in missing.items():
        print(f"         missing {name}: {why}")
    print(f"  tests  {result.passed} passed, {len(result.failed)} failed")
    for name in result.failed:
        print(f"         {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the newest release of each engine at parser level.")
    parser.add_argument("engine", nargs="*", help=f"of {', '.join(ENGINES)} (default: all)")
    wanted = parser.parse_args().engine or list(ENGINES)
    unknown = sorted(set(wanted) - set(ENGINES))
    if unknown:
        parser.error(f"no engine {unknown[0]!r}; there are {', '.join(ENGINES)}")
    results = [attempt(engine) for engine in wanted]
    for result in results:
        show(result)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(OUT)
    if any(result.problem for result in results):
        return 2
    return 1 if any(result.failed or any(result.hooks.values()) for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
