"""Routes of vLLM that show a prompt (`/render`, `/tokenize`): the one that a request would get.

Promise: a preview is counted and recorded nowhere.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prr_plugins.vllm.chat import follow_quietly, runtime_of

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


def wrap_preview(original: Callable[..., Any]) -> Callable[..., Any]:
    """A route that shows a prompt: `/render`, `/tokenize`."""

    @functools.wraps(original)
    async def preview(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = runtime_of(self)
        raw_request = args[0] if args else kwargs.get("raw_request")
        # Without the header that names the tenant, the prompt that the request will get is not known.
        unknown = runtime is not None and runtime.settings.tenant_header is not None and raw_request is None
        if runtime is not None and not unknown and (hasattr(request, "messages") or hasattr(request, "input")):
            follow_quietly(self, runtime, request, raw_request, preview="ids")
        return await original(self, request, *args, **kwargs)

    return preview
