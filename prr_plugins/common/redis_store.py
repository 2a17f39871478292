"""Turns shared by API processes and replicas through a Redis or Valkey server; the in-process store stands in front.

Promises: one round trip finds a turn with all it stands on, one stores a turn; no request waits for the server longer
than the time-out, and none at all while it is known to be down; whatever comes back is checked (turn_code.py) and
counted under `prr_store_errors_total` when it is not usable. Without the server the in-process store works alone.

Names, all under `PREFIX:{TENANT}:` (16 hex digits of `tenant_tag`; the braces keep a tenant in one slot):
`t:ID` a turn; `k:KEY` the ids of the turns under a key, oldest first; `l:KEY` fingerprints under a loose key; `e` a
random word that `prr store purge` changes: a process that sees another one than before forgets the tenant's turns too.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from prr_plugins.common.breaker import Breaker
from prr_plugins.common.finding import Finding
from prr_plugins.common.metrics import Metrics
from prr_plugins.common.settings import Settings
from prr_plugins.common.store import SIBLINGS, Lookup, Turn, TurnStore, tenant_tag
from prr_plugins.common.turn_code import HEAD_BYTES, ID_BYTES, MAGIC, Codec, Unusable, read_keys

logger = logging.getLogger(__name__)

DAY = 86_400.0
_THREADS = 8
_DEEPEST = 1024
"""Keys of one history that are asked for, and turns that the server is told are here already."""
_TENANTS = 65_536
_QUIET = 60.0  # seconds between two log lines that it fails: one that is barely too slow fails every other second
_FINGERPRINT_BYTES = 16

# ARGV: 1 prefix, 2 time to live in ms (0: none), 3 most bytes of a turn, 4 loose key, 5 keys (deepest first), 6 ids
# that the caller has with all they stand on. Returns the epoch, the fingerprints, what was passed over, and id, bytes,
# id, bytes... of turns, each behind its parent. The head of a turn: see turn_code.py.
_FIND = """
local base, ttl, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local have, sent, out, passed = {}, {}, {}, {}
for i = 1, #ARGV[6], 16 do have[string.sub(ARGV[6], i, i + 15)] = true end

local function head_of(id)
  local head = redis.call('GETRANGE', base .. 't:' .. id, 0, 39)
  if string.sub(head, 1, 4) == 'PRR\\1' and #head == 40 then return head end
  if #head > 0 then passed[#passed + 1] = string.sub(head, 1, 4) end
end

local function parent_of(head)
  local parent = string.sub(head, 21, 36)
  if parent ~= string.rep('\\0', 16) then return parent end
end

