"""The splice mode of a running server: one byte that all of its API processes share.

The first process that reads the arguments makes the file and names it in the environment; the processes it starts
inherit that. A process without it (an embedded server) has a byte of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import tempfile
from typing import get_args

from prr_plugins.common.settings import SpliceMode

ENVIRONMENT = "_PRR_SWITCH"  # not a setting: written and read by us alone
MODES: tuple[SpliceMode, ...] = ("off", "observe", "on")  # a request may only ask for less than the server does
assert set(MODES) == set(get_args(SpliceMode))


class Switch:
    """Reads and sets the mode."""

    def __init__(self, initial: SpliceMode) -> None:
        self._byte = _shared() or bytearray([MODES.index(initial)])

    @property
    def mode(self) -> SpliceMode:
        return MODES[self._byte[0] % len(MODES)]

    @mode.setter
    def mode(self, mode: SpliceMode) -> None:
        self._byte[0] = MODES.index(mode)

    def for_request(self, wanted: SpliceMode | None) -> SpliceMode:
        """The lesser of the server's mode and the one the request wants."""
        return self.mode if wanted is None else min(self.mode, wanted, key=MODES.index)


def share(initial: SpliceMode) -> None:
    """Make the shared byte, unless a parent process did. Called before other processes start."""
    if ENVIRONMENT in os.environ:
        return
    handle, path = tempfile.mkstemp(prefix="prr-switch-")
    os.write(handle, bytes([MODES.index(initial)]))
    os.close(handle)
    os.environ[ENVIRONMENT] = path
    atexit.register(_remove, path, os.getpid())


def _remove(path: str, maker: int) -> None:
    if os.getpid() == maker:  # a forked child runs its parent's exit handlers
        with contextlib.suppress(OSError):
            os.unlink(path)


def _shared() -> mmap.mmap | None:
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    try:
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), 1)
    except (OSError, ValueError):
        return None
