"""What is counted, in one table, and an engine-free place to count it.

The names are those an engine exports (Prometheus). `Metrics` keeps the numbers in memory; an engine
folder subclasses it and forwards `add` and `set` to its own registry. A label never holds text of a
prompt or a completion: reasons are fixed words, with message indices cut off (`edited`, not `edited:messages[3]`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric: its name, type, label names and one-line help."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("prr_turns_total", "counter", "Requests by what happened to their prompt", ("outcome", "reason")),
    Metric("prr_kept_tokens_total", "counter", "Tokens of earlier turns that stand unchanged in a spliced prompt"),
    Metric("prr_retained_reasoning_tokens_total", "counter",
           "Reasoning tokens in spliced prompts that the template would have dropped"),
    Metric("prr_observed_kept_tokens_total", "counter", "Tokens that splicing would have kept (PRR_SPLICE=observe)"),
    Metric("prr_records_total", "counter", "Completions offered to the store", ("outcome", "reason")),
    Metric("prr_respelled_stops_total", "counter", "Stop tokens that took the template's spelling"),
    Metric("prr_verified_total", "counter", "Spliced prompts compared with a full render", ("result",)),
    Metric("prr_special_token_texts_total", "counter",
           "Texts of special tokens in new messages that are not the model's"),
    Metric("prr_overflow_dropped_messages_total", "counter", "Messages dropped to fit the window (PRR_OVERFLOW)"),
    Metric("prr_store_bytes", "gauge", "Bytes held by the turn store"),
    Metric("prr_store_turns", "gauge", "Turns held by the turn store"),
    Metric("prr_store_evictions_total", "counter", "Turns dropped from the store", ("cause",)),
    Metric("prr_store_errors_total", "counter", "What went wrong with the shared store", ("kind",)),
    Metric("prr_store_fetched_turns_total", "counter", "Turns that came from the shared store"),
    Metric("prr_store_shared_turns_total", "counter", "Turns that were put into the shared store"),
    Metric("prr_seconds_total", "counter", "Time that requests spent on their turns", ("stage",)),
)  # fmt: skip

Labels = tuple[str, ...]


class Metrics:
    """In-memory counters and gauges. Thread-safe. Label values come in the order of `Metric.labels`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}

    def add(self, name: str, value: float = 1, *labels: str) -> None:
        """Add `value` to the counter `name`."""
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the gauge `name`."""
        with self._lock:
            self._values[name, labels] = value

    def get(self, name: str, *labels: str) -> float:
        """The current value, 0 where nothing was counted."""
        with self._lock:
            return self._values.get((name, labels), 0)

    def snapshot(self) -> dict[tuple[str, Labels], float]:
        """All values at this moment."""
        with self._lock:
            return dict(self._values)
