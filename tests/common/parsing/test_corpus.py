"""Every fixture of the corpus passes the corpus' own checks, whole and in any split, by the library.

`make conformance` is the full account (own token ids, engines, round trip); this is its guard in the test run.
"""

from __future__ import annotations

import pytest
from canitoolcall.checks import run_checks
from canitoolcall.chunking import ChunkStrategy, split_text
from canitoolcall.results import Observation, Status

from prr_testing.adapters import PrrLibrary, ReplayInput
from prr_testing.corpus import completions

FAMILIES = sorted({c.fixture.family for c in completions()})
SPLITS = [ChunkStrategy.parse(spec) for spec in ("one", "char:0", "char:1", "char:2", "char:3")]


def test_the_corpus_is_whole() -> None:
    assert len(completions()) == 469


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fixture_passes(family: str) -> None:
    adapter = PrrLibrary()
    failed = {}
    for completion in completions():
        if completion.fixture.family != family:
            continue
        raw = ReplayInput.from_fixture(completion.fixture, completion.family)
        streams = {s.id: adapter.parse_stream_text(raw, split_text(raw.text, s), completion.tools) for s in SPLITS}
        seen = Observation(nonstream=adapter.parse(raw, completion.tools), streams=streams)
        bad = [row for row in run_checks(completion.fixture, completion.family, seen) if row.status is not Status.PASS]
        if bad:
            failed[completion.fixture.id] = f"{bad[0].check} ({bad[0].strategy}): {bad[0].detail}"
    assert failed == {}
