"""One soak: the server, its store, the clients, the faults one after the other, and the figures in a file."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import AutoTokenizer

from ..models import model_dir
from ..redis_server import LinkProcess, redis_server
from ..server import Metrics, Server, ServerFailed, serve
from . import overhead
from .clients import TENANT_HEADER, Client, Ledger, Writer, talk
from .faults import FAULTS, Store

PARSER = "prr_qwen3"
STOP = "<|im_end|>"
CLIENTS, AT_ONCE = 64, 32
PROCESSES = 2  # API processes: what one records, the other needs
STORE_BYTES = 2 << 20  # of each process; small, so that the bound is met
TIMEOUT_MS = 50
_WITHIN = 60.0  # seconds from the end of a fault until turns must be shared again
_SAMPLE = 0.5  # seconds between two looks at the metrics


def run(
    requests: int, out: Path, *, faults: Sequence[str] = tuple(FAULTS), histories: tuple[int, ...] = (1_000, 100_000)
) -> bool:
    """The whole of it; whether everything held that has to. Writes `out`, beside it the server's log; prints `verdict`.

    Raises ServerFailed where the server ends in the middle of it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    model = model_dir("qwen3.6")

    def save(figures: dict[str, Any]) -> None:
        out.write_text(json.dumps(figures, indent=2) + "\n")

    with redis_server() as redis:
        link = LinkProcess(redis.port)
        try:
            environment = {
                "PRR_STORE_URL": link.url,
                "PRR_STORE_TIMEOUT": str(TIMEOUT_MS),
                "PRR_STORE_BYTES": str(STORE_BYTES),
                "PRR_STORE_TTL": "600",
                "PRR_TENANT_HEADER": TENANT_HEADER,
            }
            with serve(
                model, "--api-server-count", str(PROCESSES), env=environment, tool_parser=PARSER,
                reasoning_parser=PARSER, max_num_seqs=AT_ONCE, kv_cache_bytes=256 << 20,
                log=out.with_suffix(".log"),
            ) as server:  # fmt: skip
                figures = asyncio.run(_soak(server, Store(redis, link), model, requests, faults, save))
        finally:
            link.close()
        save(figures)
        if histories:
            figures["overhead_share"] = overhead.measure(model, redis, histories)
            save(figures)
    lines = verdict(figures)
    print("\n".join(lines or [f"soak: all held over {figures['requests']} requests; figures in {out}"]))
    return not lines


def verdict(figures: dict[str, Any]) -> list[str]:
    """What did not hold, a line each."""
    lines = [f"soak: {name}: {figures[name]}" for name in ("wrong_splices", "http_5xx", "unnamed_breaks",
                                                           "failed_requests") if figures[name]]  # fmt: skip
    if figures["store_bytes_max"] > 1.01 * figures["store_bytes_limit"]:
        lines.append(f"soak: the store held {figures['store_bytes_max']} of {figures['store_bytes_limit']} bytes")
    for name, fault in figures["redis_faults"].items():
        if fault["failed_requests"]:
            lines.append(f"soak: {name}: {fault['failed_requests']} requests failed")
        if fault["store_wait_ms"] > 2 * TIMEOUT_MS + 10:
            lines.append(f"soak: {name}: requests waited {fault['store_wait_ms']} ms for the store")
        if fault["recovered_after_s"] is None and not fault["nobody_asked_after"]:
            lines.append(f"soak: {name}: nothing was shared within {_WITHIN} s of its end")
    return lines


async def _soak(
    server: Server,
    store: Store,
    model: Path,
    requests: int,
    faults: Sequence[str],
    save: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    writer = Writer(tokenizer, tokenizer.convert_tokens_to_ids(STOP))
    ledger = Ledger()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=server.base_url, timeout=300.0, limits=limits) as http:
        clients = [Client(number, http, server.model, writer, ledger) for number in range(CLIENTS)]
        watch = _Watch(http, server)
        began = time.monotonic()
        watching = asyncio.create_task(watch.run(ledger, requests))
        talking = asyncio.create_task(talk(clients, ledger, requests, AT_ONCE))
        try:
            reports: dict[str, Any] = {}
            async for name, report in _faults(faults, store, ledger, requests, watch, talking):
                reports[name] = report
                save(_figures(ledger, reports, watch, await watch.look(), time.monotonic() - began))
            await talking
        finally:
            watching.cancel()
            talking.cancel()
        return _figures(ledger, reports, watch, await watch.look(), time.monotonic() - began)


