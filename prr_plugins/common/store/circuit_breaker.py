"""A circuit breaker: what has failed is left alone for a while, longer each time, then tried by one caller."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable


class Breaker:
    """Thread-safe. After a failure nobody is let through for `first` seconds, then one at a time; with each further
    failure the pause doubles, up to `longest`. A pause is up to a quarter longer, so that many processes do not come
    back at once.
    """

    def __init__(
        self, first: float = 0.25, longest: float = 5.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = first
        self._longest = longest
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._trying = False

    @property
    def closed(self) -> bool:
        """Whether everybody is let through."""
        return not self._failures

    @property
    def due(self) -> bool:
        """Whether it is time for a try."""
        return self._clock() >= self._until

    def allows(self) -> bool:
        """Whether to try now. In a pause: no; at its end: one caller, while the others wait for what comes of it."""
        with self._lock:
            if not self._failures:
                return True
            if self._clock() < self._until:
                return False
            self._trying = True
            self._wait()
            return True

    def succeeded(self) -> bool:
        """Note that it works; True where it had not before."""
        with self._lock:
            recovered = self._failures > 0
            self._failures = 0
            self._trying = False
            return recovered

    def failed(self) -> bool:
        """Note a failure; True for the first one."""
        with self._lock:
            if self._failures and not self._trying:
                return False  # was under way together with the one that counted
            self._failures += 1
            self._trying = False
            self._wait()
            return self._failures == 1

    def _pause(self) -> float:
        return float(min(self._longest, self._first * 2 ** (min(self._failures, 32) - 1)))

    def _wait(self) -> None:
        self._until = self._clock() + self._pause() * random.uniform(1.0, 1.25)
