"""The fields that a chat request may hold beside the API's own, and what each accepts. Both engines read them by this.

Promise: a value that is not accepted is the client's mistake and never guessed at. No field is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from prr_plugins.common.serving.splice_switch import MODES
from prr_plugins.common.settings import StreamArguments

REPORT = "prr"  # true: say what happened to the prompt
SPLICE = "prr_splice"
STREAM_ARGUMENTS = "prr_stream_arguments"
NAMES = (REPORT, SPLICE, STREAM_ARGUMENTS)

_ACCEPTED: dict[str, tuple[str, ...]] = {SPLICE: MODES, STREAM_ARGUMENTS: get_args(StreamArguments)}


def mistake(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first field whose value is not accepted, and what to tell the client (HTTP 400). None: all are well."""
    if not isinstance(fields.get(REPORT, False), bool | None):
        return REPORT, f"`{REPORT}` must be true or false"
    for name, accepted in _ACCEPTED.items():
        value = fields.get(name)
        if value is not None and value not in accepted:
            return name, f"`{name}` must be one of {', '.join(accepted)}"
    return None


def stream_arguments(fields: Mapping[str, Any], default: StreamArguments) -> StreamArguments:
    """How the request wants a call's arguments streamed; the server's way where it does not say."""
    value = fields.get(STREAM_ARGUMENTS)
    return cast(StreamArguments, value) if value in _ACCEPTED[STREAM_ARGUMENTS] else default
