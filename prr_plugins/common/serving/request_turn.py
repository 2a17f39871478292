"""One request on its way through an engine, as far as both engines have it in common.

Promise: a request is counted once, under what happened to its prompt; whatever fails here, the request goes on as the
engine would have answered it (L7).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from prr_plugins.common import faults
from prr_plugins.common.prompts.plan import Plan
from prr_plugins.common.serving import request_fields
from prr_plugins.common.serving.runtime import BaseRuntime
from prr_plugins.common.settings import SpliceMode

AnyRuntime = TypeVar("AnyRuntime", bound=BaseRuntime)


class RequestTurn(Generic[AnyRuntime]):
    """engine, logger: for what is said in its log. fields: those of the request that the API does not know.

    plan: what happened to the prompt; None as long as nothing did. recordable: its completion may be stored.
    """

    engine: str
    logger: logging.Logger

    def __init__(self, runtime: AnyRuntime, request: Any, tenant: str | None, fields: Mapping[str, Any]) -> None:
        self.runtime = runtime
        self.request = request
        self.tenant = tenant
        self.report = bool(fields.get(request_fields.REPORT))
        self.mode: SpliceMode = runtime.mode(fields.get(request_fields.SPLICE))
        self.forbids_storing = fields.get("store") is False  # OpenAI's field
        self.plan: Plan | None = None
        self.recordable = False

    def failed(self, error: Exception) -> None:
        """Splicing failed; the engine renders."""
        self.logger.error("splicing failed (%s); %s renders the prompt", faults.described(error), self.engine)
        self.plan = Plan("fallback", "error_splice")
        self.recordable = False

    def prompt_is(self, prompt_ids: Any) -> None:
        """The prompt is final: see that the engine took our ids, and count. Call once, with a plan."""
        assert self.plan is not None
        if self.plan.prompt_ids is not None and prompt_ids != self.plan.prompt_ids:
            self.logger.error("%s did not take the spliced prompt; it rendered its own", self.engine)
            self.plan = self.runtime.splicer.refuse(self.plan, "ids_not_taken")
        self.runtime.splicer.settle(self.plan)

    def refuses_storing(self) -> bool:
        """Whether the client asked that nothing be stored, which is counted."""
        if self.forbids_storing:
            self.runtime.metrics.add("prr_records_total", 1, "refused", "store_false")
        return self.forbids_storing

    def outcome(self) -> dict[str, Any]:
        """The `prr` report of the response."""
        return (self.plan or Plan("refused", "not_followed")).report()


def tool_dicts(tools: Iterable[Any] | None) -> list[dict[str, Any]]:
    """An engine's tool models as plain dicts."""
    return [tool if isinstance(tool, dict) else tool.model_dump() for tool in tools or ()]


def tenant_of(named: Iterable[tuple[str, str | None]], raw_request: Any, header: str | None) -> str | None:
    """Whose turns a request may use: the first of the fields that is set, else the header; None where nothing says.

    named: kind and value of the request fields that separate caches. raw_request: None where it is not known.
    """
    for kind, value in named:
        if value is not None:
            return f"{kind}:{value}"
    if header is not None and raw_request is not None and (value := raw_request.headers.get(header)) is not None:
        return f"header:{value}"
    return None
