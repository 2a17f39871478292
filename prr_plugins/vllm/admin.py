"""`/v1/prr` on vLLM: with `VLLM_SERVER_DEV_MODE=1`, as vLLM's own administration routes, or with `PRR_ADMIN=1`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from prr_plugins.common.serving import admin
from prr_plugins.vllm.runtime import Runtime


def _runtime(state: Any) -> Runtime | None:
    found: Runtime | None = getattr(getattr(state, "online_renderer", None), "prr_runtime", None)
    return found


def wrap_register_routers(original: Callable[[FastAPI], None]) -> Callable[[FastAPI], None]:
    """Where vLLM's own routes are added."""

    def register_vllm_serve_api_routers(app: FastAPI) -> None:
        original(app)
        app.include_router(admin.routes(_runtime))

    return register_vllm_serve_api_routers
