"""Between a client and a server: adds fields to the requests that pass, and keeps what passed.

So a client in any language talks to a scripted server without knowing: its requests get the script of the sampler on
the way, and the test sees what the client really sent and the ids that came back.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


@dataclass
class Exchange:
    """One request as the client sent it, and what came back: a response, or the events of a stream."""

    path: str
    request: dict[str, Any]
    status: int
    events: list[dict[str, Any]]

    def find(self, name: str) -> Any:
        """The value of a field of the response, or of the last event that has it."""
        return next((event[name] for event in reversed(self.events) if event.get(name) is not None), None)


@dataclass
class Wire:
    """url: the base URL for the client, without `/v1`."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextlib.contextmanager
def wire(base_url: str, fields: Sequence[dict[str, Any]]) -> Iterator[Wire]:
    """A wire to the server at `base_url`; the n-th POST gets the n-th of `fields` added to its body."""
    listener = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    made = Wire(f"http://127.0.0.1:{listener.server_port}")
    listener.passing = _Passing(base_url, iter(fields), made)  # type: ignore[attr-defined]
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@dataclass
class _Passing:
    base_url: str
    fields: Iterator[dict[str, Any]]
    wire: Wire


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        passing: _Passing = self.server.passing  # type: ignore[attr-defined]
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        body = {**sent, **next(passing.fields)}
        answer = httpx.post(f"{passing.base_url}{path}", json=body, timeout=300)
        passing.wire.exchanges.append(Exchange(path, sent, answer.status_code, _events(answer.text)))
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers["content-type"])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test reports."""


def _events(text: str) -> list[dict[str, Any]]:
    if text.startswith("{"):
        return [json.loads(text)]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
