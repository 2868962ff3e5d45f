"""The lines of closures that a coordinator keeps, by worker."""

from __future__ import annotations

import pytest

from psnb._src.monitor import worker_output
from psnb._src.monitor.html.tables import Output
from psnb._src.monitor.worker_output import MOST_BYTES, MOST_LINES, MOST_SHOWN, OutputLog
from psnb.errors import ConfigurationError

A, B = ("a", 0), ("b", 1)


def lines(*texts: str, time: float = 1.0) -> list[tuple[float, str, str]]:
    return [(time, "step #3", text) for text in texts]


def texts(log: OutputLog, worker: str | int) -> list[str]:
    return [line.text for line in log.of(worker, [A, B])[0]]


def test_a_worker_has_its_own_lines_by_name_and_by_index() -> None:
    log = OutputLog()
    log.add(*A, lines("x", "y"))
    log.add(*B, lines("z"))
    assert texts(log, "a") == texts(log, 0) == ["x", "y"]
    assert log.of("b", [])[0] == [(1.0, "b", "step #3", "z")]


def test_an_index_has_the_lines_of_all_workers_that_had_it() -> None:
    log = OutputLog()
    log.add("lost", 1, lines("1", time=1))
    log.add(*B, lines("2", time=2))
    log.add("lost", 1, lines("3", time=3))
    assert texts(log, 1) == ["1", "2", "3"]


def test_a_worker_that_has_written_nothing_has_no_lines() -> None:
    assert OutputLog().of("a", [A]) == ([], 0)


def test_an_unknown_worker_is_refused_with_those_that_there_are() -> None:
    log = OutputLog()
    log.add("gone", 2, lines("x"))
    with pytest.raises(ConfigurationError, match="no worker 'x'; there are a, b, gone"):
        log.of("x", [A, B])
    with pytest.raises(ConfigurationError, match=r"index 7; there are 0 \(a\), 1 \(b\), 2 \(gone"):
        log.of(7, [A, B])


def test_of_too_many_lines_the_oldest_are_forgotten_and_counted() -> None:
    log = OutputLog()
    log.add(*A, lines(*map(str, range(MOST_LINES + 5))))
    found, left_out = log.of("a", [])
    assert (len(found), found[0].text, left_out) == (MOST_LINES, "5", 5)
    assert repr(Output(found, left_out)).startswith("... 5 lines before these are not kept\n")


def test_long_lines_are_bounded_by_their_bytes() -> None:
    log = OutputLog()
    log.add(*A, lines(*["\N{GRINNING FACE}" * 4096] * 100))
    found, left_out = log.of("a", [])
    assert len(found) + left_out == 100
    assert 0.9 * MOST_BYTES < sum(4 * len(line.text) for line in found) < MOST_BYTES


def test_of_all_workers_those_silent_for_longest_lose_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_output, "MOST_BYTES_IN_ALL", 30_000)
    log = OutputLog()
    for each in (A, B, A):
        log.add(*each, lines("x" * 4096, "y" * 4096))
    log.add("c", 2, lines("x" * 4096, "y" * 4096))
    assert log.of("b", []) == ([], 2)
    assert len(texts(log, "a")) == 4
    assert repr(Output(*log.of("b", []))) == "... 2 lines before these are not kept"


def test_a_view_gets_the_last_lines_and_how_many_were_before() -> None:
    log = OutputLog()
    log.add(*A, lines(*map(str, range(MOST_SHOWN + 2))))
    found = log.shown("a")
    assert (len(found["lines"]), found["left_out"]) == (MOST_SHOWN, 2)
    assert found["lines"][0] == {"time": 1.0, "closure": "step #3", "text": "2"}
    assert log.shown("silent") == {"worker": "silent", "left_out": 0, "lines": []}


def test_nothing_says_so() -> None:
    assert repr(Output([])) == "nothing was printed"