local function collect(id)
  local chain, seen = {}, {}
  while id and not have[id] and not sent[id] do
    local head = head_of(id)
    if not head or seen[id] then return false end
    if redis.call('STRLEN', base .. 't:' .. id) > most then
      passed[#passed + 1] = 'size'
      return false
    end
    seen[id] = true
    chain[#chain + 1] = id
    id = parent_of(head)
  end
  for i = #chain, 1, -1 do
    sent[chain[i]] = true
    out[#out + 1] = chain[i]
    out[#out + 1] = redis.call('GET', base .. 't:' .. chain[i])
  end
  return true
end

-- The first turn of a conversation never has more time left than the others: while that one has, all have.
local function refresh(id)
  local head = ttl > 0 and head_of(id)
  if not head or redis.call('PTTL', base .. 't:' .. string.sub(head, 5, 20)) > ttl * 0.9 then return false end
  local seen = {}
  while head and not seen[id] do
    seen[id] = true
    redis.call('PEXPIRE', base .. 't:' .. id, ttl)
    id = parent_of(head)
    head = id and head_of(id)
  end
  return true
end

for i = 1, #ARGV[5], 16 do
  local ids = redis.call('GET', base .. 'k:' .. string.sub(ARGV[5], i, i + 15))
  local found, fresh = false, true
  for j = 1, ids and #ids or 0, 16 do
    local id = string.sub(ids, j, j + 15)
    if collect(id) then
      found = true
      if refresh(id) then fresh = false end
    end
  end
  if found then
    if not fresh then
      for j = i, #ARGV[5], 16 do redis.call('PEXPIRE', base .. 'k:' .. string.sub(ARGV[5], j, j + 15), ttl) end
      redis.call('PEXPIRE', base .. 'l:' .. ARGV[4], ttl)
    end
    break
  end
end
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', base .. 'l:' .. ARGV[4]) or '', passed, out}
"""
assert (MAGIC, HEAD_BYTES, ID_BYTES) == (b"PRR\x01", 40, 16)

# ARGV: 1 prefix, 2 time to live in ms, 3 whether the epoch is known, 4 the epoch, 5 id, 6 parent or '', 7 bytes,
# 8 keys, 9 loose key, 10 fingerprint. Returns the epoch and what came of it: ok | parent (gone) | purged.
_PUT = """
local base, ttl = ARGV[1], tonumber(ARGV[2])
local epoch = redis.call('GET', KEYS[1]) or ''
if ARGV[3] == '1' and ARGV[4] ~= epoch then return {epoch, 'purged'} end
if ARGV[6] ~= '' and redis.call('EXISTS', base .. 't:' .. ARGV[6]) == 0 then return {epoch, 'parent'} end

local function set(name, value)
  if ttl > 0 then redis.call('SET', name, value, 'PX', ttl) else redis.call('SET', name, value) end
end

local function add(name, entry)
  local known, kept = redis.call('GET', name) or '', {}
  for i = 1, #known, 16 do
    local other = string.sub(known, i, i + 15)
    if other ~= entry then kept[#kept + 1] = other end
  end
  kept[#kept + 1] = entry
  set(name, table.concat(kept, '', math.max(1, #kept - 31)))
end

set(base .. 't:' .. ARGV[5], ARGV[7])
for i = 1, #ARGV[8], 16 do add(base .. 'k:' .. string.sub(ARGV[8], i, i + 15), ARGV[5]) end
add(base .. 'l:' .. ARGV[9], ARGV[10])
return {epoch, 'ok'}
"""
assert SIBLINGS == 32


# What `connect` needs as it is: a query would win over it.
_OURS = {
    "client_name", "connection_class", "credential_provider", "decode_responses", "encoding", "event_dispatcher",
    "parser_class", "retry", "retry_on_error", "socket_connect_timeout", "socket_timeout", "socket_type",
}  # fmt: skip


def check_url(url: str) -> None:
    """Has the client read the whole URL, its query included; nothing is connected.

    Raises:
        ValueError: it does not take it. The message is one line without the URL's secrets.
    """
    if taken := sorted(_OURS & parse_qs(urlsplit(url).query, keep_blank_values=True).keys()):
        raise ValueError(f"its query sets '{taken[0]}', which is not the URL's to set (time-outs: PRR_STORE_TIMEOUT)")
    try:
        redis.Redis.from_url(url).connection_pool.make_connection()
    except Exception as error:  # of an option that it does not know or cannot use, each in a way of its own
        query = urlsplit(url).query
        named = "" if "@" in query else f" ({error})"  # a password with a bare `?` looks like a query
        raise ValueError(
            f"the client does not take its query{named}; options are those of redis-py, such as db=1 or "
            "ssl_cert_reqs=required (rediss:// only)"
        ) from None


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
        self._find_script = client.register_script(_FIND)
        self._put_script = client.register_script(_PUT)
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


# --------------------------------------------------------------------------------------------- for the command line


def examine(settings: Settings) -> Finding:
    """Whether the server can be reached; what a diagnosis says of it."""
    try:
        version = connect(settings, timeout=5.0).info("server").get("redis_version", "?")
    except (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError):
        version = "version not told"  # a user who may do only what the scripts need
    except (redis.RedisError, OSError) as error:
        return Finding(
            "store", "warning", f"{settings.store_url}: {error_kind(error)}: a server would go on without it"
        )
    return Finding("store", "ok", f"{settings.store_url} ({version})")


@dataclass
class Stats:
    """What the server holds under a prefix. bytes: of memory, as the server reports them for each key."""

    turns: int = 0
    keys: int = 0
    bytes: int = 0
    tenants: set[str] = field(default_factory=set)


def stats(client: redis.Redis, prefix: str) -> Stats:
    """Looks at every key once. What a purge leaves behind, that it has been, holds nothing and does not count."""
    result = Stats()
    for found in _ours(client, prefix):
        keys = [(name, tag) for name, tag in found if name != tenant_base(prefix, tag) + b"e"]
        pipeline = client.pipeline(transaction=False)
        for name, _ in keys:
            pipeline.memory_usage(name)
        result.bytes += sum(size or 0 for size in pipeline.execute())
        for name, tag in keys:
            result.keys += 1
            result.turns += name.startswith(tenant_base(prefix, tag) + b"t:")
            result.tenants.add(tag.hex())
    return result


def purge(client: redis.Redis, prefix: str, tenant: str | None) -> int:
    """Delete all that is kept for a tenant (None: for requests without one); the number of turns that were deleted.

    Processes that hold some of it in memory drop it when they next see a request of that tenant.
    """
    return _purge_tag(client, prefix, tenant_tag(tenant))


def purge_all(client: redis.Redis, prefix: str) -> int:
    """The same for every tenant that the server knows."""
    tags = {tag for keys in _ours(client, prefix) for _, tag in keys}
    return sum(_purge_tag(client, prefix, tag) for tag in tags)


def _ours(client: redis.Redis, prefix: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """All our keys with the tags of their tenants. Others may keep something under the prefix too."""
    name_of_ours = re.compile(rb"%s:\{([0-9a-f]{16})\}:(?:e\Z|[tkl]:)" % re.escape(prefix.encode()))
    for names in _scan(client, f"{prefix}:{{*".encode()):
        found = [(name, match) for name in names if (match := name_of_ours.match(name))]
        yield [(name, bytes.fromhex(match[1].decode("ascii"))) for name, match in found]


def _purge_tag(client: redis.Redis, prefix: str, tag: bytes) -> int:
    base = tenant_base(prefix, tag)
    client.set(base + b"e", os.urandom(8))  # first: from now on nothing is added that began before
    turns = 0
    for names in _scan(client, base + b"[tkl]:*"):
        client.unlink(*names)
        turns += sum(name.startswith(base + b"t:") for name in names)
    return turns


def _scan(client: redis.Redis, pattern: bytes, batch: int = 500) -> Iterator[list[bytes]]:
    cursor = None
    while cursor != 0:
        cursor, names = client.scan(cursor or 0, match=pattern, count=batch)
        if names:
            yield [name for name in names if isinstance(name, bytes)]
