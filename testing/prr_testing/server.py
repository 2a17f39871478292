"""A real engine server for the length of a `with` block, on 127.0.0.1 and a free port: vLLM (`serve`) or SGLang.

The server is a process group of its own, under a keeper (keeper.py) that ends with this process. All of it is taken
down on every way out of the block, and by the keeper if this process dies without a way out. Nothing of this process's
environment changes how it behaves: `PRR_*`, `VLLM_*` and `SGLANG_*` variables reach it only when the caller names them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

import httpx
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

SCRIPTED_SAMPLER = "prr_testing.sampler:ScriptedSampler"
BLOCK_SIZE = 32  # tokens of a KV cache block of vLLM; on CPU a multiple of 32
PAGE_SIZE = 16  # the same for SGLang; any number

Engine = Literal["vllm", "sglang"]
# The engine that is installed here: each has an environment of its own.
ENGINE: Engine = "vllm" if any(found.name == "vllm" for found in distributions()) else "sglang"

_ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_CI_ENV": "1",  # fewer compiled kernels, a quicker start
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # the models are tiny: a second thread, or one bound to a core, only waits (on a busy machine ten times longer)
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "all",
}
_KEEPER = Path(__file__).with_name("keeper.py")


@dataclass
class Starts:
    """What a run has started so far: how many servers of which engine, and the seconds it waited for them."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


STARTS = Starts()


class ServerFailed(RuntimeError):
    """The server did not come up, or went away; the message holds the end of its log."""


@dataclass(frozen=True)
class Metrics:
    """One reading of `/metrics`: `(name, labels) -> value`."""

    samples: Sequence[tuple[str, Mapping[str, str], float]]

    @classmethod
    def parse(cls, text: str) -> Metrics:
        families = text_string_to_metric_families(text)
        return cls([(sample.name, sample.labels, sample.value) for family in families for sample in family.samples])

    def total(self, name: str, **labels: str) -> float:
        """Sum of all samples of `name` whose labels include the given ones; 0 if there are none."""
        return sum(value for found, having, value in self.samples if found == name and labels.items() <= having.items())

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """The samples of `name` summed by the values of one label."""
        sums: dict[str, float] = {}
        for found, having, value in self.samples:
            if found == name and label in having:
                sums[having[label]] = sums.get(having[label], 0.0) + value
        return sums


@dataclass
class Server:
    """A running server. `model` is the name to ask for; `log` grows while it runs; `block_size` is in tokens.

    process: its keeper; the server's own processes stand beneath it.
    """

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    model: str
    block_size: int
    engine: Engine = "vllm"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def base_url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> OpenAI:
        """The stock client, without its silent retries."""
        options = {"timeout": 300.0, "max_retries": 0, **options}
        return OpenAI(base_url=f"{self.base_url}/v1", api_key="none", **options)

    def async_client(self, **options: Any) -> AsyncOpenAI:
        options = {"timeout": 300.0, "max_retries": 0, **options}
        return AsyncOpenAI(base_url=f"{self.base_url}/v1", api_key="none", **options)

    def metrics(self) -> Metrics:
        response = httpx.get(f"{self.base_url}/metrics", timeout=30.0)
        response.raise_for_status()
        return Metrics.parse(response.text)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


def _free_port() -> int:
    """A port that was free a moment ago; `serve` tries another one should somebody else get it first."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(scratch: str, extra: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PRR_", "VLLM_", "SGLANG_", "PYTEST_"))
    }
    # each engine start leaves a small file in TMPDIR: let it be a folder that goes with the server
    return {**kept, **_ENGINE_ENVIRONMENT, "TMPDIR": scratch, "PYTHONUNBUFFERED": "1", **extra}


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _wait_until_ready(server: Server, timeout: float) -> None:
    began = time.monotonic()
    STARTS.counts[server.engine] += 1
    try:
        while time.monotonic() < began + timeout:
            if server.process.poll() is not None:
                raise ServerFailed(f"the server ended with {server.process.returncode}; its log:\n{_tail(server.log)}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{server.base_url}/health", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.2)
    finally:
        STARTS.seconds += time.monotonic() - began
    raise ServerFailed(f"the server was not ready within {timeout:.0f} s; its log:\n{_tail(server.log)}")


@contextlib.contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command under its keeper for the length of a block; nothing of it is left behind."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", _KEEPER, *command],
            env=environment,
            stdin=subprocess.PIPE,  # closes when this process ends, however it does: then all of the server is killed
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _take_down(process)


def _take_down(process: subprocess.Popen[bytes], grace: float = 20.0) -> None:
    """End all of the server: asked first, killed after `grace` seconds."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@contextlib.contextmanager