def _figures(ledger: Ledger, reports: dict[str, Any], watch: _Watch, last: Metrics, seconds: float) -> dict[str, Any]:
    return {
        "requests": ledger.done,
        "wrong_splices": len(ledger.wrong_splices),
        "http_5xx": ledger.http_5xx,
        "unnamed_breaks": len(ledger.unnamed_breaks),
        "redis_faults": reports,
        "store_bytes_max": watch.most_bytes,
        "store_bytes_limit": PROCESSES * STORE_BYTES,
        "overhead_share": {},
        "failed_requests": len(ledger.failures),
        "examples": (ledger.wrong_splices + ledger.unnamed_breaks + ledger.failures)[:20],
        "continued": ledger.continued,
        "exact": ledger.exact,
        "unreceived": ledger.unreceived,
        "outcomes": ledger.outcomes(),
        "store_evictions": last.by_label("prr_store_evictions_total", "cause"),
        "store_errors": last.by_label("prr_store_errors_total", "kind"),
        "fetched_turns": last.total("prr_store_fetched_turns_total"),
        "latency_ms": _latency(ledger, "healthy"),
        "clients": CLIENTS,
        "concurrency": AT_ONCE,
        "api_processes": PROCESSES,
        "seconds": round(seconds, 1),
    }


async def _faults(
    names: Sequence[str], store: Store, ledger: Ledger, requests: int, watch: _Watch, talking: asyncio.Task[None]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The faults, each for the same number of requests, with as many healthy ones between; what came of each."""
    share = requests / (2 * len(names) + 1)

    async def until(count: float) -> None:
        while ledger.done < count and not talking.done():
            await asyncio.sleep(0.05)

    for place, name in enumerate(names):
        await until(share * (2 * place + 1))
        before = await watch.look()
        failures, first = len(ledger.failures), ledger.done
        ledger.phase = name
        async with FAULTS[name](store):
            await until(share * (2 * place + 2))
        after = await watch.look()
        during = ledger.requests[first:]
        failed = len(ledger.failures) - failures
        ledger.phase = "healthy"
        errors = {
            kind: count - before.by_label("prr_store_errors_total", "kind").get(kind, 0.0)
            for kind, count in after.by_label("prr_store_errors_total", "kind").items()
        }
        waited = sum(after.total("prr_seconds_total", stage=s) - before.total("prr_seconds_total", stage=s)
                     for s in ("fetch", "share"))  # fmt: skip
        report = {
            "requests": len(during),
            "failed_requests": failed,
            "latency_ms": _latency(ledger, name),
            "store_wait_ms": round(1000 * waited / max(len(during), 1), 2),
            "store_errors": {kind: count for kind, count in sorted(errors.items()) if count},
            "outcomes": ledger.outcomes(name),
            "recovered_after_s": await _recovered(watch, talking),
            "nobody_asked_after": talking.done(),  # so nothing could be shared
        }
        yield name, report


async def _recovered(watch: _Watch, talking: asyncio.Task[None]) -> float | None:
    """Seconds until a turn was shared again, without a restart; None: not within `_WITHIN`."""
    began = time.monotonic()
    shared = (await watch.look()).total("prr_store_shared_turns_total")
    while time.monotonic() - began < _WITHIN and not talking.done():
        if (await watch.look()).total("prr_store_shared_turns_total") > shared:
            return round(time.monotonic() - began, 2)
        await asyncio.sleep(0.1)
    return None


class _Watch:
    """Looks at the server's metrics, now and then and when asked."""

    def __init__(self, http: httpx.AsyncClient, server: Server) -> None:
        self._http = http
        self._server = server
        self.most_bytes = 0

    async def look(self) -> Metrics:
        try:
            metrics = Metrics.parse((await self._http.get("/metrics")).text)
        except httpx.TransportError as error:
            raise ServerFailed(
                f"the server is gone ({error}); the end of its log:\n{self._server.log_text()[-2000:]}"
            ) from error
        self.most_bytes = max(self.most_bytes, int(metrics.total("prr_store_bytes")))
        return metrics

    async def run(self, ledger: Ledger, requests: int) -> None:
        """Sample, and show how far the run is."""
        columns = (TextColumn("soak"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[phase]}"),
                   TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns) as progress:
            task = progress.add_task("soak", total=requests, phase="")
            looked = 0.0
            while True:
                progress.update(task, completed=ledger.done, phase=ledger.phase)
                if time.monotonic() - looked > _SAMPLE:
                    looked = time.monotonic()
                    await self.look()
                await asyncio.sleep(0.2)


def _latency(ledger: Ledger, phase: str) -> dict[str, float]:
    """Milliseconds of whole requests."""
    took = sorted(request.latency for request in ledger.requests if request.phase == phase)
    at: Callable[[float], float] = lambda q: round(1000 * took[min(len(took) - 1, int(q * len(took)))], 1)  # noqa: E731
    return {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)} if took else {}
