"""Nothing of a server is left behind: not when its block ends, and not when the process that started it is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prr_testing.keeper import beneath
from prr_testing.server import running

WITHIN = 20.0  # seconds, on a machine that is busy

# Below its first process: a child, one in a session of its own that heeds no signal, and an orphan of that kind.
TREE = r"""
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf])
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", orphan])
time.sleep(600)
"""

# Starts a server as tests do, says its id, and waits.
STARTS_TREE = """
import os, sys, time
from pathlib import Path
from prr_testing.server import running
with running([sys.executable, "-c", sys.argv[1]], os.environ, Path(os.devnull)) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""
STARTS_ENGINE = """
import time
from prr_testing.models import model_dir
from prr_testing.server import ENGINE, serve_engine
with serve_engine(ENGINE, model_dir("qwen3.6")) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """Not gone, and not dead and only waiting to be reaped, for which there may be nobody here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], bool], within: float = WITHIN) -> bool:
    deadline = time.monotonic() + within
    while not (done := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


def gone(pids: set[int]) -> bool:
    try:
        return until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, pids):  # of a failed test
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def started(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that starts a server, and the server's id."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_a_killed_run_leaves_nothing_of_a_tree() -> None:
    with started(STARTS_TREE, TREE) as (process, server):
        assert until(lambda: len(beneath(server)) == 4)
        tree = {server, *beneath(server)}
        process.kill()
        assert gone(tree)


def test_the_end_of_a_block_leaves_nothing_of_a_tree(tmp_path: Path) -> None:
    with running([sys.executable, "-c", TREE], os.environ, tmp_path / "log") as process:
        assert until(lambda: len(beneath(process.pid)) == 4)
        tree = {process.pid, *beneath(process.pid)}
    assert not any(map(is_alive, tree))


def test_what_ends_by_itself_takes_its_children_with_it(tmp_path: Path) -> None:
    program = TREE.replace("time.sleep(600)\n", "sys.exit(7)\n")
    assert program != TREE
    with running([sys.executable, "-c", program], os.environ, tmp_path / "log") as process:
        assert process.wait(WITHIN) == 7
        assert not beneath(process.pid)


@pytest.mark.server
@pytest.mark.slow
def test_a_killed_run_leaves_nothing_of_a_server() -> None:
    """vLLM's API process and engine core; SGLang's server, scheduler and detokenizer."""
    with started(STARTS_ENGINE) as (process, server):
        tree = {server, *beneath(server)}
        assert len(tree) >= 3
        process.kill()
        assert gone(tree)
