"""What the soak's ledger takes for right and for wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.soak.ledger import PAIRS, Found, Ledger, Pushes, Written

ONE = Written(era=0, amount=5, pairs=[3], number=77)


def found(ledger: Ledger) -> Found:
    """Return what the parameters hold when all is right."""
    accounts, counters = (ledger.amount, -ledger.amount), (ledger.closures, ledger.closures)
    return Found(accounts, counters, 0, ledger.rows.copy(), np.ones(len(ledger.numbers)))


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    made.count(ONE)
    return made


def test_what_closures_have_written_is_right(ledger: Ledger) -> None:
    assert (ledger.rows[6], ledger.rows[7]) == (5, -5)
    assert ledger.differences(found(ledger)) == []


def test_each_difference_is_reported(ledger: Ledger) -> None:
    rows = np.zeros(2 * PAIRS)
    rows[0] = 1
    wrong = Found((5, -4), (1, 2), 1, rows, np.array([2.0]))
    assert len(ledger.differences(wrong)) == 6


def test_averaged_pushes_must_cancel_out_and_be_there(ledger: Ledger) -> None:
    ledger.pushes = Pushes.AVERAGED
    right = found(ledger)._replace(rows=ledger.rows / 3, numbers=np.array([0.25]))
    assert ledger.differences(right) == []
    assert ledger.differences(right._replace(numbers=np.zeros(1)))


def test_no_more_pushes_may_be_lost_than_workers_can_have_held(ledger: Ledger) -> None:
    ledger.pushes = Pushes.MAY_BE_LOST
    nothing = Found((0, 0), (0, 0), 0, np.zeros(2 * PAIRS), np.zeros(1))
    assert ledger.differences(nothing, lost=1) == []
    assert ledger.differences(nothing, lost=0)


def test_what_is_lost_is_lost_wholly(ledger: Ledger) -> None:
    ledger.pushes = Pushes.MAY_BE_LOST
    nothing = Found((0, 0), (0, 0), 0, np.zeros(2 * PAIRS), np.zeros(1))
    assert ledger.differences(nothing._replace(accounts=(5, 0)), lost=1)
    assert ledger.differences(nothing._replace(counters=(1, 0)), lost=1)


def test_what_was_begun_before_a_restore_counts_no_more(ledger: Ledger) -> None:
    restored = ledger.restored(json.loads(json.dumps(Ledger().saved())))
    restored.count(ONE)
    assert (restored.closures, restored.numbers) == (0, [])
    restored.count(ONE._replace(era=1))
    assert restored.closures == 1


def test_a_checkpoint_has_the_ledger_of_its_moment(ledger: Ledger) -> None:
    saved = ledger.saved()
    ledger.count(ONE._replace(number=78))
    restored = ledger.restored(saved)
    assert restored.differences(found(restored)) == []
    assert restored.numbers == [77]


def test_thirds_may_differ_in_their_last_bit_and_no_more() -> None:
    ledger = Ledger(Pushes.MAY_BE_LOST)
    rows = np.zeros(2 * PAIRS, np.float32)
    rows[:2] = 280, np.nextafter(np.float32(-280), np.float32(-281))
    assert ledger.differences(found(ledger)._replace(rows=rows)) == []
    rows[1] = -280 - 1 / 3
    assert "do not cancel out" in ledger.differences(found(ledger)._replace(rows=rows))[0]
