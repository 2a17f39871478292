"""The breaker: nobody is let through in a pause, one at its end, pauses grow up to their bound, success ends it all."""

from __future__ import annotations

from prr_plugins.common.store.circuit_breaker import Breaker


def test_a_life() -> None:
    now = [100.0]
    breaker = Breaker(1.0, 4.0, clock=lambda: now[0])
    assert breaker.allows()
    assert breaker.allows()
    assert breaker.failed()
    assert not breaker.failed(), "calls that were under way together count once"
    for pause in (1.0, 2.0, 4.0, 4.0):
        now[0] += 0.99 * pause
        assert not breaker.allows()
        now[0] += 0.27 * pause
        assert breaker.due
        assert breaker.allows(), "one may try"
        assert not breaker.allows(), "and only one"
        assert not breaker.failed()
    now[0] += 6
    assert breaker.allows()
    assert breaker.succeeded()
    assert breaker.closed
    assert not breaker.succeeded()
    assert breaker.allows()
    assert breaker.allows()


def test_a_try_that_never_reports_does_not_lock_everybody_out() -> None:
    now = [0.0]
    breaker = Breaker(1.0, 4.0, clock=lambda: now[0])
    breaker.failed()
    now[0] = 2.0
    assert breaker.allows()
    now[0] = 4.0
    assert breaker.allows()
