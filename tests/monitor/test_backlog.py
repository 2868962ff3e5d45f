"""What is kept for those that come late."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.monitor.backlog import Backlog
from psnb._src.monitor.protocol import Update
from tests.monitor.hub.updates import update


def kept(backlog: Backlog) -> list[Update]:
    """Return the updates that it has, the full one first."""
    return [json.loads(text) for _, text in backlog.since()]


def told(backlog: Backlog, have: list[Update]) -> list[Update]:
    """What a view that has something has when it was told what follows."""
    news = backlog.since(have[-1]["sequence"] if have else None)
    whole = kept(backlog)
    news_updates = whole[len(whole) - len(news) :]
    return news_updates if news_updates and news_updates[0]["full"] else [*have, *news_updates]


def test_a_newcomer_needs_the_last_full_update_and_all_since() -> None:
    backlog = Backlog()
    for each in (update(0, True), update(1), update(2, True), update(3)):
        assert not backlog.add(each)
    assert kept(backlog) == [update(2, True), update(3)]


def test_a_full_update_is_wanted_before_the_first_and_after_a_gap_until_it_comes() -> None:
    backlog = Backlog()
    assert backlog.add(update(5))
    assert kept(backlog) == []
    assert not backlog.add(update(6, True))
    assert backlog.add(update(8))
    assert backlog.add(update(9))
    assert kept(backlog) == [update(6, True)]
    assert not backlog.add(update(10, True))
    assert kept(backlog) == [update(10, True)]


def test_at_its_bounds_it_wants_a_full_update_and_grows_no_more() -> None:
    backlog = Backlog(most_updates=2)
    assert [backlog.add(update(each, full=each == 0)) for each in range(5)] == [
        *(False, False),
        *(True, True, True),
    ]
    assert backlog.last == 2
    small = Backlog(most_bytes=10)
    assert [small.add(update(each, full=each == 0)) for each in range(3)] == [False, True, True]
    assert small.last == 1


def test_a_reader_that_is_up_to_date_hears_nothing() -> None:
    backlog = Backlog()
    backlog.add(update(7, True))
    assert backlog.since(7) == []
    assert [number for number, _ in backlog.since(6)] == [7]
    assert [number for number, _ in backlog.since(99)] == [7]


@given(
    sent=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=60),
    most=st.integers(1, 8),
)
def test_a_listener_has_one_full_update_and_the_rest_without_a_gap(
    sent: list[tuple[bool, bool, bool]], most: int
) -> None:
    backlog = Backlog(most_updates=most)
    view: list[Update] = []
    wanted = True
    for sequence, (full, lost, listens) in enumerate(sent):
        if not lost:
            wanted = backlog.add(update(sequence, full or wanted))
            assert len(kept(backlog)) <= most + 1
        if listens:
            view = told(backlog, view)
            assert view[-len(kept(backlog)) :] == kept(backlog)
        if view:
            numbers = [each["sequence"] for each in view]
            assert view[0]["full"]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
