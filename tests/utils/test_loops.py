"""Errors in loops that go on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from psnb._src.utils.loops import LoopErrors


def test_what_a_round_raises_is_logged_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors, rounds = LoopErrors("Looking for workers"), 0
    for name in "aabba":
        with errors:
            rounds += 1
            raise KeyError(name)
    with errors:
        rounds += 1
    with errors:
        raise KeyError("a")
    assert rounds == 6
    assert [record.exc_info[1].args[0] for record in caplog.records if record.exc_info] == [
        *"abaa"  # what comes back each time once; after a round that was well, again
    ]
    assert "Looking for workers failed" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyboardInterrupt(), LookupError(), KeyError("derived")]
)
def test_what_ends_the_loop_passes(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(error)), LoopErrors("Looking", LookupError):
        raise error
    assert not caplog.records
