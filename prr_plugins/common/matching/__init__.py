"""Which stored turn a history goes on from.

Promise: a turn is chosen only when it is the one that fits; what is unclear stays unspliced. Imports `store` and the
ground.

- `message_keys`: the normal form of messages, and the chain of keys over a history.
- `find_turn`: the deepest stored turn of a history, and whether its client may have it.
"""

from prr_plugins.common.matching.find_turn import Ambiguous, Match
from prr_plugins.common.matching.message_keys import Chain, Link, Media, turn_key

__all__ = ["Ambiguous", "Chain", "Link", "Match", "Media", "turn_key"]
