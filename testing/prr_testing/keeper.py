"""Runs a command and leaves nothing of it behind: `python keeper.py COMMAND...`, with a pipe as its stdin.

Whoever starts this holds the other end of the pipe. When that closes, however its holder ended, or when the command
ends by itself, every process beneath this one is killed: those that went into a session of their own too, and those
whose parent is gone, which the kernel hands to us instead of to init. Exits as the command did.

A file of its own, run by its path: it imports nothing of the tests, and starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # PR_SET_... of prctl(2)


def die_with_parent() -> None:
    """In a new process, before it becomes the command: the kernel ends it with the thread that started it."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def beneath(root: int) -> set[int]:
    """The processes that stand under one, at any depth, without itself."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])  # the name before it may hold anything
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        more = children.get(waiting.pop(), [])
        found.update(more)
        waiting += more
    return found


def _kill_all() -> None:
    for pid in beneath(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _watch() -> None:
    while os.read(0, 4096):
        pass
    _kill_all()  # the command with them, which ends the wait below


def main() -> int:
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)
    # What ends the server's group is for the server; as a handler, not ignored, for that would be inherited.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    threading.Thread(target=_watch, daemon=True).start()
    code = None
    while code is None:
        pid, status = os.wait()  # also those that were handed to us
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(ChildProcessError):
        while True:
            _kill_all()
            os.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for the thread that reads
