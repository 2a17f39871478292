"""What one API process holds for a served model, as far as both engines have it in common: store, counters, the switch.

An engine's `Runtime` adds its tokenizer, its bridge and the splicer over `store`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Settings, SpliceMode
from prr_plugins.common.store import TurnStore
from prr_plugins.common.switch import Switch

if TYPE_CHECKING:
    from prr_plugins.common.redis_store import SharedStore


class BaseRuntime:
    """missing_hooks: names of the engine's hooks that are not in order; with any, nothing is spliced.

    metrics: where this engine exports them. logger: one that writes where the engine's log goes.
    shared: `store`, where that one shares its turns (PRR_STORE_URL).
    """

    def __init__(
        self, settings: Settings, metrics: Metrics, missing_hooks: Sequence[str], logger: logging.Logger
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.switch = Switch(settings.splice)
        self.missing_hooks = list(missing_hooks)
        self.shared: SharedStore | None = None
        if settings.store_url is None:
            self.store = TurnStore(settings.store_bytes, settings.store_ttl, on_evict=self._evicted)
        else:
            from prr_plugins.common.redis_store import SharedStore

            self.store = self.shared = SharedStore(settings, metrics, on_evict=self._evicted)
        self._logger = logger

    def mode(self, wanted: SpliceMode | None) -> SpliceMode:
        """The mode of one request."""
        return "off" if self.missing_hooks else self.switch.for_request(wanted)

    def set_mode(self, mode: SpliceMode) -> SpliceMode:
        """Switch the server; the mode that holds from now on."""
        self.switch.mode = mode
        self._logger.info("splice mode is now %s", self.mode(None))
        return self.mode(None)

    def status(self) -> dict[str, Any]:
        """For `GET /v1/prr`: counts are those of the process that answers."""
        counts = {
            name + ("{" + ",".join(labels) + "}" if labels else ""): value
            for (name, labels), value in sorted(self.metrics.snapshot().items())
        }
        return {"mode": self.mode(None), "missing_hooks": self.missing_hooks, "counts": counts}

    def parse_failed(self) -> None:
        """A completion could not be parsed; it went out as content."""
        self._failed("error_parse")

    def capture_failed(self, error: Exception) -> None:
        """A turn is not stored because following the request failed; the client got its answer."""
        self._logger.error("capture failed (%s: %s); the turn is not stored", type(error).__name__, error)
        self._failed("error_capture")

    def _failed(self, reason: str) -> None:
        self.metrics.add("prr_records_total", 1, "fallback", reason)
        self.metrics.add("prr_turns_total", 1, "fallback", reason)

    def _evicted(self, cause: str) -> None:
        self.metrics.add("prr_store_evictions_total", 1, cause)
