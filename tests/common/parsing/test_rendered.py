"""What a model's own template writes is read back: its values in any split, and the turn stands in the next prompt.

For the formats that the corpus has no completion of (`prr_testing.rendered`); `test_corpus.py` holds the others.
"""

from __future__ import annotations

import pytest

from prr_plugins.common.parsing.formats import FORMATS, get_format
from prr_testing import round_trip
from prr_testing.corpus import completions_of
from prr_testing.rendered import RENDERED
from tests.common.parsing.formats._helpers import check, exact

every_family = pytest.mark.parametrize("format", RENDERED)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_completions(format: str) -> None:
    """Else the laws would pass for want of a text: a format that the corpus lacks needs a row in `RENDERED`."""
    assert completions_of(format)


@every_family
def test_what_was_rendered_comes_back(format: str) -> None:
    for completion in completions_of(format):
        wanted = completion.fixture.expected
        assert wanted is not None
        result = check(
            format,
            completion.text,
            tools=completion.tools,
            prompt_tail=completion.tail,
            calls=[(call.name, dict(call.arguments)) for call in wanted.tool_calls],
            content=wanted.content,
            reasoning=wanted.reasoning_content,
        )
        for call in result.parsed_tool_calls:
            assert exact(call.arguments)[0] == "object"


@every_family
def test_the_turn_stands_in_the_next_prompt(format: str) -> None:
    """By the bridge, with results and with a new question behind it; the template alone may change it."""
    for completion in completions_of(format):
        outcomes = round_trip.check(completion)
        assert outcomes
        assert {outcome.bridge for outcome in outcomes} == {"kept"}, (completion.fixture.id, outcomes)


@every_family
def test_a_vocabulary_has_every_marker(format: str) -> None:
    """The markers are the model's: all stand in its template, or in what the template writes."""
    texts = "".join(c.tail + c.text for c in completions_of(format)) + "".join(RENDERED[format].stops)
    missing = [marker for marker in get_format(format).markers if marker not in texts]
    assert not missing
