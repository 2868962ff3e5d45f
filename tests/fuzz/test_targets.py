"""The fuzzer's targets, without the fuzzer: they must not rot between two runs of it."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import PARSERS
from tests.fuzz.targets import TARGETS


def test_every_parser_is_fuzzed() -> None:
    assert sorted(TARGETS) == sorted(PARSERS)


@pytest.mark.parametrize("parser", PARSERS)
def test_files_that_are_cut_anywhere_are_read_or_refused(parser: str) -> None:
    target = TARGETS[parser]
    for seed in target.seeds:
        for end in range(0, len(seed) + 1, max(7, len(seed) // 50)):
            target.check(seed[:end])
