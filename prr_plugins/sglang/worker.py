"""SGLang's HTTP application for further API processes (`--tokenizer-worker-num`), with the plugins loaded.

SGLang loads plugins in every process it starts itself, but these are started by the web server from the path of an
application: `startup` names this one.
"""

from __future__ import annotations

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402 - the plugins come first

__all__ = ["app"]
