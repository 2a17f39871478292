"""Request fields: what is accepted, and that nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from prr_plugins.common.serving.request_fields import mistake, stream_arguments


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prr": True, "prr_splice": "observe", "prr_stream_arguments": "complete", "temperature": "x"},
        {"prr": False, "prr_splice": None, "prr_stream_arguments": None},
        {"prr": None},
    ],
)
def test_what_is_accepted(fields: dict[str, Any]) -> None:
    assert mistake(fields) is None


@pytest.mark.parametrize("value", ["", "EAGER", "maybe", 1, True, [], ["eager"], {"a": "complete"}])
@pytest.mark.parametrize(
    ("name", "accepted"), [("prr_splice", "off, observe, on"), ("prr_stream_arguments", "eager, complete")]
)
def test_a_mistake_names_the_field_and_what_it_accepts(name: str, accepted: str, value: object) -> None:
    assert mistake({name: value}) == (name, f"`{name}` must be one of {accepted}")


@pytest.mark.parametrize("value", ["", "true", "maybe", 1, 0, [], [1], {"a": 1}])
def test_whether_to_report_is_yes_or_no(value: object) -> None:
    assert mistake({"prr": value}) == ("prr", "`prr` must be true or false")


def test_the_request_decides_and_else_the_server() -> None:
    assert stream_arguments({"prr_stream_arguments": "complete"}, "eager") == "complete"
    assert stream_arguments({"prr_stream_arguments": "eager"}, "complete") == "eager"
    assert stream_arguments({}, "complete") == "complete"
    # a surface that does not refuse it falls back to the server's
    assert stream_arguments({"prr_stream_arguments": ["eager"]}, "complete") == "complete"
