"""`/v1/prr` on SGLang: only with `PRR_ADMIN=1`."""

from __future__ import annotations

from typing import Any

from prr_plugins.common.serving import admin
from prr_plugins.sglang.runtime import RUNTIME, Runtime


def _runtime(state: Any) -> Runtime | None:
    found: Runtime | None = getattr(getattr(state, "openai_serving_chat", None), RUNTIME, None)
    return found


def serve() -> None:
    """Add the routes to SGLang's HTTP application."""
    from sglang.srt.entrypoints.http_server import app  # only where the server is this process's own

    app.include_router(admin.routes(_runtime))
