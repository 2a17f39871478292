"""`/v1/prr`: what the plugin does on this server, and switching the splice mode without a restart.

    GET  /v1/prr          {"mode", "missing_hooks", "counts"}
    POST /v1/prr/splice   {"mode": "on" | "observe" | "off"}   -> {"mode": ...}

Served only where the operator asks for it (`PRR_ADMIN=1`). The routes stand under `/v1` in the engine's own
application, so its `--api-key` guards them. Needs `fastapi`, which both engines bring along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel

from prr_plugins.common.serving.runtime import BaseRuntime
from prr_plugins.common.settings import SpliceMode


class SpliceModeRequest(BaseModel):
    mode: SpliceMode


def routes(runtime_of: Callable[[Any], BaseRuntime | None]) -> APIRouter:
    """The two routes. runtime_of: finds the runtime in the state of the engine's application; None: there is none."""
    router = APIRouter(prefix="/v1/prr")

    def runtime(request: Request) -> BaseRuntime:
        found = runtime_of(request.app.state)
        if found is None:
            raise HTTPException(404, "this server runs no prr_* parser")
        return found

    @router.get("")
    async def status(request: Request) -> dict[str, Any]:
        return runtime(request).status()

    @router.post("/splice")
    async def set_mode(body: SpliceModeRequest, request: Request) -> dict[str, Any]:
        return {"mode": runtime(request).set_mode(body.mode)}

    return router
