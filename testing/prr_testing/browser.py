"""A headless Chromium over the WebDriver protocol, as far as the tests of a local page need one. No packages.

`browser()` starts Debian's chromedriver (packages chromium and chromium-driver) on a free port of 127.0.0.1 and
ends both, by their process group, with its block.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from .server import _free_port

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's own name for a reference to an element
# Without these, Chromium calls its maker's hosts at every start.
_QUIET = ("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
          "--disable-sync")  # fmt: skip
_START_SECONDS = 60.0


class NoBrowser(RuntimeError):
    """Chromium or its driver is not installed; the message says what to install."""


class Page:
    """One window."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        response = self._http.request(method, path, json=body if method == "POST" else None)
        value = response.json()["value"]
        if response.is_error:
            raise RuntimeError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value

    def open(self, file: Path, fragment: str = "") -> None:
        """Load a local file."""
        self._call("POST", "/url", {"url": "about:blank"})  # else only the fragment would change
        self._call("POST", "/url", {"url": file.resolve().as_uri() + (f"#{fragment}" if fragment else "")})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body run in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, value: Any, seconds: float = 20.0) -> None:
        """Until the script's value is this one: what the page does behind an event comes a moment later.

        Raises:
            TimeoutError: it was something else all the time; the last value.
        """
        deadline = time.monotonic() + seconds
        while (found := self.run(script)) != value:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{script} gives {found!r}, not {value!r}")
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """A real click where the element is; an error if it is hidden or covered."""
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def text(self, selector: str) -> str:
        return str(self._call("GET", f"/element/{self._find(selector)}/text"))

    def press(self, keys: str) -> None:
        """Type into whatever has the focus; the keys of the protocol are private-use characters."""
        active = self._call("GET", "/element/active")[_ELEMENT]
        self._call("POST", f"/element/{active}/value", {"text": keys})

    def size(self, width: int, height: int) -> None:
        self._call("POST", "/window/rect", {"width": width, "height": height})

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def _find(self, selector: str) -> str:
        return str(self._call("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT])


ENTER, ESCAPE, LEFT, UP, RIGHT, DOWN = "\ue007", "\ue00c", "\ue012", "\ue013", "\ue014", "\ue015"


@contextlib.contextmanager
def browser(*arguments: str) -> Iterator[Page]:
    """A window for the length of the block. `arguments` go to Chromium.

    Raises:
        NoBrowser: it is not installed.
    """
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise NoBrowser("no chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)")
    port = _free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        none = subprocess.DEVNULL
        process = subprocess.Popen([driver, f"--port={port}"], stdout=none, stderr=none, start_new_session=True)
        try:
            options = ["--headless", "--no-sandbox", "--disable-gpu", *_QUIET, f"--user-data-dir={profile}", *arguments]
            wanted = {"alwaysMatch": {"goog:chromeOptions": {"binary": chromium, "args": options}}}
            base = f"http://127.0.0.1:{port}"
            _wait(base, process)
            made = httpx.post(f"{base}/session", json={"capabilities": wanted}, timeout=_START_SECONDS).json()["value"]
            if "sessionId" not in made:
                raise RuntimeError(made["message"])
            with httpx.Client(base_url=f"{base}/session/{made['sessionId']}", timeout=_START_SECONDS) as http:
                try:
                    yield Page(http)
                finally:
                    http.delete("")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the group: Chromium outlives its driver
            process.wait(10)


def _wait(base: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base}/status", timeout=5).json()["value"]["ready"]:
                return
        time.sleep(0.1)
    raise RuntimeError("chromedriver did not start")
