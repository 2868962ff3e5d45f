"""Failures of closures, as people see them."""

from __future__ import annotations

import gc
import pickle

import pytest

from psnb._src.monitor.failures import MOST_CALL_BYTES, MOST_FAILURES, FailureLog
from psnb._src.protocol.errors import pack_error, unpack_error
from psnb.errors import ConfigurationError


def failed(message: str) -> bytes:
    try:
        raise ValueError(message)
    except ValueError as error:
        return pack_error(error, "in closure step(1) on worker 'alice', attempt 1")


def test_a_failure_tells_type_message_place_and_traceback() -> None:
    log = FailureLog(unpack_error)
    log.add("alice", "step #7", failed("bad batch\nsecond line"))
    (failure,) = log.since(0)
    assert (failure.number, failure.worker, failure.closure) == (0, "alice", "step #7")
    assert failure.error == "ValueError: bad batch"
    assert failure.traceback.startswith(
        "ValueError: bad batch\nsecond line\nin closure step(1) on worker 'alice', attempt 1\n"
    )
    assert failure.traceback.endswith("    raise ValueError(message)")
    assert failure.full.startswith("Traceback (most recent call last):\n")
    assert failure.full.endswith("ValueError: bad batch\nsecond line")


def test_only_those_that_are_new_are_reported_again() -> None:
    log = FailureLog(unpack_error)
    log.add("alice", "a #1", failed("first"))
    log.add("alice", "b #2", failed("second"))
    assert [each.error for each in log.since(1)] == ["ValueError: second"]


def test_the_last_error_of_a_worker_is_its_own() -> None:
    log = FailureLog(unpack_error)
    log.add("alice", "a #1", failed("first"))
    log.add("bob", "b #2", failed("second"))
    assert log.last_of("alice") == "ValueError: first"
    assert log.last_of("carol") == ""


def test_the_oldest_are_forgotten() -> None:
    log = FailureLog(pickle.loads)
    packed = pickle.dumps(KeyError("x"))
    for _ in range(MOST_FAILURES + 5):
        log.add("alice", "a #1", packed)
    kept = log.since(0)
    assert (len(kept), kept[0].number) == (MOST_FAILURES, 5)


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_exception_whose_message_raises_is_named_by_its_type() -> None:
    log = FailureLog(lambda packed: SilentError())
    log.add("alice", "a #1", b"")
    assert log.last_of("alice").startswith("SilentError")


class Call:
    """What calls a closure again."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def __call__(self) -> int:
        return len(self.parts)


def test_a_failure_calls_again_what_its_log_keeps() -> None:
    log = FailureLog(unpack_error)
    log.add("alice", "a #1", failed("first"), Call(b"x", b"y"))
    (failure,) = log.since(0)
    assert failure.rerun() == 2
    elsewhere = pickle.loads(pickle.dumps(failure))
    assert elsewhere == failure
    del log
    gc.collect()
    for each in (failure, elsewhere):
        with pytest.raises(ConfigurationError, match="are not kept"):
            each.rerun()


def test_the_oldest_calls_are_dropped_and_what_they_share_counts_once() -> None:
    log = FailureLog(unpack_error)
    shared, own = bytes(MOST_CALL_BYTES // 2), MOST_CALL_BYTES // 4 - 1000
    for number in range(3):
        log.add("alice", f"a #{number}", failed("x"), Call(shared, bytes(own)))
    first, second, third = log.since(0)
    with pytest.raises(ConfigurationError, match="are not kept"):
        first.rerun()
    assert second.rerun() == third.rerun() == 2


def test_a_call_that_is_too_large_is_not_kept() -> None:
    log = FailureLog(unpack_error)
    log.add("alice", "a #1", failed("x"), Call(bytes(MOST_CALL_BYTES + 1)))
    with pytest.raises(ConfigurationError, match="are not kept"):
        log.since(0)[0].rerun()
