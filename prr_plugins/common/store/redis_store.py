"""Turns shared by API processes and replicas through a Redis or Valkey server; the in-process store stands in front.

Promises: one round trip finds a turn with all it stands on, one stores a turn; no request waits for the server longer
than the time-out, and none at all while it is known to be down; whatever comes back is checked (encoding.py) and
counted under `prr_store_errors_total` when it is not usable. Without the server the in-process store works alone.

Names, all under `PREFIX:{TENANT}:` (16 hex digits of `tenant_tag`; the braces keep a tenant in one slot):
`t:ID` a turn; `k:KEY` the ids of the turns under a key, oldest first; `l:KEY` fingerprints under a loose key; `e` a
random word that `prr store purge` changes: a process that sees another one than before forgets the tenant's turns too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Settings, read_keys
from prr_plugins.common.store.circuit_breaker import Breaker
from prr_plugins.common.store.encoding import MAGIC, Codec, Unusable
from prr_plugins.common.store.interface import Lookup
from prr_plugins.common.store.memory import TurnStore
from prr_plugins.common.store.redis_scripts import FIND, PUT
from prr_plugins.common.store.turn import Turn

logger = logging.getLogger(__name__)

DAY = 86_400.0
_THREADS = 8
_DEEPEST = 1024
"""Keys of one history that are asked for, and turns that the server is told are here already."""
_TENANTS = 65_536
_QUIET = 60.0  # seconds between two log lines that it fails: one that is barely too slow fails every other second
_FINGERPRINT_BYTES = 16


def connect(settings: Settings, *, timeout: float | None = None) -> redis.Redis:
    """A client for the server that the settings name; it connects when it is used."""
    assert settings.store_url is not None
    seconds = settings.store_timeout if timeout is None else timeout
    options: dict[str, Any] = {"socket_timeout": seconds}
    url = settings.store_url.value
    if not url.startswith("unix:"):
        options |= {"socket_connect_timeout": seconds, "socket_keepalive": True}
    if url.startswith("rediss:") and settings.store_ca is not None:
        options["ssl_ca_certs"] = settings.store_ca
    if settings.store_user is not None:
        options["username"] = settings.store_user
    if settings.store_password is not None:
        options["password"] = settings.store_password.value
    client: redis.Redis = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), client_name="prr", **options)
    return client


def error_kind(error: Exception) -> str:
    """The word for the counter."""
    if isinstance(error, Unusable):
        return error.kind
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return "auth"
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return "timeout"
    if isinstance(error, redis.ConnectionError | OSError):
        return "unreachable"
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM"):
        return "full"
    return "server" if isinstance(error, redis.RedisError) else "internal"


# These say that the server as a whole is not to be had now.
_DOWN = frozenset({"auth", "timeout", "unreachable"})


class SharedStore(TurnStore):
    """The in-process store with a shared one behind it.

    `begin_fetch` and `share` return at once: the work is done by threads of the store's own.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        on_evict: Callable[[str], None] | None = None,
        client: redis.Redis | None = None,
    ) -> None:
        super().__init__(settings.store_bytes, settings.store_ttl, on_evict=on_evict)
        self.timeout = settings.store_timeout
        ttl = DAY if settings.store_ttl is None else settings.store_ttl
        self._ttl_ms = int(ttl * 1000)
        self._most = settings.store_turn_bytes
        self._prefix = settings.store_prefix
        self._codec = Codec(read_keys(settings.store_key.value) if settings.store_key else ())
        self._metrics = metrics
        self._breaker = Breaker()
        self._quiet_until = 0.0
        self._told = False  # the log says that it fails
        self._epochs: OrderedDict[bytes, bytes] = OrderedDict()
        self._epochs_lock = threading.Lock()
        client = client or connect(settings)
        self._find_script = client.register_script(FIND)
        self._put_script = client.register_script(PUT)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prr-store")
        self._under_way: dict[object, Future[Any]] = {}
        self._under_way_lock = threading.Lock()

    # finding

    def fetch(self, lookup: Lookup) -> tuple[bytes, ...]:
        """See `Store`. Waits for the server no longer than the time-out."""
        try:
            return self.begin_fetch(lookup).result(self.timeout)
        except TimeoutError:
            return self.late(lookup)

    def begin_fetch(self, lookup: Lookup) -> Future[tuple[bytes, ...]]:
        """`fetch` as something to wait for. It raises nothing."""
        return self._once(lookup, self._fetch, lookup, fallback=lambda: super(SharedStore, self).fetch(lookup))

    def late(self, lookup: Lookup) -> tuple[bytes, ...]:
        """What to go on with where `begin_fetch` took too long."""
        self._count("late")
        return super().fetch(lookup)

    def _fetch(self, lookup: Lookup) -> tuple[bytes, ...]:
        keys = lookup.keys[:_DEEPEST]
        here = list(dict.fromkeys(turn.id for turns in self.find(keys) for turn in turns))[:_DEEPEST]
        base = self._base(lookup.tenant)
        arguments = (base, self._ttl_ms, self._most, lookup.loose, b"".join(keys), b"".join(here))
        epoch, known, passed, found = self._find_script(keys=[base + b"e"], args=arguments)
        self._saw_epoch(lookup.tenant, bytes(epoch))
        for mark in passed:
            other_version = mark[:3] == MAGIC[:3] and mark[3:] not in (b"", MAGIC[3:])
            self._count("too_large" if mark == b"size" else "version" if other_version else "corrupt")
        arrived = 0
        for identity, blob in zip(found[::2], found[1::2], strict=True):
            try:
                turn = self._codec.decode(blob, identity, lookup.tenant)
                if turn.fingerprint != lookup.fingerprint:
                    raise Unusable("foreign")
            except Unusable as error:
                self._count(error.kind)
                continue  # what stands on it finds no parent, and is not taken either
            arrived += self.put(turn)
        if arrived:
            self._metrics.add("prr_store_fetched_turns_total", arrived)
        whole = len(known) - len(known) % _FINGERPRINT_BYTES
        shared = [known[at : at + _FINGERPRINT_BYTES] for at in range(0, whole, _FINGERPRINT_BYTES)]
        return tuple(dict.fromkeys([*super().fetch(lookup), *shared]))

    # storing

    def share(self, turn: Turn) -> Future[None]:
        """Put a turn that is stored here where the others find it. Raises nothing."""
        return self._once(turn.id, self._share, turn, fallback=lambda: None)

    def _share(self, turn: Turn) -> None:
        if self._put_shared(turn) != "parent":
            return
        # The server has lost what it stands on, or was down when that was stored: all of it, first things first.
        for above in reversed(list(self._above(turn))):
            self._put_shared(above)
        self._put_shared(turn)

    def _put_shared(self, turn: Turn) -> str:
        root = turn.id
        for above in self._above(turn):
            root = above.id
        blob = self._codec.encode(turn, root)
        if len(blob) > self._most:
            self._count("too_large")
            return "too_large"
        with self._epochs_lock:
            epoch = self._epochs.get(turn.tenant)
        base = self._base(turn.tenant)
        arguments = (base, self._ttl_ms, int(epoch is not None), epoch or b"", turn.id, turn.parent or b"", blob,
                     b"".join(turn.keys), turn.loose, turn.fingerprint)  # fmt: skip
        now, came = self._put_script(keys=[base + b"e"], args=arguments)
        self._saw_epoch(turn.tenant, bytes(now))
        if came == b"ok":
            self._metrics.add("prr_store_shared_turns_total")
        return str(came, "ascii")

    def _above(self, turn: Turn) -> Iterator[Turn]:
        above = self.parent(turn)
        while above is not None:
            yield above
            above = self.parent(above)

    # both

    def _base(self, tenant: bytes) -> bytes:
        return tenant_base(self._prefix, tenant)

    def _once(self, what: object, work: Callable[..., Any], *args: Any, fallback: Callable[[], Any]) -> Future[Any]:
        """One run of the same work at a time: who asks for it meanwhile gets what comes of that."""
        done: Future[Any] = Future()
        with self._under_way_lock:
            running = self._under_way.get(what)
            if running is not None:
                return running
            self._under_way[what] = done
        asked = time.monotonic()

        def run() -> None:
            result = None
            try:
                if time.monotonic() - asked > self.timeout:
                    self._count("busy")
                elif not self._breaker.allows():
                    self._count("skipped")
                else:
                    result = self._try(work, *args)
                result = fallback() if result is None else result
            finally:
                with self._under_way_lock:
                    self._under_way.pop(what, None)
                done.set_result(result)

        if not self._breaker.closed and not self._breaker.due:
            self._count("skipped")
            with self._under_way_lock:
                self._under_way.pop(what, None)
            done.set_result(fallback())
        else:
            self._pool.submit(run)
        return done

    def _try(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            result = work(*args)
        except Exception as error:
            kind = error_kind(error)
            self._count(kind)
            if kind not in _DOWN:
                self._worked()
            elif self._breaker.failed() and time.monotonic() > self._quiet_until:
                self._quiet_until, self._told = time.monotonic() + _QUIET, True
                logger.warning("prr: the shared store fails (%s: %s); going on without it", kind, type(error).__name__)
            return None
        self._worked()
        return result

    def _worked(self) -> None:
        if self._breaker.succeeded() and self._told:
            self._told = False
            logger.info("prr: the shared store works again")

    def _count(self, kind: str) -> None:
        self._metrics.add("prr_store_errors_total", 1, kind)

    def _saw_epoch(self, tenant: bytes, epoch: bytes) -> None:
        with self._epochs_lock:
            before = self._epochs.get(tenant, b"")  # not seen: what is here may be from before a purge
            self._epochs[tenant] = epoch
            self._epochs.move_to_end(tenant)
            oldest = next(iter(self._epochs)) if len(self._epochs) > _TENANTS else None
            if oldest is not None:
                del self._epochs[oldest]
        if before != epoch:
            self.forget(tenant)
        if oldest is not None:
            self.forget(oldest)  # whether it was purged could not be told any more


def tenant_base(prefix: str, tenant: bytes) -> bytes:
    """What the names of a tenant's keys begin with."""
    return b"%s:{%s}:" % (prefix.encode(), tenant.hex().encode())
