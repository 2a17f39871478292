"""`/v1/prr`: what the plugin does on this server, and switching the splice mode without a restart.

    GET  /v1/prr          {"mode", "missing_hooks", "counts"}
    POST /v1/prr/splice   {"mode": "on" | "observe" | "off"}   -> {"mode": ...}

Only with `PRR_ADMIN=1`. The routes are part of SGLang's own application, so `--api-key` guards them.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel

from prr_plugins.sglang.runtime import Runtime
from prr_plugins.sglang.serving import RUNTIME

router = APIRouter(prefix="/v1/prr")


class SpliceModeRequest(BaseModel):
    mode: Literal["on", "observe", "off"]


def _runtime(request: Request) -> Runtime:
    found: Runtime | None = getattr(getattr(request.app.state, "openai_serving_chat", None), RUNTIME, None)
    if found is None:
        raise HTTPException(404, "this server runs no prr_* parser")
    return found


@router.get("")
async def status(request: Request) -> dict[str, Any]:
    return _runtime(request).status()


@router.post("/splice")
async def set_mode(body: SpliceModeRequest, request: Request) -> dict[str, Any]:
    return {"mode": _runtime(request).set_mode(body.mode)}


def serve() -> None:
    """Add the routes to SGLang's HTTP application."""
    from sglang.srt.entrypoints.http_server import app

    app.include_router(router)
