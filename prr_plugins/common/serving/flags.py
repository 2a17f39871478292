"""What the parser flags of a server choose: one format, or none of ours."""

from __future__ import annotations

from collections.abc import Mapping

from prr_plugins.common.parsing import FORMATS, Format, get_format
from prr_plugins.common.serving.startup import StartupError

PREFIX = "prr_"


def is_ours(name: str | None) -> bool:
    """Whether a parser's name is one of ours, known or not."""
    return name is not None and name.startswith(PREFIX)


def check_names(named: Mapping[str, str | None]) -> None:
    """named: flag to value, None where it is not set.

    Raises:
        StartupError: a `prr_*` name that no format has.
    """
    for flag, name in named.items():
        if name is not None and is_ours(name) and name not in FORMATS:
            raise StartupError(f"{flag} {name}: there is no such parser; there are {', '.join(sorted(FORMATS))}")


def chosen_format(named: Mapping[str, str | None]) -> Format | None:
    """The one format in use, None where the flags choose none of ours.

    named: flag to value, None where it is not set.

    Raises:
        StartupError: an unknown `prr_*` name, or names that do not go together.
    """
    check_names(named)
    used = {flag: name for flag, name in named.items() if name is not None}
    if not any(map(is_ours, used.values())):
        return None
    if len(set(used.values())) > 1:
        flags = " and ".join(f"{flag} {name}" for flag, name in used.items())
        raise StartupError(f"{flags} do not go together: choose one prr_* name for both, or leave one unset")
    return get_format(next(iter(used.values())))
