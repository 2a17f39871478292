"""A fault as the log may show it: what and where, never what it says.

An error's own message may hold text of a prompt or of a completion (pydantic quotes its input), and a log must not.
"""

from __future__ import annotations


def described(error: Exception) -> str:
    """The error's type and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
    return f"{type(error).__name__} at {place}"
