"""`common.metrics` on the engine's own `/metrics`. Needs `prometheus_client`, which both engines bring along.

An engine exports `prometheus_client`'s default registry or everything in its multiprocess directory: collectors made
here show up in both cases. Imported only once the engine has set that directory.
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
        collector = self._collectors[name]
        assert isinstance(collector, Gauge)
        (collector.labels(*labels) if labels else collector).set(value)


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
