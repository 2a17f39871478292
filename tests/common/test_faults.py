"""What the log says of a fault: its type and place, and nothing that it quotes."""

from __future__ import annotations

from prr_plugins.common.faults import described


def test_type_and_place_but_not_what_it_says() -> None:
    try:
        int("a secret of the prompt")
    except ValueError as error:
        said = described(error)
    assert said.startswith("ValueError at ")
    assert "test_faults.py:" in said
    assert "secret" not in said


def test_an_error_that_was_never_raised() -> None:
    assert described(RuntimeError("secret")) == "RuntimeError at ?"
