"""How hard tests try: with hypothesis' profile `full` (`make test-all`) as hard as they can, else a quarter of that.

A test that uses `share` or `part` is marked `scaled`, so that `make test-all TESTED=1` runs it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings

# Examples are not timed: another process may be in the way.
_COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, **_COMMON)
settings.register_profile("full", max_examples=100, **_COMMON)
settings.load_profile("quick")


def examples(full: int, **options: Any) -> settings:
    """Settings of a test that tries `full` examples under the profile `full`."""
    return settings(deadline=None, max_examples=max(5, share(full)), **options)


def share(full: int) -> int:
    """`full` under the profile `full`, a quarter of it otherwise."""
    assert settings.default is not None
    return full * settings.default.max_examples // 100


def part(full: Sequence[Any]) -> Sequence[Any]:
    """All of them under the profile `full`, else every fourth."""
    return full[:: 100 // share(100)]
