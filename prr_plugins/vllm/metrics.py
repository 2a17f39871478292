"""`common.metrics` on vLLM's own `/metrics`.

vLLM exports `prometheus_client`'s default registry, or, with several API processes, everything in its multiprocess
directory: collectors made here show up in both cases.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, Counter, Gauge

from prr_plugins.common.metrics import METRICS, Metric, Metrics


class PrometheusMetrics(Metrics):
    """Counters and gauges of this process, exported. One collector a name, however often this is made."""

    def __init__(self) -> None:
        super().__init__()
        self._collectors = {m.name: _collector(m) for m in METRICS}

    def add(self, name: str, value: float = 1, *labels: str) -> None:
        super().add(name, value, *labels)
        collector = self._collectors[name]
        (collector.labels(*labels) if labels else collector).inc(value)

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        gauge = self._collectors[name]
        assert isinstance(gauge, Gauge)
        (gauge.labels(*labels) if labels else gauge).set(value)


def _collector(metric: Metric) -> Counter | Gauge:
    try:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels)
        # Each API process has a store of its own: the exported value is their sum.
        return Gauge(metric.name, metric.help, metric.labels, multiprocess_mode="livesum")
    except ValueError:  # made before in this process
        made = REGISTRY._names_to_collectors[metric.name]
        assert isinstance(made, Counter | Gauge)
        return made
