"""Events and failures as a notebook and a terminal show them."""

from __future__ import annotations

import re

from psnb._src.monitor.events import Event, EventKind
from psnb._src.monitor.failures import Failure
from psnb._src.monitor.html.tables import MOST_ROWS, Events, Failures, Phases, WorkerPhases
from psnb._src.utils.phases import PhaseStatistics
from tests.monitor.test_summary import HOSTILE, Reader


def event(message: str = "it ended") -> Event:
    return Event(1.0, EventKind.WORKER_LOST, "alice", message, ())


def failure(number: int = 0, text: str = "boo") -> Failure:
    return Failure(number, 1.0, "alice", f"step #{number}", f"ValueError: {text}", text, text)


def test_both_are_tuples() -> None:
    assert Events([event()]) == (event(),)
    assert Failures([failure()])[0] == failure()


def test_a_line_tells_each_event() -> None:
    text = repr(Events([event(), event("again")]))
    clock = r"\d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{clock}  worker lost: it ended\n{clock}  worker lost: again", text)
    assert repr(event()) == "<psnb.Event worker lost: it ended>"


def test_a_line_tells_each_failure_and_where_it_is_in_the_tuple() -> None:
    lines = repr(Failures([failure(7), failure(8)])).splitlines()
    assert re.fullmatch(r"\[1\] \d\d:\d\d:\d\d  step #8 on alice: ValueError: boo", lines[1])
    assert repr(failure()) == "<psnb.Failure 0: step #0 on alice: ValueError: boo>"


def test_an_empty_list_has_a_sentence() -> None:
    assert repr(Events()) == Events()._repr_html_() == "no events"
    assert repr(Failures()) == Failures()._repr_html_() == "no failures"


def test_what_users_have_written_is_escaped() -> None:
    for shown in (Events([event(HOSTILE)]), Failures([failure(0, HOSTILE)])):
        read = Reader(shown._repr_html_())
        assert "img" not in read.elements
        assert HOSTILE in read.text


def test_short_cells_are_in_one_line_and_long_ones_may_be_broken() -> None:
    shown = Events([event("it has ended, which was to be expected")])._repr_html_()
    assert re.search(r'nowrap">alice<', shown)
    assert not re.search(r'nowrap">it has ended', shown)


def test_the_traceback_of_a_failure_folds_out() -> None:
    read = Reader(Failures([failure(0, "the lines")])._repr_html_())
    assert {"details", "summary", "pre"} <= set(read.elements)
    assert "the lines" in read.text


def test_of_many_the_latest_are_shown() -> None:
    text = Reader(Failures(map(failure, range(MOST_ROWS + 5)))._repr_html_()).text
    assert f"the last {MOST_ROWS} of {MOST_ROWS + 5} failures" in text
    assert "[4]" not in text
    assert "[5]" in text
    assert f"[{MOST_ROWS + 4}]" in text


PHASES = Phases(
    [
        WorkerPhases("alice", PhaseStatistics(3.0, 0.5, 6.0, 0.0, 0.5)),
        WorkerPhases("bob", PhaseStatistics(1.0, 0.5, 0.0, 0.5, 0.0)),
    ]
)


def test_phases_are_a_table_of_workers_with_their_sum() -> None:
    assert repr(PHASES).splitlines() == [
        "worker          read          pull       compute          push        commit    in all",
        "alice   3.000 s  30%  0.500 s   5%  6.000 s  60%  0.000 s   0%  0.500 s   5%  10.000 s",
        "bob     1.000 s  50%  0.500 s  25%  0.000 s   0%  0.500 s  25%  0.000 s   0%   2.000 s",
        "all     4.000 s  33%  1.000 s   8%  6.000 s  50%  0.500 s   4%  0.500 s   4%  12.000 s",
    ]
    assert PHASES.total.read == 4.0
    assert PHASES[1].phases.total == 2.0


def test_the_phases_of_one_worker_need_no_sum_and_those_of_none_are_no_table() -> None:
    assert len(repr(Phases(PHASES[:1])).splitlines()) == 2
    assert repr(Phases()) == Phases()._repr_html_() == "no workers"


def test_the_phases_of_a_worker_with_a_hostile_name_are_text() -> None:
    assert HOSTILE not in Phases([WorkerPhases(HOSTILE, PhaseStatistics(1.0))])._repr_html_()
