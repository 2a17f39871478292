"""What one API process holds for a served model: bridge, store, splicer, counters, the switch.

An engine's `Runtime` hands in its render function, tokenizer and stop ids, and says how long a prompt may be.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from prr_plugins.common import faults
from prr_plugins.common.bridge import Render, TemplateBridge
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.prompts.splicer import Splicer
from prr_plugins.common.serving.splice_switch import Switch
from prr_plugins.common.settings import Settings, SpecialTokens, SpliceMode
from prr_plugins.common.store.memory import TurnStore

if TYPE_CHECKING:
    from prr_plugins.common.store.redis_store import SharedStore


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
            from prr_plugins.common.store.redis_store import SharedStore  # needs an optional package

            self.store = self.shared = SharedStore(settings, metrics, on_evict=self._evicted)
        self._logger = logger

    def serve(
        self,
        render: Render,
        tokenizer: Any,
        stop_ids: Collection[int],
        model: str,
        template: Sequence[object],
        *,
        reasoning_end: str | None,
        special_tokens: SpecialTokens | None = None,
    ) -> None:
        """Make the splicer for the model that is served. To be called once, by the constructor of an engine's runtime.

        render: the engine's own. tokenizer: a Hugging Face one. stop_ids: what ends generation on this server.
        model, template: its name, and what makes up the engine's prompts beside the tokenizer; stored turns of another
            model or template are never used.
        reasoning_end: what ends the model's reasoning. special_tokens: None is as the settings say.
        """
        self.model = model
        vocabulary = repr(sorted(tokenizer.get_added_vocab().items())), str(len(tokenizer))
        self.template_id = hashlib.sha256("\0".join([*map(str, template), *vocabulary, model]).encode()).hexdigest()[
            :32
        ]
        bridge = TemplateBridge(
            render,
            lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
            stop_ids,
            tokenizer.get_added_vocab(),
            stop=self.settings.stop,
            special_tokens=special_tokens or self.settings.special_tokens,
            reasoning_end=reasoning_end,
        )
        self.splicer = Splicer(bridge, self.store, self.settings, self.metrics)

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
        self._logger.error("capture failed (%s); the turn is not stored", faults.described(error))
        self._failed("error_capture")

    def _failed(self, reason: str) -> None:
        self.metrics.add("prr_records_total", 1, "fallback", reason)
        self.metrics.add("prr_turns_total", 1, "fallback", reason)

    def _evicted(self, cause: str) -> None:
        self.metrics.add("prr_store_evictions_total", 1, cause)


def ids_among(*values: Any) -> set[int]:
    """All token ids in what engines' configurations hold: an id, several, or none."""
    found: set[int] = set()
    for value in values:
        if isinstance(value, int):
            found.add(value)
        elif value:
            found.update(value)
    return found
