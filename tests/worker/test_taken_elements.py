"""What a closure has taken from iterators, for when it fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from psnb._src.protocol.packing import loads
from psnb._src.worker.taken import (
    MOST_BYTES,
    MOST_ELEMENTS,
    ConsumedInputs,
    ReplayedInputs,
    TakenElements,
    size,
)
from psnb.errors import ClosureInputError

ONE, OTHER = object(), object()


def number_of(iterator: object) -> int:
    return 1 if iterator is ONE else 2


def test_elements_are_recorded_by_iterator_and_in_order() -> None:
    taken = TakenElements()
    taken.add(ONE, "a")
    taken.add(OTHER, "b")
    taken.add(ONE, "c")
    taken.end(OTHER)
    assert loads(taken.packed(number_of)) == {
        1: ConsumedInputs(["a", "c"], False),
        2: ConsumedInputs(["b"], True),
    }


@pytest.mark.parametrize(
    "element", [bytes(MOST_BYTES), {"x": np.zeros(MOST_BYTES // 8)}, threading.Lock()]
)
def test_what_is_too_large_or_cannot_travel_is_not_kept(element: object) -> None:
    taken = TakenElements()
    taken.add(ONE, element)
    taken.add(ONE, "c")
    assert taken.packed(number_of) == b""


def test_what_does_not_say_its_size_is_not_kept_either_if_it_is_too_large() -> None:
    class Frame:  # as those of pandas, it has no `nbytes`
        def __init__(self) -> None:
            self.column = np.zeros(MOST_BYTES // 8)

    taken = TakenElements()
    taken.add(ONE, Frame())
    assert taken.packed(number_of) == b""


def test_many_elements_are_not_kept() -> None:
    taken = TakenElements()
    for number in range(MOST_ELEMENTS):
        taken.add(ONE, number)
    assert taken.packed(number_of) != b""
    taken.add(ONE, MOST_ELEMENTS)
    assert taken.packed(number_of) == b""


def test_an_elements_size_counts_what_is_in_it() -> None:
    element = {"ids": np.zeros(1000, np.int64), "texts": ["x" * 500, b"y" * 500]}
    assert 9000 <= size(element) <= 9400


def test_they_are_given_again_and_then_the_error_says_that_there_are_no_more() -> None:
    again = ReplayedInputs(ConsumedInputs([1, 2], ended=False))
    assert [next(again), next(again)] == [1, 2]
    with pytest.raises(ClosureInputError, match="had taken 2 elements"):
        next(again)
    assert list(ReplayedInputs(ConsumedInputs([1, 2], ended=True))) == [1, 2]


def test_what_was_not_kept_says_why() -> None:
    with pytest.raises(ClosureInputError, match="it was too much"):
        next(ReplayedInputs(None, "it was too much"))
