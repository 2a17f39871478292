"""Finished turns: each with its own token ids, found again by key.

Promise: bounded by bytes; a stored turn never loses the turns it stands on; whatever comes back from outside the
process is checked. Imports the ground (`settings`, `metrics`, `canonical_json`).

- `turn`: what is stored; `interface`: what the splicer needs of a store.
- `memory`: the in-process store. `redis_store`, `redis_scripts`, `redis_admin`: the shared one (needs `redis`);
  `encoding`: a turn as bytes; `circuit_breaker`: what failed is left alone for a while.
"""

from prr_plugins.common.store.interface import Lookup, Store
from prr_plugins.common.store.memory import TurnStore
from prr_plugins.common.store.turn import Turn, tenant_tag

__all__ = ["Lookup", "Store", "Turn", "TurnStore", "tenant_tag"]