def serve(
    model: Path,
    *arguments: str,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    env: Mapping[str, str] | None = None,
    plugins: str | None = None,
    log: Path | None = None,
    max_model_len: int = 8192,
    max_num_seqs: int = 4,
    kv_cache_bytes: int = 64 << 20,
    block_size: int = BLOCK_SIZE,
    scripted: bool = True,
    ready_within: float = 480.0,
) -> Iterator[Server]:
    """Start `vllm serve` on a model folder without weights, wait until it is healthy, and always take it down.

    arguments: further command line arguments, after the ones made from the parameters (the last one counts).
    plugins: `VLLM_PLUGINS` (`""`: none at all); None leaves it unset, which loads all.
    log: where the server's output goes; by default a file that goes with the server.
    kv_cache_bytes: a block of 32 tokens of the models of `prr_testing.models` takes 16 KiB.
    scripted: load the scripted sampler.
    Raises ServerFailed if the server ends or is not healthy in time.
    """
    name = model.name
    options = ["--served-model-name", name, "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"]
    options += ["--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)]
    options += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    options += ["--kv-cache-memory-bytes", str(kv_cache_bytes), "--block-size", str(block_size)]
    if tool_parser:
        options += ["--enable-auto-tool-choice", "--tool-call-parser", tool_parser]
    if reasoning_parser:
        options += ["--reasoning-parser", reasoning_parser]
    if scripted:
        options += ["--logits-processors", SCRIPTED_SAMPLER]
    vllm_serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *options, *arguments]
    variables = {**(env or {}), **({} if plugins is None else {"VLLM_PLUGINS": plugins})}

    with _started("vllm", vllm_serve, variables, name, block_size, log, ready_within) as server:
        yield server


@contextlib.contextmanager
def serve_sglang(
    model: Path,
    *arguments: str,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    env: Mapping[str, str] | None = None,
    plugins: bool = True,
    log: Path | None = None,
    max_model_len: int = 8192,
    max_num_seqs: int = 4,
    kv_cache_tokens: int = 131_072,
    page_size: int = PAGE_SIZE,
    scripted: bool = True,
    ready_within: float = 600.0,
) -> Iterator[Server]:
    """The same for SGLang, in the environment of that engine (see tools/setup_engine.py).

    plugins: False lets SGLang load none.
    kv_cache_tokens: a token of the models of `prr_testing.models` takes 512 bytes.
    scripted: allow the scripted sampler; a request brings it along.
    """
    name = model.name
    options = ["--model-path", str(model), "--served-model-name", name, "--load-format", "dummy", "--device", "cpu"]
    options += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    options += ["--disable-overlap-schedule", "--cuda-graph-backend-decode", "disabled"]
    options += ["--cuda-graph-backend-prefill", "disabled", "--skip-server-warmup", "--sleep-on-idle"]
    options += ["--context-length", str(max_model_len), "--max-running-requests", str(max_num_seqs)]
    options += ["--max-total-tokens", str(kv_cache_tokens), "--page-size", str(page_size)]
    # nearly all: the pool's size is given; what others take of the machine's memory meanwhile counts as the model's
    options += ["--mem-fraction-static", "0.95"]
    options += ["--enable-metrics", "--enable-cache-report"]
    if tool_parser:
        options += ["--tool-call-parser", tool_parser]
    if reasoning_parser:
        options += ["--reasoning-parser", reasoning_parser]
    if scripted:
        options += ["--enable-custom-logit-processor"]
    launch = [sys.executable, "-m", "prr_testing.sglang_cpu", "sglang.launch_server", *options, *arguments]
    # one thread: the network is tiny, and threads that wait for one another starve on a busy machine
    variables = {"OMP_NUM_THREADS": "1", **(env or {}), **({} if plugins else {"SGLANG_PLUGINS": "none"})}
    with _started("sglang", launch, variables, name, page_size, log, ready_within) as server:
        yield server


def serve_engine(
    engine: Engine,
    model: Path,
    *arguments: str,
    plugins: bool = True,
    block_size: int | None = None,
    kv_cache_tokens: int = 131_072,
    **options: Any,
) -> contextlib.AbstractContextManager[Server]:
    """`serve` or `serve_sglang`, by the same words.

    plugins: False lets the engine load none. block_size: None is the tests' usual one. options: what both take.
    """
    if engine == "sglang":
        page_size = block_size or PAGE_SIZE
        return serve_sglang(
            model, *arguments, plugins=plugins, page_size=page_size, kv_cache_tokens=kv_cache_tokens, **options
        )
    return serve(
        model,
        *arguments,
        plugins=None if plugins else "",
        block_size=block_size or BLOCK_SIZE,
        kv_cache_bytes=kv_cache_tokens * 512,
        **options,
    )


@contextlib.contextmanager
def _started(
    engine: Engine,
    command: Sequence[str],
    variables: Mapping[str, str],
    model: str,
    block_size: int,
    log: Path | None,
    ready_within: float,
) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="prr-server-") as scratch:
        log = log or Path(scratch) / "server.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = _environment(scratch, variables)
        for last_try in (False, False, True):
            port = _free_port()
            with running([*command, "--host", "127.0.0.1", "--port", str(port)], environment, log) as process:
                server = Server(process, port, log, model, block_size, engine)
                try:
                    _wait_until_ready(server, ready_within)
                except ServerFailed:
                    if last_try or "Address already in use" not in server.log_text():
                        raise
                    continue
                yield server
                return
