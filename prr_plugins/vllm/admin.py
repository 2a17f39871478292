"""`/v1/prr`: what the plugin does on this server, and switching the splice mode without a restart.

    GET  /v1/prr          {"mode", "missing_hooks", "counts"}
    POST /v1/prr/splice   {"mode": "on" | "observe" | "off"}   -> {"mode": ...}

Served as vLLM serves its own administration routes: only with `VLLM_SERVER_DEV_MODE=1`, or with `PRR_ADMIN=1` to get
these two alone. They stand under `/v1`, so `--api-key` guards them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Request
from pydantic import BaseModel

from prr_plugins.vllm.runtime import Runtime

router = APIRouter(prefix="/v1/prr")


class SpliceModeRequest(BaseModel):
    mode: Literal["on", "observe", "off"]


def _runtime(request: Request) -> Runtime:
    found: Runtime | None = getattr(getattr(request.app.state, "online_renderer", None), "prr_runtime", None)
    if found is None:
        raise HTTPException(404, "this server runs no prr_* parser")
    return found


@router.get("")
async def status(request: Request) -> dict[str, Any]:
    return _runtime(request).status()


@router.post("/splice")
async def set_mode(body: SpliceModeRequest, request: Request) -> dict[str, Any]:
    return {"mode": _runtime(request).set_mode(body.mode)}


def wrap_register_routers(original: Callable[[FastAPI], None]) -> Callable[[FastAPI], None]:
    def register_vllm_serve_api_routers(app: FastAPI) -> None:
        original(app)
        app.include_router(router)

    return register_vllm_serve_api_routers
